"""Examples as named columns of sequences of ids, and how they change from epoch to epoch."""

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Ragged:
    """Sequences of ids of different lengths in one flat array: compact, and quick to slice into batches."""

    def __init__(self, rows: list[list[int]]) -> None:
        self.lengths = np.fromiter((len(row) for row in rows), dtype=np.int64, count=len(rows))
        self.starts = np.concatenate([[0], np.cumsum(self.lengths)])
        self.flat = np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=int(self.starts[-1]))

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> NDArray[np.int32]:
        return self.flat[self.starts[index] : self.starts[index + 1]]

    def padded(
        self, rows: NDArray[np.int64], pad_id: int, before: int | None = None, after: int | None = None
    ) -> Tensor:
        """The rows as one (B,L) int64 tensor, with `before` put in front and `after` behind each, then padding."""
        front, back = int(before is not None), int(after is not None)
        lengths = self.lengths[rows]
        out = np.full((len(rows), int(lengths.max(initial=0)) + front + back), pad_id, dtype=np.int64)
        for i, row in enumerate(rows):
            ids = self[int(row)]
            if before is not None:
                out[i, 0] = before
            out[i, front : front + len(ids)] = ids
            if after is not None:
                out[i, front + len(ids)] = after
        return torch.from_numpy(out)


class Store(Protocol):
    """Examples as named columns of equal count: "ids", "source" and "target", "segments", "label" ..."""

    def __len__(self) -> int: ...
    def __getitem__(self, column: str) -> Ragged: ...


class MemoryStore:
    """Columns in memory."""

    def __init__(self, columns: Mapping[str, Ragged]) -> None:
        self.columns = dict(columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, column: str) -> Ragged:
        return self.columns[column]


class EpochStores:
    """A store whose examples are encoded anew in every epoch (BPE dropout, say); the last epoch's is kept."""

    def __init__(self, first: Store, encode: Callable[[int], Store] | None = None) -> None:
        self.first, self.encode = first, encode
        self._last: tuple[int, Store] | None = None

    def at(self, epoch: int) -> Store:
        """The examples as that epoch has them."""
        if self.encode is None:
            return self.first
        if self._last is None or self._last[0] != epoch:
            self._last = epoch, self.encode(epoch)
        return self._last[1]
