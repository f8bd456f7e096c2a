"""Batches by token budget: examples of similar length together, in an order that is a function of seed and epoch."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atento.attention.algebra import Mask
from atento.data.shuffle import permutation
from atento.data.store import EpochStores, Store

_SORT_WINDOW = 65536  # examples that are sorted by length together
_PART_TOKENS = 2048  # target tokens of a part
_PART_COST = 400  # what a further part costs, in tokens: its products read and convert all weights again
SIDES = {"text": "ids", "pair": "pair_ids", "negative": "negative_ids"}  # a field -> the input of its texts
Rows = NDArray[np.int64]  # indices of examples in a store
EVERY: Iterator[bool] = repeat(True)  # `ours` of a process that computes every part


@dataclass(frozen=True)
class Batch:
    """Examples as tensors for one forward pass; the same class for every objective.

    Attributes:
        inputs: keyword arguments of the network's `forward`.
        labels: target ids or classes by head, -1 where there is no target.
        mask: attention mask that replaces the network's own, but for its window; None: the network's own.
        extras: other tensors that the loss of a head reads.
        lengths: (B,) number of real tokens in each row of an input, by the input's name.
        settings: what else the loss of a head reads, by the head's name; each objective says of which type.
    """

    inputs: Mapping[str, Tensor]
    labels: Mapping[str, Tensor]
    mask: Mask | None = None
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    lengths: Mapping[str, Tensor] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)

    def counts(self) -> dict[str, int]:
        """Return the number of real targets of each head, by which its loss is divided."""
        return {head: int((labels >= 0).sum()) for head, labels in self.labels.items()}

    @property
    def targets(self) -> int:
        """Number of real targets of all heads."""
        return sum(self.counts().values())

    def real(self, name: str) -> Tensor:
        """Return the token mask of an input (B,L): boolean (B,L), True for a real token."""
        value = self.inputs[name]
        token_mask = self.inputs.get(f"{name.removesuffix('ids')}token_mask")
        if token_mask is not None:
            return token_mask
        if name not in self.lengths:
            return torch.ones(value.shape[:2], dtype=torch.bool, device=value.device)
        return torch.arange(value.shape[1], device=value.device) < self.lengths[name].unsqueeze(1)

    def examples(self) -> Iterator[dict[str, list[int]]]:
        """Yield each example by itself, without padding and labels of -1, to be printed."""
        id_names = [name for name in self.inputs if name == "ids" or name.endswith("_ids")]
        real = {name: self.real(name) for name in id_names}
        for row in range(len(self.inputs[id_names[0]])):
            example = {name: self.inputs[name][row][real[name][row]].tolist() for name in id_names}
            for head, labels in self.labels.items():
                flat = labels[row].reshape(-1)
                example["labels" if len(self.labels) == 1 else head] = flat[flat >= 0].tolist()
            yield example

    def to(self, device: torch.device | str) -> "Batch":
        """Return the batch on another device."""

        def moved(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {name: value.to(device) for name, value in tensors.items()}

        inputs, labels, extras, lengths = map(moved, (self.inputs, self.labels, self.extras, self.lengths))
        return replace(self, inputs=inputs, labels=labels, extras=extras, lengths=lengths)


@dataclass(frozen=True)
class Contrast:
    """The settings of a loss of vectors: `Batch.settings` of its objective.

    Attributes:
        pooling: how the vectors of tokens become the vector of a text: mean, first, last or max.
        normalize: whether it is divided by its length.
        scale: factor of the cosines.
        symmetric: whether the first texts are also ranked for each second text.
        pieces: number of groups that the texts of a batch are read in, each computed again in the backward pass to save
            memory; 1: as many as are fast, and nothing is computed twice.
    """

    pooling: str = "mean"
    normalize: bool = False
    scale: float = 1.0
    symmetric: bool = False
    pieces: int = 1


@dataclass(frozen=True)
class Part:
    """A part of an update.

    Attributes:
        batch: its examples.
        weights: the factor of each head's loss, 1 where none is given.
        rows: (B,) numbers of its examples in the data, for draws that do not depend on how an update is cut into parts;
            None: 0, 1, 2 ...
    """

    batch: Batch
    weights: Mapping[str, float] = field(default_factory=dict)
    rows: Rows | None = None


@dataclass(frozen=True)
class Draw:
    """Randomness of a batch: every random choice is a function of seed, epoch and the number of the example."""

    seed: int
    epoch: int


class Objective(Protocol):
    """Makes batches with labels from stored examples, and says how large the examples are."""

    def sizes(self, store: Store) -> NDArray[np.float64]:
        """Return the expected number of targets of each example, (examples,)."""

    def lengths(self, store: Store) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the lengths of sources and of targets in tokens, each (examples,).

        An objective without a source returns the same array twice.
        """

    def batch(self, store: Store, rows: Rows, draw: Draw) -> Batch:
        """Return the examples of these rows as a batch."""


