"""Columns of a table as lines of text."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from atento.base.errors import DataError, UsageError
from atento.config.recipe import SourceConfig
from atento.config.tables.formats import FORMATS, format_of
from atento.config.tables.task_spec import Field
from atento.data.files.dialect import encoding_for, sniffed
from atento.data.files.source_lines import open_binary, scan
from atento.data.files.source_records import rows_in
from atento.data.records.labelled_data import reading_of
from atento.data.records.values import Converter
from atento_cli.scale.columns import ending, joined
from atento_cli.scale.inputs import Input


def is_table(file: str, reading: Mapping[str, Any]) -> bool:
    """Whether a file has columns, by the ending of its name or its stated format."""
    form = format_of(file, reading.get("format"), ())
    return ending(file) == ".parquet" or (form is not None and FORMATS[form].table)


def table_rows(file: str, columns: Sequence[str], reading: Mapping[str, Any]) -> Iterator[tuple[int, str | DataError]]:
    """The number of each row in a table, and its texts on one line with tabs between, or what is wrong with the row.

    Args:
        columns: those that are read: by number all, from 0, or by name; none: the file has lines of text.
        reading: how it is read: keys of a source in a recipe, such as `delimiter`.

    Raises UsageError: the file is no table. DataError: it cannot be read, or has no such column.
    """
    if file == "-" or (reading and ending(file) == ".parquet"):
        raise UsageError(f"--columns and --reading are for a file, and --reading for no .parquet file: got {file}")
    if ending(file) == ".parquet":
        yield from enumerate((text for some in Input(file, tuple(columns)).parquet().all() for text in some), start=1)
        return
    source = SourceConfig(file=file, **reading_of(file, reading))
    if not columns:
        with open_binary(Path(file), file, encoding=source.encoding) as stream:
            yield from enumerate(scan(stream, file), start=1)
        return
    form = format_of(file, source.format, ()) or ""
    if not is_table(file, reading):
        tables = ", ".join(ending for form in FORMATS.values() if form.table for ending in form.endings)
        raise UsageError(f"--columns is for {tables} and .parquet files: got {file}")
    by_number = FORMATS[form].by_number and all(map(str.isdecimal, columns))
    chosen = [int(column) if by_number else column for column in columns]
    source = sniffed(source, form, (), Path(), chosen)
    converter, how = Converter([Field("text")] * len(columns)), {"delimiter": source.delimiter, "sheet": source.sheet}
    with open_binary(Path(file), file, encoding=encoding_for(source, form)) as stream:
        for row in rows_in(form, stream, file, chosen, converter, **how, header=bool(source.header)):
            yield (0, row) if isinstance(row, DataError) else (row[0], joined(row[1]))
