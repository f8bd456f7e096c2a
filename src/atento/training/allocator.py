"""What a step leaves for the next one: freed memory, and the programs that oneDNN wrote for products."""

import ctypes
import ctypes.util
import os
import sys

from atento.errors import UsageError

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


def keep_freed_memory() -> bool:
    """Ask glibc to keep up to 4 GiB of freed memory; True if it did.

    A training step allocates and frees the same large blocks again and again. By default glibc gives each back to
    the system, and every step pays for fresh zeroed pages: about a third of the time of a small model on a CPU.
    """
    if not sys.platform.startswith("linux"):
        return False
    name = ctypes.util.find_library("c")
    libc = ctypes.CDLL(name) if name else None
    if libc is None or not hasattr(libc, "mallopt"):  # musl has no mallopt
        return False
    return bool(libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)) and bool(libc.mallopt(_M_TRIM_THRESHOLD, (2 << 30) - 1))


def check_memory(n_parameters: int, device: str) -> None:
    """Raises UsageError: a machine that cannot even hold the weights, their gradients and AdamW's two averages."""
    if device != "cpu" or not hasattr(os, "sysconf"):
        return
    has = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    needs = 4 * 4 * n_parameters
    if needs > has:
        raise UsageError(
            f"{n_parameters:,} parameters need {needs / 2**30:.0f} GiB to be trained, before any text is read: this "
            f"machine has {has / 2**30:.0f} GiB; make `network` smaller"
        )


def keep_programs() -> None:
    """Ask oneDNN to keep 2,048 programs, about a quarter of a MiB each, instead of 1,024.

    It writes one for every shape of a product, and batches have some thousand shapes between them. To be called before
    the process makes its first product; a choice in the environment wins.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "2048")
