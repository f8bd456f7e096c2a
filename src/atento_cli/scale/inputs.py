"""An input file of any size, local or behind an fsspec URL: what identifies it, its blocks, and their lines."""

import hashlib
import io
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, cast

from atento.base.errors import BadLine, DataError, MissingPartError, UsageError, install_hint
from atento.base.limits import limited, open_plain
from atento.data.files.source_lines import open_binary, read_bytes, scan_many
from atento_cli.scale.columns import ParquetTexts, ending, parser
from atento_cli.scale.line_blocks import Block, Check, Plan, Reading, plan_lines, plan_rows, text_of

_PART = 1 << 20  # bytes that are hashed at once
_VERSIONS = ("ETag", "etag", "md5Hash", "content_md5", "checksum", "LastModified", "last_modified", "mtime", "created")


@dataclass(frozen=True)
class Input:
    """A file of lines (`.gz` and `.zst` too) or of rows (`.parquet`)."""

    path: str  # where it is: a local path, or a URL of fsspec (`s3://bucket/file`)
    # keys, numbers or names of columns; empty: the whole line, or the only column of strings
    columns: tuple[str, ...] = ()
    name: str = ""  # its name in messages; empty: its path

    @property
    def shown(self) -> str:
        """Its name in messages."""
        return self.name or self.path

    @property
    def is_parquet(self) -> bool:
        """Whether its texts are rows of a Parquet file."""
        return ending(self.path) == ".parquet"

    @property
    def is_packed(self) -> bool:
        """Whether it is compressed, so that it can only be read from its beginning."""
        return self.path.lower().endswith((".gz", ".zst"))

    def version(self) -> dict[str, Any]:
        """Its size in bytes, and its time or its tag: what changes when the file changes.
        Raises DataError: there is no such file.
        """
        if not self._is_url:
            with open_binary(Path(self.path), self.shown, streamed=True):
                status = Path(self.path).stat()
            return {"size": status.st_size, "modified": status.st_mtime_ns}
        system, path = self._system
        try:
            about: Mapping[str, object] = system.info(path)
        except (OSError, ValueError) as error:
            raise self._unreadable(error) from None
        named = {key: str(about[key]) for key in _VERSIONS if about.get(key) is not None}
        return {"size": about.get("size"), **named}

    def plan(self, reading: Reading) -> Plan:
        """Cut it into blocks; it is read once, a part at a time. Raises DataError: a line breaks a rule."""
        reading = replace(reading, parse=parser(self.path, self.columns))
        if not self.is_parquet:
            with self._opened() as stream:
                return plan_lines(stream, self.shown, reading)
        with self._open() as stream:
            digest = hashlib.sha256()
            while raw := read_bytes(stream, self.shown, _PART):
                digest.update(raw)
        texts = self.parquet()
        return Plan(plan_rows(texts.all(), len(texts), self.shown, reading), digest.hexdigest())

    def parquet(self) -> ParquetTexts:
        """Its rows, if it is a Parquet file."""
        return ParquetTexts(self._open(), self.shown, self.columns)

    def bytes_in_order(self, blocks: Iterator[Block]) -> Iterator[bytes]:
        """The bytes of blocks of a compressed file, in rising order; those between are read over.
        Raises DataError: the file cannot be read to the end of a block.
        """
        with self._opened() as stream:
            position = 0
            for block in blocks:
                while position < block.offset:
                    position += len(self._exactly(stream, min(_PART, block.offset - position)))
                yield self._exactly(stream, block.size)
                position += block.size

    def bytes_of(self, block: Block) -> bytes:
        """The bytes of a block of a file that can be read anywhere.
        Raises DataError: the file has become shorter, or cannot be read.
        """
        if not self._is_url:
            with self._open() as stream:
                stream.seek(block.offset)
                return self._exactly(stream, block.size)
        system, path = self._system
        try:
            raw: bytes = system.cat_file(path, start=block.offset, end=block.offset + block.size)
        except (OSError, ValueError) as error:
            raise self._unreadable(error) from None
        return self._exactly(io.BytesIO(raw), block.size)

    def texts(self, block: Block, raw: bytes) -> Iterator[str | DataError]:
        """The lines of a block from its bytes; a line that breaks a rule of all files is the error."""
        for lines in scan_many(io.BytesIO(raw), self.shown, block.first - 1, block.offset):
            if isinstance(lines, DataError):
                yield lines
            else:
                yield from lines

    def _exactly(self, stream: BinaryIO, size: int) -> bytes:
        raw = read_bytes(stream, self.shown, size)
        if len(raw) != size:
            raise DataError(f"{self.shown}: the file has changed while it was read: it is shorter than it was")
        return raw

    @property
    def _is_url(self) -> bool:
        return "://" in self.path

    def _opened(self) -> AbstractContextManager[BinaryIO]:
        """The unpacked content."""
        return self._unpacked() if self._is_url else open_binary(Path(self.path), self.shown, streamed=True)

    @contextmanager
    def _unpacked(self) -> Iterator[BinaryIO]:
        packed = self.path[self.path.rfind(".") :].lower() if self.is_packed else ""
        with self._open() as stream:
            yield limited(stream, self.shown, packed_as=packed, streamed=True)

    def _open(self) -> BinaryIO:
        """The content as it is stored; can be read anywhere."""
        try:
            if not self._is_url:
                return open_plain(self.path)
            system, path = self._system
            return cast(BinaryIO, system.open(path, "rb"))
        except (OSError, ValueError) as error:
            raise self._unreadable(error) from None

    @cached_property
    def _system(self) -> tuple[Any, str]:
        """The file system of a URL, and the path in it.
        Raises MissingPartError: the package for it is not installed. UsageError: no such kind of URL.
        """
        try:
            from fsspec.core import url_to_fs  # late: an extra
        except ImportError:
            raise MissingPartError(f"{self.shown}: URLs need fsspec: {install_hint('remote')}") from None
        try:
            system, path = url_to_fs(self.path)
        except ImportError as error:  # says which package
            raise MissingPartError(f"{self.shown}: {error}") from None
        except ValueError as error:
            raise UsageError(f"{self.shown}: no such kind of URL: {error}") from None
        return system, path

    def _unreadable(self, error: Exception) -> DataError:
        reason = "no such file" if isinstance(error, FileNotFoundError) else str(error) or type(error).__name__
        return DataError(f"{self.shown}: cannot be read: {reason}")


