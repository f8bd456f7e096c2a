"""Bytes to lines of text: one set of rules for every file that is read line by line, and for standard input."""

import gzip
import io
import stat
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from atento.base.errors import BadLine, DataError, similar_file
from atento.base.limits import limited
from atento.data.files.encodings import HEAD, OTHER_MARKS, encoding_of, recoded, say_found

LINE_LIMIT = 16 * 1024 * 1024  # bytes; one broken file must not fill the memory
_PART = 1 << 20  # bytes that are decoded at once
_BOM = b"\xef\xbb\xbf"
_GZIP, _ZSTD, _PARQUET, _ZIP = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1", b"PK\x03\x04"


def scan(stream: BinaryIO, name: str, number: int = 0, offset: int = 0) -> Iterator[str | DataError]:
    """Yield each line as it arrives; a line that breaks a rule is yielded as the error it would raise.

    The bytes are split at newlines only, one trailing carriage return is removed, a byte order mark is removed once,
    and the rest must be UTF-8 without NUL, at most `LINE_LIMIT` bytes a line. A file whose lines end with carriage
    returns alone would be one line, and is refused.

    Args:
        stream: a binary stream; read with `readline`, so that a line is yielded before the next one arrives.
        name: name of the stream in errors.
        number, offset: lines and bytes of the file before the stream, for errors.

    Raises:
        DataError: an error of the whole file: it is UTF-16, UTF-32 or gzip, its lines end with carriage returns alone,
            or it cannot be read to its end.
    """
    while raw := _read(stream, name):
        number += 1
        start, offset = offset, offset + len(raw)  # bytes before this line
        if number == 1:
            _refuse_other_formats(raw, name)
            # several in the first line, or one where no newline follows, end lines
            if raw.rstrip(b"\r\n").count(b"\r") > raw.endswith(b"\n"):
                rule = "lines end with carriage returns alone, and must end with newlines"
                raise DataError(f"{name}: {rule} (`tr '\\r' '\\n'` converts it)")
            if raw.startswith(_BOM):
                raw, start = raw[3:], 3  # bytes of the byte order mark
                if not raw:
                    return  # a byte order mark alone is an empty file
        if raw.endswith(b"\n"):
            raw = raw[:-1]
        elif len(raw) >= LINE_LIMIT + 2:  # + 2: the line end, "\r\n"
            yield _too_long(name, number)  # before the remaining line is skipped, which may be endless
            while more := _read(stream, name):
                offset += len(more)
                if more.endswith(b"\n"):
                    break
            continue
        if raw.endswith(b"\r"):
            raw = raw[:-1]
        if len(raw) > LINE_LIMIT:
            yield _too_long(name, number)
            continue
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            yield _not_utf8(raw, name, number, start, error.start)
            continue
        yield _nul(raw, name, number, start) if "\0" in text else text


def scan_many(stream: BinaryIO, name: str, number: int = 0, offset: int = 0) -> Iterator[list[str] | DataError]:
    """Yield the lines of a file as `scan` does, many at a time, which is many times faster.

    About 1 MiB is decoded and split at once; where a line of it may break a rule, `scan` reads it.
    """
    while raw := read_bytes(stream, name, _PART):
        raw += b"" if raw.endswith(b"\n") else _read(stream, name)  # up to the end of a line
        if len(raw) > LINE_LIMIT:  # perhaps a line without an end, which is not read whole
            yield from _listed(scan(cast(BinaryIO, _Continued(raw, stream)), name, number, offset))
            return
        lines = _decoded(raw) if number else None  # not of the first lines, which may show another format
        yield from [lines] if lines is not None else _listed(scan(io.BytesIO(raw), name, number, offset))
        number, offset = number + raw.count(b"\n") + (not raw.endswith(b"\n")), offset + len(raw)


def _listed(lines: Iterator[str | DataError]) -> Iterator[list[str] | DataError]:
    return (line if isinstance(line, DataError) else [line] for line in lines)


class _Continued:
    """A stream that begins with some bytes that were read from it."""

    def __init__(self, begin: bytes, stream: BinaryIO) -> None:
        self._begin, self._stream = io.BytesIO(begin), stream

    def readline(self, size: int) -> bytes:
        """Return the bytes up to the end of the line, at most `size`."""
        line = self._begin.readline(size)
        if line.endswith(b"\n") or len(line) == size:
            return line
        return line + self._stream.readline(size - len(line))


