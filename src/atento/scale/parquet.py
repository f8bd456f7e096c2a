"""Rows of a Parquet file as texts: read by row group, of the columns that are needed alone."""

from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from atento.errors import DataError, MissingPartError, UsageError, install_hint
from atento.limits import refuse_swelling_rows
from atento.scale.columns import joined

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
        self.columns = list(columns) or texts
        shown = ", ".join(texts) or "none"
        for column in self.columns:
            if column not in texts:
                raise UsageError(f"{name}: --columns {column} must be a column of strings; the file has {shown}")
        if not columns and len(texts) != 1:
            raise UsageError(f"{name}: name the column of the texts by --columns; its columns of strings are {shown}")
        refuse_swelling_rows(name, self._file.metadata)
        groups = [self._file.metadata.row_group(n).num_rows for n in range(self._file.num_row_groups)]
        self._starts = [sum(groups[:n]) for n in range(len(groups) + 1)]
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
                texts += self._of_group(number)[max(0, first - start) : first + count - start]
        return texts

    def _of_group(self, number: int) -> list[str]:
        if self._group is None or self._group[0] != number:
            self._group = number, self._texts(self._file.read_row_group(number, columns=self.columns))
        return self._group[1]

    def _texts(self, table: Any) -> list[str]:
        sides = [table.column(name).to_pylist() for name in self.columns]
        return [joined(values) for values in zip(*sides)]
