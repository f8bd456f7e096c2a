"""Batches by token budget: examples of similar length together, in an order that is a function of seed and epoch."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atento.attention.algebra import Mask
from atento.attention.cuda_kernels import RowMask
from atento.config.tables.head_kinds import Windows
from atento.data.batches.planning import CPU_PARTS, PartSize, least_parts, part_count, plan
from atento.data.batches.store import EpochStores, Rows, Store

SIDES = {"text": "ids", "pair": "pair_ids", "negative": "negative_ids"}  # a field -> the input of its texts
Projected = tuple[
    Tensor, Tensor, Tensor | None
]  # hidden vectors (N,D), and matrix (V,D) and bias (V,): scores of tokens
EVERY: Iterator[bool] = repeat(True)  # `ours` of a process that computes every part


@dataclass(frozen=True)
class Batch:
    """Examples as tensors for one forward pass; the same class for every objective.

    Attributes:
        inputs: keyword arguments of the network's `forward`.
        labels: target ids or classes by head, -1 where there is no target.
        mask: attention mask that replaces the network's own, but for its window; a `RowMask`: how a GPU computes the
            batch; None: the network's own.
        extras: other tensors that the loss of a head reads; "NAME texts" is the text of each row (W,) of the input
            NAME, where rows are windows of texts and labels are of texts.
        lengths: (B,) number of real tokens in each row of an input, by the input's name.
        settings: what else the loss of a head reads, by the head's name; each objective says of which type.
    """

    inputs: Mapping[str, Tensor]
    labels: Mapping[str, Tensor]
    mask: Mask | RowMask | None = None
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
        return torch.arange(value.shape[1], device=value.device) < self.lengths[name].unsqueeze(1)  # (L,) below (B,1)

    def examples(self) -> Iterator[dict[str, list[int]]]:
        """Yield each example by itself, without padding and labels of -1, to be printed."""
        id_names = [name for name in self.inputs if name == "ids" or name.endswith("_ids")]
        real = {name: self.real(name) for name in id_names}  # (rows,L) each
        rows = {name: self.extras.get(f"{name} texts", torch.arange(len(self.inputs[name]))) for name in id_names}
        for row in range(int(rows[id_names[0]].max()) + 1 if len(rows[id_names[0]]) else 0):
            windows = {name: rows[name] == row for name in id_names}  # one row, or the windows of a text
            example = {name: self.inputs[name][windows[name]][real[name][windows[name]]].tolist() for name in id_names}
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
        pooling: how the vectors of tokens become the vector of a text (`EmbeddingConfig`).
        normalize: whether it is divided by its length.
        scale: factor of the cosines.
        symmetric: whether the first texts are also ranked for each second text.
        pieces: number of groups that the texts of a batch are read in, each computed again in the backward pass to save
            memory; 1: as many as are fast, and nothing is computed twice.
        skip: tokens at the beginning of a text that its vector leaves out, those of a prompt, by the input of its side.
        margin: how much nearer than the negative the pair should be.
        distance: how far two vectors are: "euclidean", or "cosine" for 1 - cosine.
        sizes: the loss is the sum of those of the first N numbers of the vectors, for each of these N; (): of all.
        windows: how the vectors of the windows of a text become its own; None: rows are whole texts.
    """

    pooling: str = "mean"
    normalize: bool = False
    scale: float = 1.0
    symmetric: bool = False
    pieces: int = 1
    skip: Mapping[str, int] = field(default_factory=dict)
    margin: float = 0.0
    distance: str = "euclidean"
    sizes: tuple[int, ...] = ()
    windows: Windows | None = None


@dataclass(frozen=True)
class Teaching:
    """How a head learns from teachers: `Batch.settings["HEAD teacher"]`, with the keys of the recipe.

    `tokens` gives what the teachers say of the tokens of a batch; None: `Batch.extras` has it under the same name.
    """

    weight: float
    temperature: float
    tokens: "Callable[[Batch], Sequence[Projected]] | None" = None


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


BesideRows = Callable[[Batch, Rows], Batch]  # adds what teachers say of the examples of these rows


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


class OneText:
    """The base of objectives whose examples are single rows of the column "ids", special tokens included."""

    def lengths(self, store: Store) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the length of each row, twice."""
        return store["ids"].lengths, store["ids"].lengths


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

    def resize(self, size: PartSize) -> None:
        """Plan updates of random examples in parts of that size, where the batches have such plans."""


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
        self.teach: BesideRows | None = None
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
                    size=self.size,
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
            for piece in np.array_split(part, micro_batches):  # pieces of a part have like lengths
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
        return 1 - real / computed  # 1 - real / (parts padded)
