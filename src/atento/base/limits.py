"""Read files under limits, by paths alone: plain files, small ones of a known size, packed ones that do not swell."""

import errno
import gzip
import io
import os
import stat
import sys
from collections.abc import Iterable
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from atento.base.errors import DataError, MissingPartError, UsageError, install_hint

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

WINDOW = 32 << 20  # bytes between two checks
_PACKED = 1 << 17  # compressed bytes that are read at a time
_FROM_SHELL = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
SMALL = 64 << 20  # bytes of a file that is read whole: configurations, indexes, records of a run
_PART = 16 << 20  # bytes; parts of this size may be compressed as much as they like
RATIO = 200  # text is compressed 3 to 20 times, very repetitive tables about 100 times; deflate reaches 1,032


def path_of(value: object, name: str, kind: str) -> Path:
    """Convert an argument to a path.

    Args:
        value: the value of the argument.
        name: the name of the argument, for the message.
        kind: what the argument must be, for the message, such as "a folder".

    Raises UsageError: the value is neither a string nor a path.
    """
    if not isinstance(value, str | PathLike):
        raise UsageError(f"`{name}` must be {kind}: got {type(value).__name__} {value!r:.40}")
    return Path(value)


def open_plain(path: str | Path) -> io.BufferedReader:
    """Open a plain file, or a link to one; a pipe or a device in its place is refused without waiting for it.

    What the shell hands to a command (`/dev/stdin`, `<(...)`) may be a pipe: the user named it.
    Raises OSError: it cannot be opened, or is no plain file; its `strerror` says which.
    """
    if str(path).startswith(_FROM_SHELL):
        return Path(path).open("rb")
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise OSError(errno.EINVAL, "it is a pipe or a device, and a plain file is needed", str(path))
    return os.fdopen(fd, "rb")


def read_plain(path: str | Path, limit: int = SMALL) -> bytes:
    """The content of a plain file of at most `limit` bytes.
    Raises OSError: it cannot be read, is no plain file, or is longer; its `strerror` says which.
    """
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, and {limit:,} are the most", str(path))
        return file.read()


def read_plain_text(path: str | Path, limit: int = SMALL) -> str:
    """The content of such a file as text; line ends become newlines, as `Path.read_text` has them.
    Raises OSError: as `read_plain`. UnicodeDecodeError: it is not UTF-8.
    """
    return io.TextIOWrapper(io.BytesIO(read_plain(path, limit)), encoding="utf-8").read()


