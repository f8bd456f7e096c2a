"""Cuts a stream of lines into blocks in one pass, without keeping it: where each block begins, and the hash of all."""

import hashlib
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import BinaryIO, cast

import numpy as np

from atento.base.errors import DataError
from atento.data.files.source_lines import read_bytes, scan_many

STEP = 1024  # lines; what commands read at a time, so that a block has the batches of the command without a cluster
MOST = 10_000  # blocks of an input whose block size was not given
_PART = 1 << 20  # bytes that are read at once
_HEAD = 4096  # bytes of the beginning that are remembered
_BOM = b"\xef\xbb\xbf"

Check = Callable[[str, str], object]  # (line, file:line) -> raises DataError for a line that the command cannot read
Parse = Callable[[str, str], str]  # (line, file:line) -> the text of it; raises DataError


@dataclass(frozen=True)
class Block:
    """Some lines of an input, one after another.

    Attributes:
        offset, size: where its bytes begin in the unpacked input, and their number; 0 in Parquet files.
    """

    number: int  # of the block, from 0
    first: int  # number of its first line in the input, from 1
    lines: int  # number of its lines
    offset: int
    size: int
    row: int  # number of texts before it, from which the seeds of its texts follow; a line may be several texts

    @property
    def range(self) -> str:
        """Its number and lines, for messages."""
        return f"block {self.number} (lines {self.first:,}-{self.first + self.lines - 1:,})"


@dataclass(frozen=True)
class Plan:
    """The blocks of an input, the SHA-256 of its content, unpacked, and its first line."""

    blocks: tuple[Block, ...]
    sha256: str
    head: str = ""

    @property
    def lines(self) -> int:
        """The number of lines of the input."""
        return sum(block.lines for block in self.blocks)


@dataclass(frozen=True)
class Reading:
    """How the lines of an input are read while it is cut."""

    step: int | None = None  # lines of a block; None: `STEP`, or more where there would be too many blocks
    parse: Parse | None = None  # the text of a line, where that is not the line
    check: Check | None = None  # raises DataError for a text that the command cannot read
    # the number of texts that the command makes of a line, where that is not 1
    rows: Callable[[str], int] | None = None
    skip_bad: bool = False  # bad lines are no errors
    report: Callable[[int], object] = lambda done: None  # called with the bytes (or rows) read so far

    @property
    def unit(self) -> int:
        """Lines between two places where a block may end."""
        return self.step or STEP


def plan_lines(stream: BinaryIO, name: str, reading: Reading) -> Plan:
    """Cut a binary stream of lines into blocks.

    Args:
        stream: read once, from its beginning.
        name: its name in messages.
        reading: how its lines are read.

    Raises DataError: a line breaks a rule; names the file and the line.
    """
    tap = _Tap(stream, reading)
    texts = _Texts(name, reading)
    if reading.skip_bad and reading.rows is None:
        while read_bytes(cast(BinaryIO, tap), name, _PART):
            pass
    else:
        for lines in scan_many(cast(BinaryIO, tap), name):
            texts.add(lines)
    cuts = [offset for offset in tap.cuts if offset < tap.size] if tap.lines else []  # none at the end of the file
    rows = texts.cuts if reading.rows is not None else [reading.unit * n for n in range(len(cuts))]
    return Plan(_blocks(cuts, rows, tap.lines, tap.size, reading), tap.digest.hexdigest(), tap.head)


def plan_rows(batches: Iterable[Sequence[str]], total: int, name: str, reading: Reading) -> tuple[Block, ...]:
    """Cut rows that are read by their numbers (Parquet) into blocks; the texts are read where they must be.

    Args:
        batches: the texts of all rows, in order.
        total: number of rows.
        name: of the input, in messages.
        reading: how the texts are read.

    Raises DataError: a text breaks a rule of the command.
    """
    texts = _Texts(name, reading)
    if reading.rows is not None or (reading.check is not None and not reading.skip_bad):
        for batch in batches:
            texts.add(list(batch))
            reading.report(texts.number)
    starts = [0] * len(range(0, total, reading.unit))  # not used: rows are read by number
    rows = texts.cuts if reading.rows is not None else list(range(0, total, reading.unit))
    return _blocks(starts, rows, total, 0, reading)


