"""What a step leaves for the next one: freed memory, and the programs that oneDNN wrote for products."""

import ctypes
import ctypes.util
import os
import sys

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


def keep_programs() -> None:
    """Ask oneDNN to keep 2,048 programs, about a quarter of a MiB each, instead of 1,024.

    It writes one for every shape of a product, and batches have some thousand shapes between them. To be called before
    the process makes its first product; a choice in the environment wins.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "2048")
