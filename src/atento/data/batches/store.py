"""Stores of encoded examples: named columns of sequences of ids, fixed or encoded again for each epoch."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
        ragged = cls([])
        ragged.lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        ragged.starts = np.concatenate([[0], np.cumsum(ragged.lengths)])
        ragged.flat = np.concatenate(rows) if rows else ragged.flat
        return ragged

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
        self.first, self.encode = first, encode
        self._cached: tuple[int, Store] | None = None

    def at(self, epoch: int) -> Store:
        """Return the examples of an epoch."""
        if self.encode is None:
            return self.first
        if self._cached is None or self._cached[0] != epoch:
            self._cached = epoch, self.encode(epoch)
        return self._cached[1]