class LimitedReader(io.RawIOBase):
    """The bytes of a file, decompressed if it is gzip or Zstandard, with a check every 32 MiB.

    Raises:
        DataError: the data were compressed more than 200 times, or more was read than memory is free.
    """

    def __init__(self, packed: BinaryIO, name: str, kind: str, *, streamed: bool) -> None:
        super().__init__()
        self._packed, self._name, self._unpack, self._streamed = packed, name, kind in (".gz", ".zst"), streamed
        self._bytes, self._format = cast(io.BufferedIOBase, packed), "gzip" if kind == ".gz" else "Zstandard"
        if kind == ".gz":
            self._bytes = cast(io.BufferedIOBase, gzip.GzipFile(fileobj=packed, mode="rb"))
        elif kind == ".zst":
            self._bytes = cast(io.BufferedIOBase, ZstandardReader(packed, name))
        self._read = self._checked = self._checked_packed = 0

    def readable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """The number of bytes read, which errors name."""
        return self._read

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Read the next bytes into `buffer` and return their number."""
        count = self._bytes.readinto(buffer)
        self._read += count
        if self._read - self._checked < WINDOW:
            return count
        unpacked, packed = self._read - self._checked, self._packed.tell() - self._checked_packed
        self._checked, self._checked_packed = self._read, self._packed.tell()
        if self._unpack and unpacked > RATIO * packed:
            raise DataError(
                f"{self._name}: the {self._format} data grow more than {RATIO} times when they are unpacked "
                f"({unpacked >> 20} MiB out of {packed >> 10} KiB), which text does not; unpack the file first if this "
                "is intended"
            )
        free = None if self._streamed else free_memory()
        if free is not None and free < self._read:
            raise DataError(
                f"{self._name}: does not fit into memory: {self._read >> 20} MiB are read and {free >> 20} MiB of "
                "memory are free; give a smaller file"
            )
        return count


class ZstandardReader(io.RawIOBase):
    """The bytes of a file that Zstandard compressed, of one frame or several.

    Raises:
        MissingPartError: the package `zstandard` is not installed.
        DataError: while reading, the data are damaged or cut short.
    """

    def __init__(self, packed: BinaryIO, name: str) -> None:
        super().__init__()
        try:
            import zstandard  # late: an extra
        except ImportError:
            raise MissingPartError(f"{name}: .zst needs zstandard: {install_hint('data')}") from None
        self._packed, self._name, self._library = packed, name, zstandard
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._fed = False  # whether the frame has begun
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Read the next bytes into `buffer` and return their number."""
        while not self._ready:
            packed = self._frame.unused_data if self._frame.eof else self._packed.read(_PACKED)
            if self._frame.eof:
                packed = packed or self._packed.read(_PACKED)
                self._frame, self._fed = self._library.ZstdDecompressor().decompressobj(), False
            if not packed:
                if self._fed:
                    raise DataError(f"{self._name}: the Zstandard data is cut short; the file is incomplete")
                return 0
            try:
                self._ready, self._fed = memoryview(self._frame.decompress(packed)), True
            except self._library.ZstdError as error:
                raise DataError(f"{self._name}: the Zstandard data is damaged: {error}") from None
        view = memoryview(buffer)
        count = min(len(view), len(self._ready))
        view[:count], self._ready = self._ready[:count], self._ready[count:]
        return count


def limited(packed: BinaryIO, name: str, *, packed_as: str, streamed: bool = False) -> BinaryIO:
    """An open file as a buffered stream with the limits of `LimitedReader`.

    Args:
        name: its name in messages.
        packed_as: `.gz` or `.zst` to decompress it; anything else is read as it is.
        streamed: whether the content may be larger than the memory, because it is not kept.
    """
    return io.BufferedReader(LimitedReader(packed, name, packed_as, streamed=streamed), 1 << 18)


def refuse_swelling(name: str, parts: Iterable[tuple[str, int, int]]) -> None:
    """Refuse a file whose parts are too large, by the sizes in its directory; parts below 16 MiB may be of any ratio.

    Args:
        name: its name in messages.
        parts: what is unpacked together: the name of each part, its bytes unpacked, and its bytes in the file.

    Raises DataError: a part grows more than 200 times, or all of them are more than the memory that is free.
    """
    total, free = 0, free_memory()
    for part, unpacked, packed in parts:
        total += unpacked
        if unpacked > max(_PART, RATIO * packed):
            raise DataError(
                f"{name}: {part} grows more than {RATIO} times when it is unpacked "
                f"({unpacked >> 20} MiB out of {packed >> 10} KiB), which texts and tables do not"
            )
    if free is not None and total > free:
        raise DataError(f"{name}: does not fit into memory: {total >> 20} MiB unpacked, and {free >> 20} MiB are free")


def refuse_swelling_rows(name: str, footer: Any) -> None:
    """Refuse a Parquet file whose groups of rows are too large, by the sizes in its footer; a row has 8 bytes or more.
    Raises DataError: as `refuse_swelling`.
    """
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        columns = [group.column(place) for place in range(group.num_columns)]
        sizes = [(max(one.total_uncompressed_size, 8 * one.num_values), one.total_compressed_size) for one in columns]
        refuse_swelling(name, [(f"column {one.path_in_schema!r}", *size) for one, size in zip(columns, sizes)])


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