def _blocks(offsets: Sequence[int], rows: Sequence[int], lines: int, size: int, reading: Reading) -> tuple[Block, ...]:
    """The blocks between cuts: one for each, or for several in a row where there are too many."""
    unit, count = reading.unit, len(offsets)
    group = 1 if reading.step is not None else -(-count // MOST) or 1  # cuts of a block, rounded up
    blocks = []
    for number, cut in enumerate(range(0, count, group)):
        end, first = cut + group, cut * unit
        until = offsets[end] if end < count else size
        block_lines = min(lines, end * unit) - first
        blocks.append(Block(number, first + 1, block_lines, offsets[cut], until - offsets[cut], rows[cut]))
    return tuple(blocks) or (Block(0, 1, 0, 0, 0, 0),)  # an empty input


class _Tap:
    """A stream that hashes what is read from it, and notes where every unit of lines begins."""

    def __init__(self, stream: BinaryIO, reading: Reading) -> None:
        self._stream, self._unit, self._report = stream, reading.unit, reading.report
        self.digest, self.size = hashlib.sha256(), 0
        self.cuts = array("q", [0])
        self._newlines, self._begin, self._ended = 0, b"", True

    def read(self, size: int) -> bytes:
        """Read up to `size` bytes."""
        return self._noted(self._stream.read(size))

    def readline(self, size: int) -> bytes:
        """Read up to the end of the line, at most `size` bytes."""
        return self._noted(self._stream.readline(size))

    @property
    def lines(self) -> int:
        """The lines read so far; the last one may have no newline. A byte order mark alone is no line."""
        return 0 if self._begin == _BOM and self.size == len(_BOM) else self._newlines + (not self._ended)

    @property
    def head(self) -> str:
        """The first line, or its beginning."""
        return self._begin.removeprefix(_BOM).split(b"\n")[0].decode("utf-8", "replace")

    def _noted(self, raw: bytes) -> bytes:
        if not raw:
            return raw
        self.digest.update(raw)
        if len(self._begin) < _HEAD:
            self._begin = (self._begin + raw)[:_HEAD]
        count, before = raw.count(b"\n"), self._newlines % self._unit  # lines since the last cut
        if before + count >= self._unit:  # most parts have no cut, and only newlines are counted
            ends = np.flatnonzero(np.frombuffer(raw, dtype=np.uint8) == ord("\n")) + 1  # bytes up to each line end
            self.cuts.extend((self.size + ends[self._unit - before - 1 :: self._unit]).tolist())
        self.size, self._newlines, self._ended = self.size + len(raw), self._newlines + count, raw.endswith(b"\n")
        self._report(self.size)
        return raw


class _Texts:
    """Checks the texts of an input in order, and counts the rows before each unit of lines."""

    def __init__(self, name: str, reading: Reading) -> None:
        self._name, self._reading = name, reading
        self.number, self._rows = 0, 0
        self.cuts: list[int] = []

    def add(self, lines: Sequence[str] | DataError) -> None:
        """Take the next lines, or the error of one."""
        reading = self._reading
        if isinstance(lines, DataError):
            if not reading.skip_bad:
                raise lines
            lines = [""]
        if reading.parse is None and reading.check is None and reading.rows is None:
            self.number += len(lines)
            return
        for line in lines:
            if self.number % reading.unit == 0:
                self.cuts.append(self._rows)
            self.number += 1
            try:
                text = text_of(line, f"{self._name}:{self.number}", reading.parse, reading.check)
            except DataError:
                if not reading.skip_bad:
                    raise
                text = ""
            self._rows += 1 if reading.rows is None else reading.rows(text)


def text_of(line: str, position: str, parse: Parse | None, check: Check | None) -> str:
    """The text of a line, which is parsed and checked; a blank line is not.

    Args:
        position: file:line, for messages.
        parse, check: as in `Reading`.

    Raises DataError: the line is bad.
    """
    if not line.strip():
        return line
    text = line if parse is None else parse(line, position)
    if check is not None and text.strip():
        check(text, position)
    return text