def _decoded(raw: bytes) -> list[str] | None:
    """Return the lines of a part of a file that is not its first; None: one may break a rule."""
    if b"\0" in raw:
        return None
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return None
    lines = text.split("\n")
    if not lines[-1]:  # the text ends with a line end
        lines.pop()
    return [line.removesuffix("\r") for line in lines] if "\r" in text else lines


def iter_lines(stream: BinaryIO, name: str, *, bad: list[str] | None = None) -> Iterator[str]:
    """Yield each line of a binary stream as it arrives (the rules of `scan`), empty lines included.

    Args:
        bad: None raises at the first bad line. A list takes the messages instead, and the bad line becomes an empty
            one, so that line N of the output still corresponds to line N of the input.

    Raises:
        DataError: names the input, the line, the byte and the rule.
    """
    for line in scan(stream, name):
        if isinstance(line, DataError):
            if bad is None:
                raise line
            bad.append(str(line))
            line = BadLine()
        yield line


def read_lines(path: str | Path, *, bad: list[str] | None = None) -> list[str]:
    """Every line of a file (`.gz` too), or of standard input for `-`; no final newline gives no extra line.

    Args:
        path: a file, or `-`.
        bad: as for `iter_lines`.

    Raises:
        DataError: missing, not a regular file, or a line that breaks a rule; names file, line and byte.
    """
    if str(path) == "-":
        return list(iter_lines(cast(BinaryIO, sys.stdin.buffer), display_name(path), bad=bad))
    with open_binary(Path(path), str(path), encoding=None) as stream:
        return list(iter_lines(stream, str(path), bad=bad))


@contextmanager
def open_binary(path: Path, name: str, *, streamed: bool = False, encoding: str | None = "") -> Iterator[BinaryIO]:
    """Open a regular file for reading, unpacking `.gz` and `.zst` on the way, under the limits of `atento.base.limits`.

    Args:
        path: the file.
        name: its name in messages.
        streamed: the content is not kept, so that it may be larger than the memory.
        encoding: of a text file, which is read as UTF-8; None: found in the file, and said; "": the bytes as they are.

    Raises:
        DataError: missing, a directory, a pipe or a device, not readable, or named `.gz` or `.zst` without being so
            compressed. While it is read: compressed data that unpack to far more than their size, or, unless
            `streamed`, to more than the memory.
        MissingPartError: a `.zst` file, and the package `zstandard` is not installed.
    """
    if encoding is None and (encoding := found_encoding(path, name)):
        say_found(name, {"encoding": encoding})
    if not name:
        raise DataError("a file name must not be empty: got ''; `-` reads standard input")
    try:
        mode = path.stat().st_mode  # checked before opening: opening a pipe would block forever
    except FileNotFoundError:
        here = Path(name).is_file()  # but the recipe is elsewhere
        hint = "; paths of a recipe's data begin at its folder, not here" if here else similar_file(path)
        raise DataError(f"{name}: no such file (looked for {path.absolute()}){hint}") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{name}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if stat.S_ISDIR(mode):
        raise DataError(f"{name}: is a directory, and a file is needed")
    if not stat.S_ISREG(mode):
        raise DataError(f"{name}: is a pipe or a device, and a regular file is needed; what reads lines takes `-`")
    try:
        raw = path.open("rb")
    except OSError as error:
        raise DataError(f"{name}: cannot be read: {error.strerror}") from None
    with raw:
        magic = raw.read(4)  # what the first bytes say of a format
        if path.suffix == ".gz" and not magic.startswith(_GZIP):
            raise DataError(f"{name}: is named .gz but is not gzip-compressed")
        if path.suffix == ".zst" and magic != _ZSTD:
            raise DataError(f"{name}: is named .zst but is not compressed by Zstandard")
        raw.seek(0)
        with limited(raw, name, packed_as=path.suffix, streamed=streamed) as stream:
            yield recoded(stream, name, encoding)


def found_encoding(path: Path, name: str) -> str | None:
    """The encoding of a text file by its beginning, as `encoding_of`. Raises DataError: as `open_binary`."""
    with open_binary(path, name, streamed=True) as stream:
        return encoding_of(read_bytes(stream, name, HEAD))


def display_name(path: str | Path) -> str:
    """Return the name of an input for messages: `standard input` for `-`, else its path."""
    return "standard input" if str(path) == "-" else str(path)


