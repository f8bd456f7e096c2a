"""What a network learns from: examples as columns of numbers, batches of them as tensors, the parts of an update."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain, repeat
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atento.attention.algebra import Mask
from atento.attention.cuda_kernels import RowMask
from atento.config.tables.head_kinds import Windows

SIDES = {"text": "ids", "pair": "pair_ids", "negative": "negative_ids"}  # a field -> the input of its texts
# hidden vectors (N,D), and matrix (V,D) and bias (V,): scores of tokens
Projected = tuple[Tensor, Tensor, Tensor | None]
EVERY: Iterator[bool] = repeat(True)  # `ours` of a process that computes every part
Rows = NDArray[np.int64]  # indices of examples in a store


class Ragged:
    """Sequences of ids, or of other numbers, of different lengths in one flat array."""

    def __init__(self, rows: Sequence[Sequence[float]], dtype: type[np.generic] = np.int32) -> None:
        self.lengths = np.fromiter((len(row) for row in rows), dtype=np.int64, count=len(rows))  # (rows,)
        self.starts = np.concatenate([[0], np.cumsum(self.lengths)])  # (rows + 1,): row i ends where i + 1 begins
        self.flat = np.fromiter(chain.from_iterable(rows), dtype=dtype, count=int(self.starts[-1]))  # (sum of lengths,)

    @classmethod
    def of_arrays(cls, rows: Sequence[NDArray[np.generic]]) -> "Ragged":
        """Return the same as the constructor, of arrays of one type; much faster."""
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        return cls.of_flat(np.concatenate(rows) if rows else np.empty(0, dtype=np.int32), lengths)

    @classmethod
    def of_flat(cls, flat: NDArray[np.generic], lengths: NDArray[np.int64]) -> "Ragged":
        """Return the sequences that stand one after another in `flat`, with these lengths; `flat` is not copied."""
        ragged = cls([])
        ragged.lengths, ragged.starts = lengths, np.concatenate([[0], np.cumsum(lengths)])
        ragged.flat = flat
        return ragged

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> NDArray[Any]:
        return self.flat[self.starts[index] : self.starts[index + 1]]

    def padded(
        self,
        rows: NDArray[np.int64],
        pad_id: int,
        before: int | None = None,
        after: int | None = None,
        *,
        length: int | None = None,
    ) -> Tensor:
        """Return rows as one padded tensor.

        Args:
            rows: (B,) numbers of the rows.
            pad_id: id of padding, on the right.
            before: id to put before each row, if any.
            after: id to put after each row, if any.
            length: L, at least that of the longest row; None: exactly that.

        Returns:
            (B,L) int64.
        """
        front, back = int(before is not None), int(after is not None)  # room for special tokens
        longest = int(self.lengths[rows].max(initial=0)) + front + back
        out = np.full((len(rows), longest if length is None else length), pad_id, dtype=np.int64)
        for i, row in enumerate(rows):
            ids = self[int(row)]
            if before is not None:
                out[i, 0] = before
            out[i, front : front + len(ids)] = ids  # behind the special token, if there is one
            if after is not None:
                out[i, front + len(ids)] = after
        return torch.from_numpy(out)


class Store(Protocol):
    """Examples as named columns of equal length: "ids", "source" and "target", "segments", "label" ..."""

    def __len__(self) -> int: ...
    def __getitem__(self, column: str) -> Ragged: ...
    def __contains__(self, column: str) -> bool: ...


class MemoryStore:
    """A store of columns in memory."""

    def __init__(self, columns: Mapping[str, Ragged]) -> None:
        self.columns = dict(columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, column: str) -> Ragged:
        return self.columns[column]

    def __contains__(self, column: str) -> bool:
        return column in self.columns


class EpochStores:
    """Stores of examples that are encoded again in each epoch, as for BPE dropout; the last one is cached."""

    def __init__(self, first: Store, encode: Callable[[int], Store] | None = None) -> None:
        self.first, self._encode = first, encode and lru_cache(maxsize=1)(encode)

    def at(self, epoch: int) -> Store:
        """Return the examples of an epoch."""
        return self.first if self._encode is None else self._encode(epoch)


@dataclass(frozen=True)
class Batch:
    """Examples as tensors for one forward pass; the same class for every objective."""

    inputs: Mapping[str, Tensor]  # keyword arguments of the network's `forward`
    labels: Mapping[str, Tensor]  # target ids or classes by head, -1 where there is no target
    # attention mask that replaces the network's own, but for its window; a `RowMask`: how a GPU computes the batch;
    # None: the network's own
    mask: Mask | RowMask | None = None
    # other tensors that the loss of a head reads; "NAME texts" is the text of each row (W,) of the input NAME, where
    # rows are windows of texts and labels are of texts
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    # (B,) number of real tokens in each row of an input, by the input's name
    lengths: Mapping[str, Tensor] = field(default_factory=dict)
    # what else the loss of a head reads, by the head's name; each objective says of which type
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
        name = "ids" if name == "segment_ids" else name  # which have no lengths of their own
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
class ContrastiveSettings:
    """The settings of a loss of vectors: `Batch.settings` of its objective."""

    pooling: str = "mean"  # how the vectors of tokens become the vector of a text (`EmbeddingConfig`)
    normalize: bool = False  # whether it is divided by its length
    scale: float = 1.0  # factor of the cosines
    symmetric: bool = False  # whether the first texts are also ranked for each second text
    # number of groups that the texts of a batch are read in, each computed again in the backward pass to save memory;
    # 1: as many as are fast, and nothing is computed twice
    pieces: int = 1
    # tokens at the beginning of a text that its vector leaves out, those of a prompt, by the input of its side
    skip: Mapping[str, int] = field(default_factory=dict)
    margin: float = 0.0  # how much nearer than the negative the pair should be
    distance: str = "euclidean"  # how far two vectors are: "euclidean", or "cosine" for 1 - cosine
    # the loss is the sum of those of the first N numbers of the vectors, for each of these N; (): of all
    sizes: tuple[int, ...] = ()
    # how the vectors of the windows of a text become its own; None: rows are whole texts
    windows: Windows | None = None


@dataclass(frozen=True)
class Distillation:
    """How a head learns from teachers: `Batch.settings["HEAD teacher"]`, with the keys of the recipe.

    `tokens` gives what the teachers say of the tokens of a batch; None: `Batch.extras` has it under the same name.
    """

    weight: float
    temperature: float
    tokens: "Callable[[Batch], Sequence[Projected]] | None" = None


@dataclass(frozen=True)
class Part:
    """A part of an update."""

    batch: Batch  # its examples
    weights: Mapping[str, float] = field(default_factory=dict)  # the factor of each head's loss, 1 where none is given
    # (B,) numbers of its examples in the data, for draws that do not depend on how an update is cut into parts; None:
    # 0, 1, 2 ...
    rows: Rows | None = None


@dataclass(frozen=True)
class Draw:
    """Randomness of a batch: every random choice is a function of seed, epoch and the number of the example."""

    seed: int
    epoch: int


Teach = Callable[[Batch, Rows], Batch]  # adds what teachers say of the examples of these rows


class PartSize(NamedTuple):
    """How large the parts of an update are."""

    tokens: int  # target tokens of a part
    # what a further part costs, in tokens of both sides: on a CPU its products read and convert all weights again; on a
    # GPU the processor launches all kernels again, in which time the GPU would compute so many
    cost: int
    places: int  # at how many places at most an update of random examples may be cut
    padded: bool = True  # whether the network computes padding too. Else parts are random examples of any lengths


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


class OneTarget:
    """The base of objectives whose examples count one target each, however long they are."""

    def sizes(self, store: Store) -> NDArray[np.float64]:
        """Return one target for each example."""
        return np.ones(len(store))


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
