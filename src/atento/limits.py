"""Files read under limits: gzip data that grow out of all proportion and files that memory cannot hold are refused."""

import gzip
import io
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, cast

from atento.errors import DataError

WINDOW = 32 << 20  # bytes between two looks
RATIO = 200  # text is packed 3 to 20 times, the most repetitive tables some 100; deflate reaches 1,032


class LimitedReader(io.RawIOBase):
    """A file's bytes, unpacked if they are gzip, looked at every 32 MiB.

    Raises:
        DataError: 32 MiB came out of less than a 200th as many packed bytes; or more was read than memory is left.
    """

    def __init__(self, packed: BinaryIO, name: str, *, unpack: bool) -> None:
        super().__init__()
        self._packed, self._name, self._unpack = packed, name, unpack
        self._bytes = cast(BinaryIO, gzip.GzipFile(fileobj=packed, mode="rb")) if unpack else packed
        self._read = self._seen = self._seen_packed = 0

    def readable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """How many bytes were handed out: what errors name."""
        return self._read

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """The next bytes; how many."""
        count: int = self._bytes.readinto(buffer)  # type: ignore[attr-defined]
        self._read += count
        if self._read - self._seen >= WINDOW:
            self._look()
        return count

    def _look(self) -> None:
        grown, packed = self._read - self._seen, self._packed.tell() - self._seen_packed
        self._seen, self._seen_packed = self._read, self._packed.tell()
        if self._unpack and grown > RATIO * packed:
            raise DataError(
                f"{self._name}: the gzip data grow more than {RATIO} times when they are unpacked "
                f"({grown >> 20} MiB out of {packed >> 10} KiB), which text does not; unpack the file first if it is "
                "meant to"
            )
        free = free_memory()
        if free is not None and free < self._read:
            raise DataError(
                f"{self._name}: does not fit into memory: {self._read >> 20} MiB of it are read and {free >> 20} MiB "
                "of memory are free; give a smaller file"
            )


def limited(packed: BinaryIO, name: str, *, unpack: bool) -> BinaryIO:
    """An open file as a buffered stream under the limits of `LimitedReader`."""
    return io.BufferedReader(LimitedReader(packed, name, unpack=unpack), 1 << 18)


def free_memory() -> int | None:
    """How many bytes this process may still take, as far as the system tells; None where it does not (macOS)."""
    if not sys.platform.startswith("linux"):
        return None
    left = []
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        left.append(1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]))
    with suppress(OSError, ValueError):  # a container's own limit, "max" where it has none
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
