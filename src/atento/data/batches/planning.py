"""Plans of an epoch: which examples an update has, and the parts of like lengths that it is computed in."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from atento.data.batches.store import Rows
from atento.splitmix import permutation

_SORT_WINDOW = 65536  # examples that are sorted by length together
_LEAST_PARTS = 4  # of an update of texts of very different lengths
_LEAST_TOKENS = 768  # of such a part
_VERY_DIFFERENT = 3  # times as long


class PartSize(NamedTuple):
    """How large the parts of an update are.

    Attributes:
        tokens: target tokens of a part.
        cost: what a further part costs, in tokens of both sides: on a CPU its products read and convert all weights
            again; on a GPU the processor launches all kernels again, in which time the GPU would compute so many.
        places: at how many places at most an update of random examples may be cut.
        padded: whether the network computes padding too. Else parts are random examples of any lengths.
    """

    tokens: int
    cost: int
    places: int
    padded: bool = True


CPU_PARTS, GPU_PARTS = PartSize(2048, 400, 1 << 20), PartSize(16384, 32768, 256)
_ROOM = 8  # times the tokens of a part that its vectors may have with padding, before the layers leave it out


def plan(
    source_lengths: NDArray[np.int64],
    target_lengths: NDArray[np.int64],
    updates: int,
    parts_per_update: int,
    *key: int,
    equal_examples: bool = False,
    random_updates: bool = False,
    size: PartSize = CPU_PARTS,
) -> list[list[NDArray[np.int64]]]:
    """Plan one epoch: a list of updates, each a list of parts, each an array of example numbers.

    All updates have about the same number of real target tokens. Parts have about 2,048, or fewer (`least_parts`): few
    enough that the examples of a part have similar lengths, enough to keep the processor busy. The parts of an update
    have different lengths: one has short examples, one long ones, and so on. The number of examples in a part is
    rounded, so that few different shapes occur: on a CPU, oneDNN compiles a kernel for each new shape of a matrix
    product, which takes as long as a small product.

    Args:
        source_lengths: (examples,) tokens of each source.
        target_lengths: (examples,) tokens of each target.
        updates: updates in the epoch.
        parts_per_update: about how many parts an update has.
        key: seed and epoch.
        equal_examples: updates have about the same number of examples instead of tokens, so that short and long
            examples have the same weight in the gradient. Parts of more than twice the usual tokens are cut in pieces.
        random_updates: each update is a random sample of the examples, cut into parts of similar lengths. Else an
            update of few parts has examples of few lengths, short and long.
        size: of parts; those of `equal_examples` may have twice as many tokens.
    """
    counted = np.ones_like(target_lengths) if equal_examples else target_lengths  # what updates have equally much of
    if random_updates:
        return _random_updates(source_lengths, target_lengths, counted, size, updates, *key)
    shuffled_rows = permutation(len(source_lengths), *key, 1)
    total = int(counted.sum())  # of the epoch
    count = updates * parts_per_update
    parts: list[NDArray[np.int64]] = []
    counted_before = 0  # target tokens, or examples, in the windows before
    for start in range(0, len(shuffled_rows), _SORT_WINDOW):
        window = shuffled_rows[start : start + _SORT_WINDOW]
        # Sort by target length, in classes of 2 tokens. Within a class the source length rises, in the next it falls
        # ("snake order"): neighbours across the border of two classes then have similar sources too.
        length_class = target_lengths[window] // 2  # 0: lengths 0 and 1, 1: 2 and 3 ...
        snake = np.where(length_class % 2 == 0, source_lengths[window], -source_lengths[window])
        window = window[np.lexsort((snake, length_class))]  # the last key counts most
        # Cut where the running count of tokens passes a multiple of a part's tokens. Boundaries are counted over the
        # whole epoch, so that a window's rest does not become a small part. Examples are cut at the nearest number.
        ends = counted_before + np.cumsum(counted[window])  # the running count over all windows
        boundaries = np.arange(1, count) * (total / count) - (0.5 if equal_examples else 0.0)
        cuts = np.searchsorted(ends, boundaries[(boundaries > counted_before) & (boundaries < ends[-1])])
        parts.extend(part for part in np.split(window, round_cuts(cuts + 1)) if len(part))
        counted_before = int(ends[-1])
    # with very few examples: split parts, so that no update is empty
    while len(parts) < min(updates, len(shuffled_rows)):
        longest = max(range(len(parts)), key=lambda i: len(parts[i]))  # the longest list, not the longest text
        parts[longest : longest + 1] = np.array_split(parts[longest], 2)
    dealt = _dealt(parts, target_lengths, updates, *key)
    if not equal_examples:
        return dealt
    longer = np.maximum(source_lengths, target_lengths)
    return [[piece for part in update for piece in _pieces(part, longer, size)] for update in dealt]


def _dealt(parts: list[Rows], lengths: NDArray[np.int64], updates: int, *key: int) -> list[list[Rows]]:
    """Deal parts to updates so that each update has short and long examples: one part of each range of lengths."""
    if len(parts) > updates:
        parts = sorted(parts, key=lambda rows: float(lengths[rows].mean()))  # neighbours are of similar length
    dealt: list[list[Rows]] = [[] for _ in range(updates)]
    for turn, start in enumerate(range(0, len(parts), updates)):
        ranged = parts[start : start + updates]
        for update, place in enumerate(permutation(updates, *key, 2 + turn).tolist()):  # which update gets which
            dealt[update] += ranged[place : place + 1]
    return dealt


def _random_updates(
    source_lengths: NDArray[np.int64],
    target_lengths: NDArray[np.int64],
    counted: NDArray[np.int64],
    size: PartSize,  # in shuffled order
    updates: int,
    *key: int,
) -> list[list[Rows]]:
    """Deal shuffled examples to updates of about the same sum of `counted`, and cut each into parts."""
    shuffled = permutation(len(source_lengths), *key, 1)
    ends = np.cumsum(counted[shuffled])
    first = np.searchsorted(ends, np.arange(1, updates) * (ends[-1] / updates)) + 1  # where each update would be cut
    latest = len(shuffled) - np.arange(updates - 1, 0, -1)  # each update has at least one example
    cuts = np.minimum(np.maximum.accumulate(first - np.arange(1, updates)) + np.arange(1, updates), latest)
    updates_rows = np.split(shuffled, cuts)
    if not size.padded:
        return [_even_parts(rows, np.maximum(source_lengths, target_lengths)[rows], size) for rows in updates_rows]
    return [
        [rows[part] for part in _cheapest_parts(source_lengths[rows], target_lengths[rows], size)]
        for rows in updates_rows
    ]


def _even_parts(rows: Rows, lengths: NDArray[np.int64], size: PartSize) -> list[Rows]:
    """Cut random examples into as few parts of like numbers as hold them."""
    count = max(lengths.sum() / size.tokens, len(rows) * lengths.max() / (_ROOM * size.tokens))
    return np.array_split(rows, min(len(rows), math.ceil(count)))


def _cheapest_parts(source_lengths: NDArray[np.int64], target_lengths: NDArray[np.int64], size: PartSize) -> list[Rows]:
    """Cut examples, sorted by length, into parts whose padded tokens and number cost least; O(places²)."""
    order = np.lexsort((source_lengths, target_lengths))  # the last key, targets, counts most
    groups = np.arange(0, len(order), -(-len(order) // size.places))  # where each group of examples begins
    sources, targets = (np.maximum.reduceat(side[order], groups) for side in (source_lengths, target_lengths))
    begins, count = np.append(groups, len(order)), len(groups)
    cost, start = np.zeros(count + 1), np.zeros(count + 1, dtype=np.int64)  # of the first n groups; of the last part
    earliest = 0  # no part that ends here or later can begin before it
    for end in range(1, count + 1):
        longest = [np.maximum.accumulate(side[earliest:end][::-1])[::-1] for side in (sources, targets)]
        tokens = (longest[0] + longest[1]) * (begins[end] - begins[earliest:end])  # of a part from each begin, padded
        # the tokens fall with the begin; one group always fits
        too_many = int((tokens[:-1] > 2 * size.tokens).sum())
        earliest, tokens = earliest + too_many, tokens[too_many:]
        costs = cost[earliest:end] + size.cost + tokens  # cost of what is before, of a part, of its tokens
        start[end] = earliest + costs.argmin()  # where the last part begins
        cost[end] = costs.min()
    parts: list[Rows] = []
    while count:  # back along the last parts
        parts.append(order[begins[start[count]] : begins[count]])
        count = int(start[count])
    return parts


def _pieces(part: Rows, lengths: NDArray[np.int64], size: PartSize) -> list[Rows]:
    """Cut a part of long examples, so that each piece has at most about twice the usual tokens."""
    computed = len(part) * int(lengths[part].max())  # with padding
    return np.array_split(part, min(len(part), math.ceil(computed / (2 * size.tokens))))


def round_cuts(cuts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Move cuts so that the sizes between them are round: multiples of 32 from 128 to 255, of 16 from 64 to 127, ...

    Each size is measured from the moved cut before it, so that rounding errors do not add up.
    """
    start, moved = 0, []
    for cut in cuts.tolist():
        count = cut - start
        multiple = 1 << max(0, count.bit_length() - 3)  # the size's highest bit, divided by 4
        start += max(multiple, round(count / multiple) * multiple) if count > 0 else 0  # at least one multiple
        moved.append(start)
    return np.array(moved, dtype=np.int64)