class BlockReader:
    """Reads the lines of blocks in a worker; a Parquet file stays open."""

    def __init__(self, source: Input) -> None:
        self._source = source
        self._parse = parser(source.path, source.columns)
        self._parquet: ParquetTexts | None = None

    def lines(self, block: Block, raw: bytes, bad: list[str] | None, check: Check | None = None) -> list[str]:
        """The texts of a block, a line each.

        Args:
            block: a block of the input.
            raw: its bytes, if the file is compressed; else empty.
            bad: gets the messages of bad lines, which become empty; None: they are errors, found while planning.
            check: as in `Reading`; used with `bad`.

        Raises DataError: a bad line, or the file has changed.
        """
        source = self._source
        name = source.shown
        items: Iterator[str | DataError]
        if source.is_parquet:
            items = self._rows(block)
        else:
            items = source.texts(block, raw or (source.bytes_of(block) if block.size else b""))
        lines = []
        for number, item in enumerate(items, block.first):
            try:
                if isinstance(item, DataError):
                    raise item
                position = f"{name}:{number}"
                lines.append(text_of(item, position, self._parse, check if bad is not None else None))
            except DataError as error:
                if bad is None:
                    raise
                bad.append(str(error))
                lines.append(BadLine())
        if len(lines) != block.lines:
            raise DataError(f"{name}: the file has changed: {block.range} has {len(lines):,} lines now")
        return lines

    def _rows(self, block: Block) -> Iterator[str | DataError]:
        if self._parquet is None:
            self._parquet = self._source.parquet()
        for number, text in enumerate(self._parquet.rows(block.first - 1, block.lines), block.first):
            yield DataError(f"{self._source.shown}:{number}: a NUL character") if "\0" in text else text
