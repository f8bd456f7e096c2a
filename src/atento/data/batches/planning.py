"""Batches by token budget: plans of an epoch, a function of its seed, whose parts have examples of like lengths."""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from atento.base.splitmix import permutation
from atento.data.batches.batch import EVERY, Batch, Draw, EpochStores, Objective, Part, PartSize, Rows, Store, Teach

_SORT_WINDOW = 65536  # examples that are sorted by length together
_LEAST_PARTS = 4  # of an update of texts of very different lengths
_LEAST_TOKENS = 768  # of such a part
_VERY_DIFFERENT = 3  # times as long


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
    size: PartSize,
    updates: int,
    *key: int,
) -> list[list[Rows]]:
    """Deal shuffled examples to updates of about the same sum of `counted`, and cut each into parts."""
    shuffled = permutation(len(source_lengths), *key, 1)
    ends = np.cumsum(counted[shuffled])  # in shuffled order
    first = np.searchsorted(ends, np.arange(1, updates) * (ends[-1] / updates)) + 1  # where each update would be cut
    latest = len(shuffled) - np.arange(updates - 1, 0, -1)  # each update has at least one example
    cuts = np.minimum(np.maximum.accumulate(first - np.arange(1, updates)) + np.arange(1, updates), latest)
    updates_rows = np.split(shuffled, cuts)
    if not size.padded:
        return [_even_parts(rows, np.maximum(source_lengths, target_lengths)[rows], size) for rows in updates_rows]
    cut = (_cheapest_parts(source_lengths[rows], target_lengths[rows], size) for rows in updates_rows)
    return [[rows[part] for part in parts] for rows, parts in zip(updates_rows, cut)]


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
    """
    ordered = np.sort(lengths)
    tokens = np.cumsum(ordered)  # a tenth of the tokens are in texts up to `short`, a tenth above `long`
    short, long = ordered[np.searchsorted(tokens, [0.1 * tokens[-1], 0.9 * tokens[-1]])]
    if long < _VERY_DIFFERENT * short:
        return 1
    return max(1, min(_LEAST_PARTS, int(tokens[-1]) // updates // _LEAST_TOKENS))


class PlannedBatches:
    """Batches of one objective: the number of an update gives epoch and index, and the plan of the epoch its rows."""

    def __init__(
        self,
        store: Store | EpochStores,
        objective: Objective,
        *,
        budget: int,
        seed: int,
        weight: float | Mapping[str, float] = 1.0,
        equal_examples: bool = False,
        random_updates: bool = False,
    ) -> None:
        """Count the targets of the first epoch, which decide how many updates an epoch has.

        Args:
            store: the examples, or the examples of each epoch.
            objective: makes batches of them.
            budget: real targets of an update.
            seed: seed of order and random choices.
            weight: factor of the loss, or of each head's loss.
            equal_examples: whether updates have the same number of examples, instead of tokens.
            random_updates: whether an update is a random sample of the examples, short and long.
        """
        self.stores = store if isinstance(store, EpochStores) else EpochStores(store)
        self.objective, self.seed, self.weight = objective, seed, weight
        self.teach: Teach | None = None
        self.count = len(self.stores.first)
        sizes = objective.sizes(self.stores.first)  # expected targets of each example
        self.budget, self.targets = budget, int(sizes.sum())
        self._computed = int(objective.lengths(self.stores.first)[1].sum())  # tokens that are computed, targets or not
        self.equal_examples, self.random_updates, self.size = equal_examples, random_updates, CPU_PARTS
        self._cached_plan: tuple[int, list[list[Rows]]] | None = None  # of one epoch, with its number
        self.updates_per_epoch = self.parts_per_update = 0
        self.divide(round(self.targets / budget))  # as many updates as budgets fit

    def divide(self, updates: int) -> None:
        """Divide each epoch into so many updates, at most one for each example."""
        # equal for all epochs, so that a division of the update's number gives epoch and index
        updates = max(1, min(self.count, updates))  # at least one example an update
        tokens = self.budget if self.targets == self._computed else self._computed // updates  # in computed tokens
        if self._cached_plan is None or updates != self.updates_per_epoch:
            least = least_parts(max(self.objective.lengths(self.stores.first), key=np.sum), updates)
            self.updates_per_epoch, self.parts_per_update = updates, max(part_count(tokens), least)
            self._cached_plan = None

    def resize(self, size: PartSize) -> None:
        """As `Batches.resize`."""
        self.size, self.random_updates, self._cached_plan = size, True, None  # another plan of the same epochs

    def __len__(self) -> int:
        return self.count

    def batch(self, rows: Rows, epoch: int = 0) -> Batch:
        """Return the examples of these rows as a batch of the epoch."""
        batch = self.objective.batch(self.stores.at(epoch), rows, Draw(self.seed, epoch))
        return batch if self.teach is None else self.teach(batch, rows)

    def plan(self, epoch: int) -> list[list[Rows]]:
        """Return the rows of each part of each update of an epoch; the last plan is cached."""
        if self._cached_plan is None or self._cached_plan[0] != epoch:
            sides, size = self.objective.lengths(self.stores.at(epoch)), self.size
            numbers = self.updates_per_epoch, self.parts_per_update, self.seed, epoch
            equal, random = self.equal_examples, self.random_updates
            self._cached_plan = epoch, plan(*sides, *numbers, equal_examples=equal, random_updates=random, size=size)
        return self._cached_plan[1]

    def rows(self, update: int) -> list[Rows]:
        """Return the rows of each part of an update; updates are counted from 0 over all epochs."""
        epoch, index = divmod(update, self.updates_per_epoch)
        return self.plan(epoch)[index]

    def parts(self, update: int, micro_batches: int = 1, ours: Iterator[bool] = EVERY) -> Iterator[Part]:
        """Yield the parts of an update, each cut into `micro_batches` to save memory; the loss is the same."""
        epoch = update // self.updates_per_epoch
        for part in self.rows(update):
            for piece in np.array_split(part, micro_batches):  # pieces of a part have like lengths
                if len(piece) and next(ours):
                    batch = self.batch(piece, epoch)
                    labels = () if self.weight == 1.0 else batch.labels
                    weights = self.weight if isinstance(self.weight, Mapping) else dict.fromkeys(labels, self.weight)
                    yield Part(batch, weights, piece)

    def in_order(self, budget: int) -> Iterator[Batch]:
        """Yield every example of epoch 0 once, sorted by length, in batches of at most `budget` target tokens."""
        source_lengths, lengths = self.objective.lengths(self.stores.first)
        rows: list[int] = []
        tokens = 0
        for row in np.lexsort((source_lengths, lengths)).tolist():  # by target length, then by source length
            if tokens + int(lengths[row]) > budget and rows:
                yield self.objective.batch(self.stores.first, np.array(rows), Draw(self.seed, 0))
                rows, tokens = [], 0
            rows.append(row)
            tokens += int(lengths[row])
        if rows:
            yield self.objective.batch(self.stores.first, np.array(rows), Draw(self.seed, 0))

    def padding(self, epoch: int = 0) -> float:
        """Return the share of padding among the tokens of an epoch, sources and targets together."""
        sides: Sequence[NDArray[np.int64]] = self.objective.lengths(self.stores.at(epoch))
        if sides[0] is sides[1]:  # one side: the two are the same array
            sides = sides[:1]
        real = computed = 0
        for rows in (part for update in self.plan(epoch) for part in update):
            for side in sides:
                real += int(side[rows].sum())
                computed += int(side[rows].max()) * len(rows)  # a part is padded to its longest
        return 1 - real / computed
