"""Memory of a process: what it keeps of freed memory and of oneDNN's kernels, what fits, and the peak of tensors."""

import ctypes
import os
import sys
import time
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from atento.base.errors import UsageError

KERNELS, KERNELS_OF_NEW_SHAPES = 1024, 256  # compiled kernels that oneDNN caches
CAPACITY = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"  # environment variable of oneDNN: how many it caches
KERNEL_BYTES = 288 << 10  # about the size of each
_PAUSE, _ZEROED = 5.0, 2 << 30  # seconds between two returns at least; bytes of new pages a second
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


def raise_trim_threshold() -> bool:
    """Ask glibc to keep up to 2 GiB of freed memory; True if it did.

    A training step allocates and frees the same large blocks as the step before. By default, glibc returns them to the
    system, and each step waits for new zeroed pages: about a third of the time of a small model on a CPU.
    """
    libc = _libc()
    if libc is None or not hasattr(libc, "mallopt"):  # musl has no mallopt
        return False
    return bool(libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)) and bool(libc.mallopt(_M_TRIM_THRESHOLD, (2 << 30) - 1))


def check_memory(n_parameters: int, needs: int, device: str) -> None:
    """Check that the memory holds the bytes of weights, gradients and optimizer state.
    Raises UsageError: the machine has less memory than that.
    """
    if device != "cpu" or not hasattr(os, "sysconf"):
        return
    has = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")  # bytes
    if needs > has:
        raise UsageError(
            f"{n_parameters:,} parameters need {needs / 2**30:.0f} GiB to be trained, before any text is read: this "
            f"machine has {has / 2**30:.0f} GiB; make `network` smaller"
        )


def set_kernel_cache_size(kernels: int = KERNELS) -> None:
    """Let oneDNN cache so many compiled kernels, and PyTorch 8 products in each thread.

    oneDNN compiles one for each shape of a matrix product: about a millisecond and 0.28 MiB. Where most batches have
    another shape than those before, as small updates of pairs do, kernels are used again within an update alone; more
    of them take memory, lie between the blocks that updates free, and save no time. PyTorch would cache 1,024 products
    in each thread with the memory that each works in: in fine-tuning MiniLM, about 5 MiB for each shape of a batch. 8
    are as fast, since a product is made of its kernel in microseconds.

    Call this before the first matrix product of the process. A value in the environment takes precedence.
    """
    os.environ.setdefault(CAPACITY, str(kernels))
    os.environ.setdefault("LRU_CACHE_CAPACITY", "8")


def trim_memory() -> None:
    """Ask glibc to return freed memory to the system."""
    libc = _libc()
    if libc is not None and hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)  # 0: all of it, nothing kept in reserve


class MallocTrimmer:
    """Returns freed memory to the system between updates, in at most about a hundredth of the time.

    Blocks of many sizes leave gaps, so a process that keeps all of it grows for hundreds of updates: in fine-tuning
    MiniLM from 980 to 1,310 MiB. The next update waits for new pages in place of those that were returned.
    """

    def __init__(self) -> None:
        self._due = 0.0

    def between_updates(self) -> None:
        """Return what is free, if it is time."""
        if (begun := time.monotonic()) < self._due:
            return
        before = resident()
        trim_memory()
        seconds = time.monotonic() - begun + max(0, before - resident()) / _ZEROED  # and that of new pages
        self._due = begun + max(_PAUSE, 100 * seconds)  # a hundredth of the time, at most


def _libc() -> ctypes.CDLL | None:
    """The C library of Linux; None on other systems."""
    return ctypes.CDLL(None) if sys.platform.startswith("linux") else None  # what this process has loaded


def resident() -> int:
    """Return the memory of this process in bytes; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])  # resident pages
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


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
        self._known = {tensor.untyped_storage().data_ptr() for tensor in present}  # storages, not views of them

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[object, ...] = (), kwargs: Mapping[str, object] | None = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in _PRODUCTS:
            self.products.add((func, *((*x.shape, *x.stride()) for x in args if isinstance(x, Tensor))))
        for value in tree_leaves(result):
            if not isinstance(value, Tensor):
                continue
            storage = value.untyped_storage()
            address, size = storage.data_ptr(), storage.nbytes()
            if size and address not in self._known:  # an address that is known is a view, or was counted
                self._known.add(address)
                self._live += size
                self.peak = max(self.peak, self._live)
                weakref.finalize(storage, self._free, address, size)  # when the last view is gone
        return result

    def _free(self, address: int, size: int) -> None:
        self._known.discard(address)
        self._live -= size


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory ran out: that of CUDA, of Python, or of PyTorch's allocator on a CPU."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(
        words in text
        for words in ("defaultcpuallocator", "out of memory", "cannot allocate memory", "bad_alloc", "start new thread")
    )
