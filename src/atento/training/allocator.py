"""Memory settings of a process: what it keeps of freed memory and of oneDNN's kernels; whether the weights fit."""

import ctypes
import os
import sys
from pathlib import Path

from atento.errors import UsageError

KERNELS, KERNELS_OF_NEW_SHAPES = 1024, 256  # compiled kernels that oneDNN caches
CAPACITY = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"  # environment variable of oneDNN: how many it caches
KERNEL_BYTES = 288 << 10  # about the size of each
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


def keep_freed_memory() -> bool:
    """Ask glibc to keep up to 2 GiB of freed memory; True if it did.

    A training step allocates and frees the same large blocks as the step before. By default, glibc returns them to the
    system, and each step waits for new zeroed pages: about a third of the time of a small model on a CPU.
    """
    libc = _libc()
    if libc is None or not hasattr(libc, "mallopt"):  # musl has no mallopt
        return False
    return bool(libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)) and bool(libc.mallopt(_M_TRIM_THRESHOLD, (2 << 30) - 1))


def check_memory(n_parameters: int, n_trained: int, device: str) -> None:
    """Check that the memory holds weights, and of those that are trained gradients and AdamW's two running means.

    Raises:
        UsageError: the machine has less memory than that.
    """
    if device != "cpu" or not hasattr(os, "sysconf"):
        return
    has = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    needs = 4 * (n_parameters + 3 * n_trained)
    if needs > has:
        raise UsageError(
            f"{n_parameters:,} parameters need {needs / 2**30:.0f} GiB to be trained, before any text is read: this "
            f"machine has {has / 2**30:.0f} GiB; make `network` smaller"
        )


def keep_kernels(kernels: int = KERNELS) -> None:
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


def return_freed_memory() -> None:
    """Ask glibc to return freed memory to the system."""
    libc = _libc()
    if libc is not None and hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def _libc() -> ctypes.CDLL | None:
    """The C library of Linux; None on other systems."""
    return ctypes.CDLL(None) if sys.platform.startswith("linux") else None  # what this process has loaded


def resident() -> int:
    """Return the memory of this process in bytes; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
