"""The most memory that the tensors of a computation hold at a time, and its products of matrices."""

import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_PRODUCTS = (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm, torch.ops.aten.baddbmm)


class PeakMemory(TorchDispatchMode):
    """Counts, inside its context, the bytes of the storages that operations allocate, until they are freed.

    What an operation allocates and frees inside itself is not counted.

    Args:
        present: tensors whose storages exist already; views of them are not counted.

    Attributes:
        peak: the most bytes at a time.
        products: the matrix products of different shapes that were computed, each an operation and its shapes.
    """

    def __init__(self, present: Iterable[Tensor] = ()) -> None:
        TorchDispatchMode.__init__(self)
        self.peak = self._live = 0
        self.products: set[tuple[Any, ...]] = set()
        self._known = {tensor.untyped_storage().data_ptr() for tensor in present}

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[object, ...] = (), kwargs: Mapping[str, object] | None = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in _PRODUCTS:
            self.products.add((func, *((*x.shape, *x.stride()) for x in args if isinstance(x, Tensor))))
        for value in tree_leaves(result):
            if isinstance(value, Tensor):
                self._count(value.untyped_storage())
        return result

    def _count(self, storage: UntypedStorage) -> None:
        address, size = storage.data_ptr(), storage.nbytes()
        if size and address not in self._known:
            self._known.add(address)
            self._live += size
            self.peak = max(self.peak, self._live)
            weakref.finalize(storage, self._free, address, size)

    def _free(self, address: int, size: int) -> None:
        self._known.discard(address)
        self._live -= size
