"""One file to rows of values, by its format; tables (.tsv, .csv) are read here, each strictly by its rules."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from atento.data.assin import pairs_in
from atento.data.conll import sentences_in
from atento.data.source_json import json_objects, jsonl_objects
from atento.data.source_lines import LINE_LIMIT, read_text, scan
from atento.data.squad import is_document, questions_in
from atento.data.values import Converter
from atento.errors import DataError

Column = int | str
Row = tuple[int, list[Any]] | DataError  # line and values; or the error of a broken record

_QUOTED = re.compile(r'"([^"]*(?:""[^"]*)*)"(?!")')  # a quote before the end may be the first of two
_PLAIN = re.compile(r'[^",]*')


def rows_in(form: str, stream: BinaryIO, name: str, columns: Sequence[Column], converter: Converter) -> Iterator[Row]:
    """Read some columns of one open file; a broken record is yielded as its error, so that the caller may skip it.

    Args:
        form: a format of `atento.config.formats`, but text.
        columns: those of the fields, in their order. In tables all by number from 0 (no header) or all by name (the
            first line is a header); for JSON keys, where `translation.en` reaches into an object.
        converter: converts the values of these columns.

    Raises:
        DataError: an error of the whole file; names file, line and rule.
    """
    if form in ("tsv", "csv"):
        rows = _tsv_rows(stream, name) if form == "tsv" else _csv_rows(stream, name)
        cells = _table(rows, name, "a tab" if form == "tsv" else "a comma", columns)
        return cells if converter.plain else _converted(cells, name, converter)
    if form in ("conll", "conllu"):
        return sentences_in(stream, name, [int(column) for column in columns], universal=form == "conllu")
    keys = [str(column) for column in columns]
    if form == "assin":
        return _converted(pairs_in(stream, name, keys), name, converter)
    if form == "jsonl":
        return _keyed(jsonl_objects(stream, name), name, keys, converter)
    text = read_text(stream, name)
    if is_document(text) and any(field.kind == "spans" for field in converter.fields):
        return questions_in(text, name, [field.name for field in converter.fields])
    return _keyed(json_objects(text, name), name, keys, converter)


def columns_of(form: str, stream: BinaryIO, name: str) -> list[str]:
    """The fields of a table's first line, or the keys of the first object; none where it cannot be read.

    Raises:
        DataError: an error of the whole file.
    """
    if form in ("tsv", "csv"):
        row = next(_tsv_rows(stream, name) if form == "tsv" else _csv_rows(stream, name), None)
        return [] if row is None or isinstance(row, DataError) else row[1]
    if form == "jsonl":
        record = next(jsonl_objects(stream, name), None)
    else:
        text = read_text(stream, name)
        record = None if is_document(text) else next(json_objects(text, name), None)
    return [] if record is None or isinstance(record, DataError) else list(record[1] or ())


_SEMICOLONS = "; columns are separated by commas, not semicolons"

# Tables -----------------------------------------------------------------------------------------------------------


def _table(rows: Iterator[Row], name: str, separator: str, columns: Sequence[Column]) -> Iterator[Row]:
    """Select columns of each row; every row must have as many columns as the first."""
    width = first = 0
    numbers = [column for column in columns if isinstance(column, int)]
    if len(numbers) < len(columns):
        numbers, width = _header(rows, name, [str(column) for column in columns])
        first = 1
    last = max(numbers)
    for row in rows:
        if isinstance(row, DataError):
            yield row
            continue
        line, fields = row
        if fields == [""]:
            yield line, [""] * len(numbers)  # a blank line: counted with the empty records
        elif len(fields) <= last:
            count = f"{len(fields)} column{'s' if len(fields) > 1 else ''} separated by {separator}"
            hint = _SEMICOLONS if separator == "a comma" and len(fields) == 1 and ";" in fields[0] else ""
            yield DataError(f"{name}:{line}: {count}, and column {last} (counted from 0) is requested{hint}")
        elif width and len(fields) != width:
            yield DataError(f"{name}:{line}: {len(fields)} columns, and line {first} has {width}")
        else:
            if not width:
                width, first = len(fields), line
            yield line, [fields[number] for number in numbers]


def _converted(rows: Iterator[Row], name: str, converter: Converter) -> Iterator[Row]:
    """Rows of cells as rows of values."""
    for row in rows:
        if isinstance(row, DataError):
            yield row
            continue
        line, cells = row
        try:
            yield line, converter.cells(cells)
        except ValueError as error:
            yield DataError(f"{name}:{line}: {error}")


def _header(rows: Iterator[Row], name: str, columns: Sequence[str]) -> tuple[list[int], int]:
    """Return the numbers of the named columns, and the number of columns."""
    row = next(rows, None)
    if row is None:
        raise DataError(
            f"{name}: is empty, and its first line must name the columns {' and '.join(map(repr, columns))}"
        )
    if isinstance(row, DataError):
        raise row
    names = row[1]
    for column in columns:
        if names.count(column) != 1:
            problem = "appears twice" if column in names else "is not"
            known = ", ".join(map(repr, names))
            hint = _SEMICOLONS if len(names) == 1 and ";" in names[0] else ""
            raise DataError(f"{name}:1: column {column!r} {problem} in the header; the columns are {known}{hint}")
    return [names.index(column) for column in columns], len(names)


def _tsv_rows(stream: BinaryIO, name: str) -> Iterator[Row]:
    for number, line in enumerate(scan(stream, name), start=1):
        yield line if isinstance(line, DataError) else (number, line.split("\t"))


def _csv_rows(stream: BinaryIO, name: str) -> Iterator[Row]:
    """RFC 4180: a quoted field may hold commas, line ends (returned as newlines) and doubled quotes."""
    pending: list[str] = []
    begin, size, number = 0, 0, 0
    for number, line in enumerate(scan(stream, name), start=1):
        if isinstance(line, DataError):
            pending = []
            yield line
            continue
        if not pending:
            begin, size = number, 0
            fields = _csv_fields(line)
            if fields is not None:
                yield (number, fields) if isinstance(fields, list) else DataError(f"{name}:{number}: {fields}")
                continue
            pending.append(line)
            continue
        pending.append(line)
        size += len(line)
        if size > LINE_LIMIT:
            yield DataError(f"{name}:{begin}: the quote opened here is not closed within {LINE_LIMIT // 2**20} MiB")
            pending = []
        elif line.count('"') % 2:  # the open quote is closed here, and no other is left open
            fields = _csv_fields("\n".join(pending))
            pending = []
            yield (begin, fields) if isinstance(fields, list) else DataError(f"{name}:{begin}: {fields}")
    if pending:
        yield DataError(f"{name}:{begin}: the quote opened here is never closed (the file ends at line {number})")


def _csv_fields(record: str) -> list[str] | str | None:
    """Return the fields of a record; None if a quote is open at its end; a message if it breaks the rules."""
    if '"' not in record:
        return record.split(",")
    fields, at = [], 0
    while True:
        if record.startswith('"', at):
            field = _QUOTED.match(record, at)
            if field is None:
                return None
            fields.append(field[1].replace('""', '"'))
        else:
            field = _PLAIN.match(record, at)
            assert field is not None  # it matches the empty string
            fields.append(field[0])
        at = field.end()
        if at == len(record):
            return fields
        if record[at] == ";" and record[at - 1] == '"':
            return f"a semicolon behind a quoted field{_SEMICOLONS}"
        if record[at] != ",":
            return 'a quote inside a field; such a field must be quoted whole and its own quotes doubled ("")'
        at += 1


# Objects ----------------------------------------------------------------------------------------------------------


def _keyed(
    objects: Iterator[tuple[int, Any] | DataError], name: str, keys: Sequence[str], converter: Converter
) -> Iterator[Row]:
    for item in objects:
        if isinstance(item, DataError):
            yield item
            continue
        line, record = item
        if record is None:
            yield line, [""] * len(keys)
            continue
        try:
            yield line, converter.objects(record, keys)
        except ValueError as error:
            yield DataError(f"{name}:{line}: {error}")
