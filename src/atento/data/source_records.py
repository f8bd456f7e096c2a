"""One file with columns to rows of texts: .tsv, .csv, .jsonl and .json, each read strictly by its rules."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from atento.data.source_lines import LINE_LIMIT, read_text, scan
from atento.data.values import Converter, kind_of
from atento.errors import DataError

Column = int | str
Row = tuple[int, list[Any]] | DataError  # line and values; or the error of a broken record

_QUOTED = re.compile(r'"([^"]*(?:""[^"]*)*)"')
_PLAIN = re.compile(r'[^",]*')
_SPACE = re.compile(r"[ \t\r\n]*")
_INTEGER_DIGITS = 19  # what 64 bits hold


def rows_in(kind: str, stream: BinaryIO, name: str, columns: Sequence[Column], converter: Converter) -> Iterator[Row]:
    """Read some columns of one open file; a broken record is yielded as its error, so that the caller may skip it.

    Args:
        kind: ".tsv" (never quoted), ".csv" (RFC 4180), ".jsonl" (an object a line) or ".json" (a list of objects).
        columns: all by number from 0 (no header) or all by name (the first line is a header; for JSON the keys, where
            `translation.en` reaches into an object).
        converter: converts the values of these columns, in their order.

    Raises:
        DataError: an error of the whole file; names file, line and rule.
    """
    if kind in (".tsv", ".csv"):
        rows = _tsv_rows(stream, name) if kind == ".tsv" else _csv_rows(stream, name)
        separator = "a tab" if kind == ".tsv" else "a comma"
        cells = _table(rows, name, separator, columns)
        return cells if converter.plain else _converted(cells, name, converter)
    objects = _jsonl_objects(stream, name) if kind == ".jsonl" else _json_objects(stream, name)
    return _keyed(objects, name, [str(column) for column in columns], converter)


def columns_of(kind: str, stream: BinaryIO, name: str) -> list[str]:
    """Return the fields of a table's first line, or the keys of the first object; none if it cannot be read.

    Raises:
        DataError: an error of the whole file.
    """
    if kind in (".tsv", ".csv"):
        row = next(_tsv_rows(stream, name) if kind == ".tsv" else _csv_rows(stream, name), None)
        return [] if row is None or isinstance(row, DataError) else row[1]
    record = next(_jsonl_objects(stream, name) if kind == ".jsonl" else _json_objects(stream, name), None)
    return [] if record is None or isinstance(record, DataError) else list(record[1] or ())


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
            yield DataError(f"{name}:{line}: {count}, and column {last} (counted from 0) is requested")
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
            raise DataError(f"{name}:1: column {column!r} {problem} in the header; the columns are {known}")
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


def _jsonl_objects(stream: BinaryIO, name: str) -> Iterator[tuple[int, Any] | DataError]:
    for number, line in enumerate(scan(stream, name), start=1):
        if isinstance(line, DataError):
            yield line
        elif not line.strip():
            yield number, None  # a blank line: counted with the empty records
        else:
            try:
                value, end = _decode(line, _skip(line, 0))
                if (end := _skip(line, end)) != len(line):
                    raise ValueError(f"more text after the record, at character {end + 1}")
                if not isinstance(value, dict):
                    raise ValueError(f"each record must be an object, not {kind_of(value)}")
                yield number, value
            except json.JSONDecodeError as error:
                yield DataError(f"{name}:{number}: {_not_json(error)}")
            except ValueError as error:
                yield DataError(f"{name}:{number}: {error}")


def _json_objects(stream: BinaryIO, name: str) -> Iterator[tuple[int, Any] | DataError]:
    """A list of objects, read one at a time; broken JSON cannot be skipped, because its end is unknown."""
    text = read_text(stream, name)
    at, line, counted = _skip(text, 0), 1, 0

    def wrong(rule: object) -> DataError:
        return DataError(f"{name}:{line + text.count(chr(10), counted, at)}: {rule}")

    if not text.startswith("[", at):
        raise wrong("a .json file must hold a list of objects, [{...}, ...]; one object a line is .jsonl")
    at = _skip(text, at + 1)
    while not text.startswith("]", at):
        line, counted = line + text.count("\n", counted, at), at
        try:
            value, at = _decode(text, at)
        except json.JSONDecodeError as error:
            raise DataError(f"{name}:{error.lineno}: {_not_json(error)}") from None
        except ValueError as error:
            raise wrong(error) from None
        if not isinstance(value, dict):
            raise wrong(f"each record must be an object, not {kind_of(value)}")
        yield line, value
        at = _skip(text, at)
        if text.startswith(",", at):
            at = _skip(text, at + 1)
            if text.startswith("]", at):
                raise wrong("a comma before the end of the list")
        elif not text.startswith("]", at):
            raise wrong("a comma or the end of the list is missing")
    at = _skip(text, at + 1)
    if at != len(text):
        raise wrong("more text after the list")


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    assert space is not None  # it matches the empty string
    return space.end()


def _decode(text: str, at: int) -> tuple[Any, int]:
    """Decode the JSON value at `at`; return it and its end. Every failure is a ValueError with a message."""
    try:
        return _DECODER.raw_decode(text, at)
    except RecursionError:
        raise ValueError("the record is nested too deeply") from None


def _not_json(error: json.JSONDecodeError) -> str:
    return f"not JSON: {error.msg[0].lower()}{error.msg[1:]} at character {error.colno}"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"key {twice!r} appears twice in one object")
    return record


def _integer(digits: str) -> int:
    if len(digits.lstrip("-")) > _INTEGER_DIGITS:
        raise ValueError(f"a whole number of {len(digits.lstrip('-'))} digits does not fit in 64 bits")
    return int(digits)


def _number(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"the number {digits[:30]} is too large")
    return value


def _constant(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=_integer, parse_float=_number, parse_constant=_constant
)