class Batches(Protocol):
    """Training data by update. An update is a function of its number, so that training can resume at any update."""

    updates_per_epoch: int
    targets: int  # real targets of an epoch, as far as they are known before it

    def __len__(self) -> int:
        """Return the number of examples."""

    def parts(self, update: int, micro_batches: int = 1, ours: Iterator[bool] = EVERY) -> Iterator[Part]:
        """Yield the parts of an update; updates are counted from 0 over all epochs.

        One value is taken from `ours` for each part, in order; a part whose value is false is not made. So several
        processes can share an update.
        """

    def in_order(self, budget: int) -> Iterator[Batch]:
        """Yield every example once, for validation."""


def plan(
    source_lengths: NDArray[np.int64],
    target_lengths: NDArray[np.int64],
    updates: int,
    parts_per_update: int,
    *key: int,
    equal_examples: bool = False,
    random_updates: bool = False,
) -> list[list[NDArray[np.int64]]]:
    """Plan one epoch: a list of updates, each a list of parts, each an array of example numbers.

    All updates have about the same number of real target tokens. Parts have about 2,048: few enough that the examples
    of a part have similar lengths, enough to keep the processor busy. The number of examples in a part is rounded, so
    that few different shapes occur: on a CPU, oneDNN compiles a kernel for each new shape of a matrix product, which
    takes as long as a small product.

    Args:
        source_lengths: (examples,) tokens of each source.
        target_lengths: (examples,) tokens of each target.
        updates: updates in the epoch.
        parts_per_update: about how many parts an update has.
        key: seed and epoch.
        equal_examples: updates have about the same number of examples instead of tokens, so that short and long
            examples have the same weight in the gradient. Parts of more than 4,096 tokens are cut in pieces.
        random_updates: each update is a random sample of the examples, cut into parts of similar lengths. Else an
            update of few parts has examples of few lengths.
    """
    if random_updates:
        return _random_updates(source_lengths, target_lengths, updates, *key)
    counted = np.ones_like(target_lengths) if equal_examples else target_lengths
    shuffled_rows = permutation(len(source_lengths), *key, 1)
    total = int(counted.sum())
    count = updates * parts_per_update
    parts: list[NDArray[np.int64]] = []
    counted_before = 0  # target tokens, or examples, in the windows before
    for start in range(0, len(shuffled_rows), _SORT_WINDOW):
        window = shuffled_rows[start : start + _SORT_WINDOW]
        # Sort by target length, in classes of 2 tokens. Within a class the source length rises, in the next it falls
        # ("snake order"): neighbours across the border of two classes then have similar sources too.
        length_class = target_lengths[window] // 2
        snake = np.where(length_class % 2 == 0, source_lengths[window], -source_lengths[window])
        window = window[np.lexsort((snake, length_class))]
        # Cut where the running count of tokens passes a multiple of a part's tokens. Boundaries are counted over the
        # whole epoch, so that a window's rest does not become a small part. Examples are cut at the nearest number.
        ends = counted_before + np.cumsum(counted[window])
        boundaries = np.arange(1, count) * (total / count) - (0.5 if equal_examples else 0.0)
        cuts = np.searchsorted(ends, boundaries[(boundaries > counted_before) & (boundaries < ends[-1])])
        parts.extend(part for part in np.split(window, round_cuts(cuts + 1)) if len(part))
        counted_before = int(ends[-1])
    # with very few examples: split parts, so that no update is empty
    while len(parts) < min(updates, len(shuffled_rows)):
        longest = max(range(len(parts)), key=lambda i: len(parts[i]))
        parts[longest : longest + 1] = np.array_split(parts[longest], 2)
    shuffled = [parts[i] for i in permutation(len(parts), *key, 2)]  # an update mixes parts of all lengths
    if equal_examples:
        longer = np.maximum(source_lengths, target_lengths)
        return [[piece for part in shuffled[i::updates] for piece in _pieces(part, longer)] for i in range(updates)]
    return [shuffled[i::updates] for i in range(updates)]