def round_length(lengths: NDArray[np.int64], limit: int | None = None) -> int:
    """Return the length that rows are padded to, so that few different shapes occur.

    It is at most an eighth above that of the longest row: a multiple of 2 from 16 to 31, of 4 from 32 to 63, of 8 from
    64 to 127, and so on. Each new shape costs memory and time (see `atento.training.allocator`).

    Args:
        lengths: (B,) tokens of each row.
        limit: the length that a network reads at most.
    """
    longest = int(lengths.max(initial=0))
    multiple = 1 << max(0, longest.bit_length() - 4)  # the length's highest bit, divided by 8
    rounded = -(-longest // multiple) * multiple  # rounded up
    return rounded if limit is None else max(longest, min(rounded, limit))


def part_count(tokens: int) -> int:
    """Return the number of parts that an update of `tokens` target tokens is computed in."""
    return max(1, round(tokens / CPU_PARTS.tokens))


def least_parts(lengths: NDArray[np.int64], updates: int) -> int:
    """Return how many parts an update has at least, so that it is no sample of one or two lengths.

    It is 4, or as many as have 768 tokens, where lengths differ much: with the tokens sorted by the lengths of their
    texts, the text of the last tenth is at least three times as long as that of the first tenth. Else it is 1.

    Args:
        lengths: (examples,) tokens of each example.
        updates: updates in the epoch.
    """
    ordered = np.sort(lengths)
    tokens = np.cumsum(ordered)  # a tenth of the tokens are in texts up to `short`, a tenth above `long`
    short, long = ordered[np.searchsorted(tokens, [0.1 * tokens[-1], 0.9 * tokens[-1]])]
    if long < _VERY_DIFFERENT * short:
        return 1
    return max(1, min(_LEAST_PARTS, int(tokens[-1]) // updates // _LEAST_TOKENS))
