"""Read files under limits: refuse gzip data with an extreme ratio, and files that do not fit into memory."""

import gzip
import io
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, cast

from atento.errors import DataError

WINDOW = 32 << 20  # bytes between two checks
RATIO = 200  # text is compressed 3 to 20 times, very repetitive tables about 100 times; deflate reaches 1,032


class LimitedReader(io.RawIOBase):
    """The bytes of a file, decompressed if it is gzip, with a check every 32 MiB.

    Raises:
        DataError: the data were compressed more than 200 times, or more was read than memory is free.
    """

    def __init__(self, packed: BinaryIO, name: str, *, unpack: bool) -> None:
        super().__init__()
        self._packed, self._name, self._unpack = packed, name, unpack
        self._bytes = cast(BinaryIO, gzip.GzipFile(fileobj=packed, mode="rb")) if unpack else packed
        self._read = self._checked = self._checked_packed = 0

    def readable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """The number of bytes read, which errors name."""
        return self._read

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read the next bytes into `buffer` and return their number."""
        count: int = self._bytes.readinto(buffer)  # type: ignore[attr-defined]
        self._read += count
        if self._read - self._checked >= WINDOW:
            self._check()
        return count

    def _check(self) -> None:
        unpacked, packed = self._read - self._checked, self._packed.tell() - self._checked_packed
        self._checked, self._checked_packed = self._read, self._packed.tell()
        if self._unpack and unpacked > RATIO * packed:
            raise DataError(
                f"{self._name}: the gzip data grow more than {RATIO} times when they are unpacked "
                f"({unpacked >> 20} MiB out of {packed >> 10} KiB), which text does not; unpack the file first if this "
                "is intended"
            )
        free = free_memory()
        if free is not None and free < self._read:
            raise DataError(
                f"{self._name}: does not fit into memory: {self._read >> 20} MiB are read and {free >> 20} MiB of "
                "memory are free; give a smaller file"
            )


def limited(packed: BinaryIO, name: str, *, unpack: bool) -> BinaryIO:
    """An open file as a buffered stream with the limits of `LimitedReader`."""
    return io.BufferedReader(LimitedReader(packed, name, unpack=unpack), 1 << 18)


def free_memory() -> int | None:
    """The number of bytes that this process can still allocate; None if the system does not report it (macOS)."""
    if not sys.platform.startswith("linux"):
        return None
    left = []
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        left.append(1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]))
    with suppress(OSError, ValueError):  # the limit of a container; "max" if it has none
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text(encoding="ascii"))
        used = int((group / "memory.current").read_text(encoding="ascii"))
        pairs = (line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
        cached = sum(int(value) for key, value in pairs if key in ("active_file", "inactive_file"))
        left.append(limit - used + cached)
    with suppress(OSError, ValueError):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
            left.append(limit - pages * os.sysconf("SC_PAGE_SIZE"))
    return max(0, min(left)) if left else None