def read_text(stream: BinaryIO, name: str) -> str:
    """A whole file as one string, under the rules of `scan` but for the length of a line.
    Raises DataError: not UTF-8, a NUL, or not readable to its end.
    """
    raw = read_bytes(stream, name, -1)
    _refuse_other_formats(raw, name)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        begin = raw.rfind(b"\n", 0, error.start) + 1  # 0 in the first line, where -1 is found
        end = raw.find(b"\n", error.start)
        line = raw[begin : end if end >= 0 else len(raw)]  # the line of the wrong byte
        raise _not_utf8(line, name, raw.count(b"\n", 0, begin) + 1, begin, error.start - begin) from None
    if "\0" in text:
        begin = raw.rfind(b"\n", 0, raw.index(b"\0")) + 1
        end = raw.find(b"\n", begin)
        raise _nul(raw[begin : end if end >= 0 else len(raw)], name, raw.count(b"\n", 0, begin) + 1, begin)
    return text.removeprefix("\ufeff")


def unreadable(name: str, error: Exception) -> DataError:
    """Return the error for a stream that cannot be read to its end: damaged gzip data, a failing disk."""
    if isinstance(error, EOFError):
        return DataError(f"{name}: the gzip data is cut short; the file is incomplete")
    if isinstance(error, (gzip.BadGzipFile, zlib.error)):
        return DataError(f"{name}: the gzip data is damaged: {error}")
    return DataError(f"{name}: cannot be read: {getattr(error, 'strerror', None) or error}")


def read_bytes(stream: BinaryIO, name: str, count: int) -> bytes:
    """Up to `count` bytes of a file that is not read line by line, -1 for all; none at its end.
    Raises DataError: the file cannot be read to its end.
    """
    try:
        return stream.read(count)
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(name, error) from None


def _read(stream: BinaryIO, name: str) -> bytes:
    try:
        return stream.readline(LINE_LIMIT + 2)  # room for the line's own end
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(name, error) from None


def _refuse_other_formats(raw: bytes, name: str) -> None:
    if raw.startswith(_GZIP):
        raise DataError(f"{name}: is gzip-compressed; name it .gz, or unpack it first")
    if raw.startswith(_ZSTD):
        raise DataError(f"{name}: is compressed by Zstandard; name it .zst, or unpack it first")
    if raw.startswith(_PARQUET):
        raise DataError(f"{name}: is a Parquet file; read it with `dataset: {name}` in place of `file`")
    for bom, encoding in OTHER_MARKS:
        if raw.startswith(bom):
            has = f"the file begins with the byte order mark of {encoding}{_convert(encoding)}"
            raise DataError(f"{name}:1: not UTF-8: {has}")


def _too_long(name: str, number: int) -> DataError:
    return DataError(f"{name}:{number}: the line is longer than {LINE_LIMIT // 2**20} MiB")


def _nul(raw: bytes, name: str, number: int, start: int) -> DataError:
    if start == 0 and raw.startswith(_ZIP):
        other = "a zip archive; name a workbook .xlsx and a document .docx, or unpack it first"
        book = "a workbook, and lines of text are read here" if name.lower().endswith(".xlsx") else other
        return DataError(f"{name}: is {book}")
    at = raw.index(b"\0")
    encoding = _wide(raw)
    guess = f"; it looks like {encoding}{_convert(encoding)}" if encoding else ""
    return DataError(f"{name}:{number}: a NUL character at byte {start + at} of the file{guess}")


def _not_utf8(raw: bytes, name: str, number: int, start: int, at: int) -> DataError:
    if start == 0 and raw.startswith(_ZIP):
        return _nul(raw, name, number, start)
    encoding = _wide(raw)
    if encoding is None and not raw.decode("utf-8", errors="ignore").isascii():
        guess = "; the rest of the line is UTF-8, so the text is damaged here"
    else:
        # ISO-8859-1 has control characters where WINDOWS-1252 has the quotes and dashes that a later line may have
        guess = f"; it looks like {encoding or 'WINDOWS-1252'}{_convert(encoding or 'WINDOWS-1252')}"
    return DataError(f"{name}:{number}: not UTF-8: byte 0x{raw[at]:02x} at byte {start + at} of the file{guess}")


def _convert(encoding: str) -> str:
    name = encoding.lower()
    way = f"`encoding: {name}` in a recipe's source, or `--reading encoding={name}` of a command, reads it"
    return f" (save it as UTF-8, as `iconv -f {encoding} -t UTF-8` does; {way})"


def _wide(raw: bytes) -> str | None:
    """Guess UTF-16 without a byte order mark, by the NULs that ASCII letters leave at every other byte."""
    if raw.count(0) * 4 < len(raw):
        return None
    return "UTF-16LE" if raw[1::2].count(0) >= raw[0::2].count(0) else "UTF-16BE"
