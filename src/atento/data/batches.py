"""Batches by token budget: examples of like length together, in an order that is a function of (seed, epoch, index)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atento.attention.algebra import Mask
from atento.data.shuffle import permutation
from atento.data.store import EpochStores, Store

_WINDOW = 65536  # examples sorted together; a seek redoes at most one window
_PART = 2048  # real target tokens computed at a time
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """Examples laid out for one forward pass, whatever is learned from them.

    Attributes:
        inputs: keyword arguments of the network's `forward`.
        labels: head -> what it should say at each place, -1 where it is not asked.
        mask: who may attend to whom, where that is not the network's own mask.
        extras: what the loss of one head alone reads.
        lengths: (B,) real tokens of the rows of an input, where they are fewer than its width.
    """

    inputs: Mapping[str, Tensor]
    labels: Mapping[str, Tensor]
    mask: Mask | None = None
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    lengths: Mapping[str, Tensor] = field(default_factory=dict)

    def counts(self) -> dict[str, int]:
        """Real targets of each head: what its loss is divided by, over the whole update."""
        return {head: int((labels >= 0).sum()) for head, labels in self.labels.items()}

    @property
    def targets(self) -> int:
        """Real targets of all heads."""
        return sum(self.counts().values())

    def real(self, name: str) -> Tensor:
        """Which places of an input (B,L) are real tokens: boolean (B,L)."""
        value = self.inputs[name]
        given = self.inputs.get(f"{name.removesuffix('ids')}token_mask")
        if given is not None:
            return given
        if name not in self.lengths:
            return torch.ones(value.shape[:2], dtype=torch.bool, device=value.device)
        return torch.arange(value.shape[1], device=value.device) < self.lengths[name].unsqueeze(1)

    def examples(self) -> Iterator[dict[str, list[int]]]:
        """Each example by itself, padding and labels of -1 left out, for people to look at."""
        shown = [name for name in self.inputs if name == "ids" or name.endswith("_ids")]
        real = {name: self.real(name) for name in shown}
        for row in range(len(self.inputs[shown[0]])):
            example = {name: self.inputs[name][row][real[name][row]].tolist() for name in shown}
            for head, labels in self.labels.items():
                asked = labels[row].reshape(-1)
                example["labels" if len(self.labels) == 1 else head] = asked[asked >= 0].tolist()
            yield example

    def to(self, device: torch.device | str) -> "Batch":
        """The batch on another device."""

        def moved(part: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {name: value.to(device) for name, value in part.items()}

        return Batch(moved(self.inputs), moved(self.labels), self.mask, moved(self.extras), moved(self.lengths))


@dataclass(frozen=True)
class Part:
    """A part of an update: a batch, and the weight of each head's loss in it, 1 where none is given."""

    batch: Batch
    weights: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Draw:
    """What a batch may draw from: everything drawn is a function of the seed, the epoch and the example's number."""

    seed: int
    epoch: int


class Objective(Protocol):
    """What is learned from examples: how large they are, and how they are laid out."""

    def sizes(self, store: Store) -> NDArray[np.float64]:
        """Expected targets of each example."""

    def lengths(self, store: Store) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """How long the examples are on either side, the computed one second; on the only side twice."""

    def batch(self, store: Store, rows: Rows, draw: Draw) -> Batch:
        """Those examples as tensors."""


class Batches(Protocol):
    """Training data handed out update by update; the place in it is one integer, the update's number."""

    updates_per_epoch: int

    def __len__(self) -> int:
        """Examples."""

    def parts(self, update: int, micro_batches: int = 1) -> Iterator[Part]:
        """Yield the parts of an update, counted from 0 over all epochs."""

    def in_order(self, budget: int) -> Iterator[Batch]:
        """Yield every example once, for validation."""


def plan(
    source_lengths: NDArray[np.int64], target_lengths: NDArray[np.int64], updates: int, parts_each: int, *key: int
) -> list[list[NDArray[np.int64]]]:
    """One epoch as a list of updates; an update is a list of parts, a part an array of example numbers.

    The updates hold about equally many real target tokens. Examples are shuffled, then sorted in windows by target
    length in steps of 2 with the source length going up and down in turn (snake order) and cut into parts of
    about 2,048 tokens: few enough that a part is of one shape, enough to fill the processor. A part has a round number
    of examples, so that shapes come again and again: the processor's library writes a program for each shape of a
    product that it meets, which takes as long as a small product itself. The parts are shuffled and dealt to updates,
    so that an update mixes lengths. `key` is (seed, epoch).
    """
    order = permutation(len(source_lengths), *key, 1)
    total = int(target_lengths.sum())
    count = updates * parts_each
    parts: list[NDArray[np.int64]] = []
    done = 0
    for start in range(0, len(order), _WINDOW):
        window = order[start : start + _WINDOW]
        width = target_lengths[window] // 2
        snake = np.where(width % 2 == 0, source_lengths[window], -source_lengths[window])
        window = window[np.lexsort((snake, width))]
        ends = done + np.cumsum(target_lengths[window])
        marks = np.arange(1, count) * (total / count)
        cuts = np.searchsorted(ends, marks[(marks > done) & (marks < ends[-1])])
        parts.extend(part for part in np.split(window, rounded(cuts + 1)) if len(part))
        done = int(ends[-1])
    while len(parts) < min(updates, len(order)):  # a few examples beyond the budget: no update may be left empty
        longest = max(range(len(parts)), key=lambda i: len(parts[i]))
        parts[longest : longest + 1] = np.array_split(parts[longest], 2)
    shuffled = [parts[i] for i in permutation(len(parts), *key, 2)]
    return [shuffled[i::updates] for i in range(updates)]