def _random_updates(
    source_lengths: NDArray[np.int64], target_lengths: NDArray[np.int64], updates: int, *key: int
) -> list[list[Rows]]:
    """Deal shuffled examples to updates of about the same number of target tokens, and cut each into parts."""
    shuffled = permutation(len(source_lengths), *key, 1)
    ends = np.cumsum(target_lengths[shuffled])
    first = np.searchsorted(ends, np.arange(1, updates) * (ends[-1] / updates)) + 1
    latest = len(shuffled) - np.arange(updates - 1, 0, -1)  # each update has at least one example
    cuts = np.minimum(np.maximum.accumulate(first - np.arange(1, updates)) + np.arange(1, updates), latest)
    return [
        [rows[part] for part in _cheapest_parts(source_lengths[rows], target_lengths[rows])]
        for rows in np.split(shuffled, cuts)
    ]


def _cheapest_parts(source_lengths: NDArray[np.int64], target_lengths: NDArray[np.int64]) -> list[Rows]:
    """Cut examples, sorted by length, into parts whose padded tokens and number cost least."""
    order = np.lexsort((source_lengths, target_lengths))
    sources, targets = source_lengths[order], target_lengths[order]
    count = len(order)
    cost, start = np.zeros(count + 1), np.zeros(count + 1, dtype=np.int64)  # of the first n examples; of the last part
    earliest = 0  # no part that ends here or later can begin before it
    for end in range(1, count + 1):
        longest = [np.maximum.accumulate(side[earliest:end][::-1])[::-1] for side in (sources, targets)]
        tokens = (longest[0] + longest[1]) * np.arange(end - earliest, 0, -1)  # padded tokens of a part from each begin
        too_many = int(
            (tokens[:-1] > 2 * _PART_TOKENS).sum()
        )  # the tokens fall with the begin; one example always fits
        earliest, tokens = earliest + too_many, tokens[too_many:]
        costs = cost[earliest:end] + _PART_COST + tokens
        start[end] = earliest + costs.argmin()
        cost[end] = costs.min()
    parts: list[Rows] = []
    while count:
        parts.append(order[start[count] : count])
        count = int(start[count])
    return parts


def _pieces(part: Rows, lengths: NDArray[np.int64]) -> list[Rows]:
    """Cut a part of long examples, so that each piece has at most about twice the usual tokens."""
    computed = len(part) * int(lengths[part].max())
    return np.array_split(part, min(len(part), math.ceil(computed / (2 * _PART_TOKENS))))


