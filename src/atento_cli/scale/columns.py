"""The texts of columns: keys of JSONL, numbers of TSV, names of Parquet, which is read by row group."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from atento.base.errors import DataError, MissingPartError, UsageError, install_hint
from atento.base.limits import refuse_swelling_rows
from atento.data.records.values import as_written, at_key, string_of
from atento_cli.scale.line_blocks import Parse

_PACKED = (".gz", ".zst")
_LINE_END = re.compile("\r\n|\r|\n")


def ending(name: str) -> str:
    """The extension of a file, without that of its compression, in lower case."""
    name = name.lower()
    for packed in _PACKED:
        name = name.removesuffix(packed)
    return name[name.rfind(".") :] if "." in name.rsplit("/", 1)[-1] else ""


def parser(name: str, columns: Sequence[str]) -> Parse | None:
    """The function that takes the columns out of a line of that file; None: the line is the text.
    Raises UsageError: the file has no columns, or a column of a .tsv file is no number.
    """
    if not columns or ending(name) == ".parquet":
        return None
    if ending(name) in (".jsonl", ".json"):
        return lambda line, position: joined(_values(line, position, columns))
    if ending(name) != ".tsv":
        raise UsageError(f"--columns is for .jsonl, .tsv and .parquet files with --cluster: got {name}")
    for column in columns:
        if not column.isdecimal():
            raise UsageError(f"--columns of a .tsv file are numbers, from 0: got {column!r}")
    numbers = [int(column) for column in columns]
    return lambda line, position: joined(_fields(line, position, numbers))


def joined(values: Sequence[str | None]) -> str:
    """Texts on one line with tabs between; line ends in them, and tabs in one of several, become spaces."""
    texts = ["" if value is None else _LINE_END.sub(" ", value) for value in values]
    return texts[0] if len(texts) == 1 else "\t".join(text.replace("\t", " ") for text in texts)


def _values(line: str, position: str, columns: Sequence[str]) -> list[str]:
    """The strings at an object's keys. Raises DataError: no object, or a key has none."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{position}: the line is not JSON: {error}") from None
    try:
        return [string_of(at_key(record, column), f"key {column!r}") for column in columns]
    except ValueError as error:
        raise DataError(f"{position}: {error}") from None


def _fields(line: str, position: str, numbers: Sequence[int]) -> list[str]:
    """The columns of a row. Raises DataError: it has fewer."""
    fields = line.split("\t")
    if max(numbers) >= len(fields):
        raise DataError(f"{position}: there is no column {max(numbers)}: the line has {len(fields)}, counted from 0")
    return [fields[number] for number in numbers]


_ROWS = 4096  # rows that are converted at once


class ParquetTexts:
    """The texts of a Parquet file by the numbers of their rows; the last row group is remembered.

    Args:
        stream: the open file, which can be read anywhere.
        name: its name in messages.
        columns: their names; empty: the only column of strings.

    Raises:
        MissingPartError: pyarrow is not installed.
        UsageError: there is no such column, or there are several and none is named.
        DataError: the file is no Parquet file.
    """

    def __init__(self, stream: BinaryIO, name: str, columns: Sequence[str]) -> None:
        try:
            import pyarrow as arrow  # late: an extra
            import pyarrow.parquet as parquet
        except ImportError:
            raise MissingPartError(f"{name}: .parquet needs pyarrow: {install_hint('remote')}") from None
        self._name = name
        try:
            self._file: Any = parquet.ParquetFile(stream)
        except (arrow.ArrowException, OSError) as error:
            raise DataError(f"{name}: is no Parquet file that can be read: {error}") from None
        schema = self._file.schema_arrow
        texts = [field.name for field in schema if field.type in (arrow.string(), arrow.large_string())]
        self.columns = [as_written(column, texts) for column in columns] or texts
        shown = ", ".join(texts) or "none"
        for column in self.columns:
            if column not in texts:
                raise UsageError(f"{name}: --columns {column} must be a column of strings; the file has {shown}")
        if not columns and len(texts) != 1:
            raise UsageError(f"{name}: name the column of the texts by --columns; its columns of strings are {shown}")
        refuse_swelling_rows(name, self._file.metadata)
        groups = [self._file.metadata.row_group(n).num_rows for n in range(self._file.num_row_groups)]
        self._starts = [sum(groups[:n]) for n in range(len(groups) + 1)]  # the row that each group begins with
        self._group: tuple[int, list[str]] | None = None

    def __len__(self) -> int:
        """The number of rows."""
        return int(self._starts[-1])

    def all(self) -> Iterator[list[str]]:
        """All texts in order, some at a time."""
        for batch in self._file.iter_batches(batch_size=_ROWS, columns=self.columns):
            yield self._texts(batch)

    def rows(self, first: int, count: int) -> list[str]:
        """The texts of `count` rows from row `first` on, from 0."""
        texts: list[str] = []
        for number, (start, end) in enumerate(zip(self._starts, self._starts[1:])):
            if start < first + count and first < end:
                if self._group is None or self._group[0] != number:
                    self._group = number, self._texts(self._file.read_row_group(number, columns=self.columns))
                texts += self._group[1][max(0, first - start) : first + count - start]  # of this group's rows
        return texts

    def _texts(self, table: Any) -> list[str]:
        return [joined(values) for values in zip(*[table.column(name).to_pylist() for name in self.columns])]