def rounded(cuts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Cuts moved a little, so that 128 to 255 examples in a row become a multiple of 32, 64 to 127 one of 16, and on.

    Errors do not add up: each part is measured from where the last one ended.
    """
    start, found = 0, []
    for cut in cuts.tolist():
        count = cut - start
        step = 1 << max(0, count.bit_length() - 3)
        start += max(step, round(count / step) * step) if count > 0 else 0
        found.append(start)
    return np.array(found, dtype=np.int64)


def part_count(tokens: int) -> int:
    """In how many parts an update of so many tokens is computed."""
    return max(1, round(tokens / _PART))


class PlannedBatches:
    """Examples handed out update by update: an update's number gives (epoch, index), and these its examples."""

    def __init__(
        self, store: Store | EpochStores, objective: Objective, *, budget: int, seed: int, weight: float = 1.0
    ) -> None:
        """`budget` is the real targets of an update; `weight` the factor of its loss."""
        self.stores = store if isinstance(store, EpochStores) else EpochStores(store)
        self.objective, self.seed, self.weight = objective, seed, weight
        self.count = len(self.stores.first)
        sizes = objective.sizes(self.stores.first)
        targets, computed = int(sizes.sum()), int(objective.lengths(self.stores.first)[1].sum())
        # the same numbers every epoch, so that an update's number gives (epoch, index) without replaying any
        self.updates_per_epoch = max(1, min(self.count, round(targets / budget)))
        self.parts_each = part_count(budget if targets == computed else computed // self.updates_per_epoch)
        self._epoch: tuple[int, list[list[Rows]]] | None = None

    def __len__(self) -> int:
        return self.count

    def batch(self, rows: Rows, epoch: int = 0) -> Batch:
        """Those examples, as that epoch shows them."""
        return self.objective.batch(self.stores.at(epoch), rows, Draw(self.seed, epoch))

    def plan(self, epoch: int) -> list[list[Rows]]:
        """The updates of an epoch, made again whenever asked for."""
        if self._epoch is None or self._epoch[0] != epoch:
            lengths = self.objective.lengths(self.stores.at(epoch))
            self._epoch = epoch, plan(*lengths, self.updates_per_epoch, self.parts_each, self.seed, epoch)
        return self._epoch[1]

    def rows(self, update: int) -> list[Rows]:
        """The parts of an update, counted from 0 over all epochs, as example numbers."""
        epoch, index = divmod(update, self.updates_per_epoch)
        return self.plan(epoch)[index]

    def parts(self, update: int, micro_batches: int = 1) -> Iterator[Part]:
        """Yield the update in parts; `micro_batches` cuts each again, for less memory and the same result."""
        epoch = update // self.updates_per_epoch
        for part in self.rows(update):
            for piece in np.array_split(part, micro_batches):
                if len(piece):
                    batch = self.batch(piece, epoch)
                    yield Part(batch, {} if self.weight == 1.0 else dict.fromkeys(batch.labels, self.weight))

    def in_order(self, budget: int) -> Iterator[Batch]:
        """Yield every example once, as epoch 0 has it, in batches of like length of at most `budget` tokens."""
        others, lengths = self.objective.lengths(self.stores.first)
        rows: list[int] = []
        tokens = 0
        for row in np.lexsort((others, lengths)).tolist():
            if tokens + int(lengths[row]) > budget and rows:
                yield self.objective.batch(self.stores.first, np.array(rows), Draw(self.seed, 0))
                rows, tokens = [], 0
            rows.append(row)
            tokens += int(lengths[row])
        if rows:
            yield self.objective.batch(self.stores.first, np.array(rows), Draw(self.seed, 0))

    def padding(self, epoch: int = 0) -> float:
        """The share of computed tokens that are padding, on all sides together."""
        sides = self.objective.lengths(self.stores.at(epoch))
        if sides[0] is sides[1]:
            sides = sides[:1]  # type: ignore[assignment]
        real = computed = 0
        for rows in (part for update in self.plan(epoch) for part in update):
            for side in sides:
                real += int(side[rows].sum())
                computed += int(side[rows].max()) * len(rows)
        return 1 - real / computed