def round_cuts(cuts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Move cuts so that the sizes between them are round: multiples of 32 from 128 to 255, of 16 from 64 to 127, ...

    Each size is measured from the moved cut before it, so that rounding errors do not add up.
    """
    start, moved = 0, []
    for cut in cuts.tolist():
        count = cut - start
        multiple = 1 << max(0, count.bit_length() - 3)
        start += max(multiple, round(count / multiple) * multiple) if count > 0 else 0
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
    multiple = 1 << max(0, longest.bit_length() - 4)
    rounded = -(-longest // multiple) * multiple
    return rounded if limit is None else max(longest, min(rounded, limit))


def part_count(tokens: int) -> int:
    """Return the number of parts that an update of `tokens` target tokens is computed in."""
    return max(1, round(tokens / _PART_TOKENS))


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
        self.count = len(self.stores.first)
        sizes = objective.sizes(self.stores.first)
        self.budget, self.targets = budget, int(sizes.sum())
        self._computed = int(objective.lengths(self.stores.first)[1].sum())
        self.equal_examples, self.random_updates = equal_examples, random_updates
        self._cached_plan: tuple[int, list[list[Rows]]] | None = None  # of one epoch, with its number
        self.updates_per_epoch = self.parts_per_update = 0
        self.divide(round(self.targets / budget))

    def divide(self, updates: int) -> None:
        """Divide each epoch into so many updates, at most one for each example."""
        # equal for all epochs, so that a division of the update's number gives epoch and index
        updates = max(1, min(self.count, updates))
        tokens = self.budget if self.targets == self._computed else self._computed // updates
        if self._cached_plan is None or updates != self.updates_per_epoch:
            self.updates_per_epoch, self.parts_per_update = updates, part_count(tokens)
            self._cached_plan = None

    def __len__(self) -> int:
        return self.count

    def batch(self, rows: Rows, epoch: int = 0) -> Batch:
        """Return the examples of these rows as a batch of the epoch."""
        return self.objective.batch(self.stores.at(epoch), rows, Draw(self.seed, epoch))

    def plan(self, epoch: int) -> list[list[Rows]]:
        """Return the rows of each part of each update of an epoch; the last plan is cached."""
        if self._cached_plan is None or self._cached_plan[0] != epoch:
            lengths = self.objective.lengths(self.stores.at(epoch))
            self._cached_plan = (
                epoch,
                plan(
                    *lengths,
                    self.updates_per_epoch,
                    self.parts_per_update,
                    self.seed,
                    epoch,
                    equal_examples=self.equal_examples,
                    random_updates=self.random_updates,
                ),
            )
        return self._cached_plan[1]

    def rows(self, update: int) -> list[Rows]:
        """Return the rows of each part of an update; updates are counted from 0 over all epochs."""
        epoch, index = divmod(update, self.updates_per_epoch)
        return self.plan(epoch)[index]

    def parts(self, update: int, micro_batches: int = 1, ours: Iterator[bool] = EVERY) -> Iterator[Part]:
        """Yield the parts of an update, each cut into `micro_batches` to save memory; the loss is the same."""
        epoch = update // self.updates_per_epoch
        for part in self.rows(update):
            for piece in np.array_split(part, micro_batches):
                if len(piece) and next(ours):
                    batch = self.batch(piece, epoch)
                    yield Part(batch, self._weights(batch), piece)

    def _weights(self, batch: Batch) -> Mapping[str, float]:
        if isinstance(self.weight, Mapping):
            return self.weight
        return {} if self.weight == 1.0 else dict.fromkeys(batch.labels, self.weight)

    def in_order(self, budget: int) -> Iterator[Batch]:
        """Yield every example of epoch 0 once, sorted by length, in batches of at most `budget` target tokens."""
        source_lengths, lengths = self.objective.lengths(self.stores.first)
        rows: list[int] = []
        tokens = 0
        for row in np.lexsort((source_lengths, lengths)).tolist():
            if tokens + int(lengths[row]) > budget and rows:
                yield self.objective.batch(self.stores.first, np.array(rows), Draw(self.seed, 0))
                rows, tokens = [], 0
            rows.append(row)
            tokens += int(lengths[row])
        if rows:
            yield self.objective.batch(self.stores.first, np.array(rows), Draw(self.seed, 0))

    def padding(self, epoch: int = 0) -> float:
        """Return the share of padding among the tokens of an epoch, sources and targets together."""
        sides = self.objective.lengths(self.stores.at(epoch))
        if sides[0] is sides[1]:
            sides = sides[:1]  # type: ignore[assignment]
        real = computed = 0
        for rows in (part for update in self.plan(epoch) for part in update):
            for side in sides:
                real += int(side[rows].sum())
                computed += int(side[rows].max()) * len(rows)
        return 1 - real / computed
