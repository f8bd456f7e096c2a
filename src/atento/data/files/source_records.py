"""One file to rows of values, by its format; tables (.tsv, .csv) are read here, each strictly by its rules."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, BinaryIO

from atento.base.errors import DataError, counted, listed
from atento.config.tables.formats import FORMATS
from atento.data.files.conll import sentences_in
from atento.data.files.source_json import is_document, json_objects, jsonl_objects, questions_in
from atento.data.files.source_lines import LINE_LIMIT, read_text, scan
from atento.data.files.spreadsheets import sheet_rows
from atento.data.files.translation_units import languages_in, pairs_in, units_in
from atento.data.records.values import Converter, as_written, shortened

AS_QUOTED = '`format: csv, delimiter: "\\t"` in the source'  # reads such a table
_QUOTED_CELL = re.compile(r'"(?:[^"]|"")*"')


def note_of_quotes(columns: Mapping[str, list[Any]], where: Callable[[int], str]) -> str | None:
    """Return a sentence about the records with quoted cells; None: there are none.

    Cells are quoted if their own quotes are doubled, as pandas writes them, or if all cells of a column have quotes.

    Args:
        columns: the values of each field.
        where: the position of a record by its number.
    """
    rows: set[int] = set()
    for column in columns.values():
        quoted = [row for row, cell in enumerate(column) if isinstance(cell, str) and _QUOTED_CELL.fullmatch(cell)]
        if len(quoted) == len(column) or any('""' in column[row][1:-1] for row in quoted):
            rows.update(quoted)
    if not rows:
        return None
    return (
        f"{counted(len(rows), 'record')} quoted as in CSV, whose quotes are read as letters; {AS_QUOTED} reads them as "
        f"quotes (the first is {where(min(rows))})"
    )


Column = int | str
Row = tuple[int, list[Any]] | DataError  # line and values; or the error of a broken record

_FIRST = 100  # records that are compared with line 1
_QUOTED = re.compile(r'"([^"]*(?:""[^"]*)*)"(?!")')  # a quote before the end may be the first of two


def rows_in(
    form: str,
    stream: BinaryIO,
    name: str,
    columns: Sequence[Column],
    converter: Converter,
    *,
    delimiter: str | None = None,
    sheet: str | None = None,
    header: bool = False,
) -> Iterator[Row]:
    """Read some columns of one open file; a broken record is yielded as its error, so that the caller may skip it.

    Args:
        form: a format of `atento.config.tables.formats`, but text.
        columns: those of the fields, in their order. In tables all by number from 0 (no header) or all by name (the
            first line is a header); for JSON keys, where `translation.en` reaches into an object.
        converter: converts the values of these columns.
        delimiter: between the columns of a line; None: that of the format. sheet: of a workbook.
        header: line 1 of a table is no record, though columns are numbers.

    Raises:
        DataError: an error of the whole file; names file, line and rule.
    """
    if form in DELIMITERS:
        rows = table_rows(form, stream, name, delimiter, sheet, converter.decimal)
        between = delimiter or DELIMITERS[form]
        sign = {",": "a comma", "\t": "a tab", ";": "a semicolon"}.get(between, repr(between))
        cells = _table(rows, name, f" separated by {sign}" if between else "", columns, header)
        return cells if converter.plain else _converted(cells, name, converter)  # plain: texts alone
    if form in ("conll", "conllu"):
        return sentences_in(stream, name, [int(column) for column in columns], universal=form == "conllu")
    keys = [str(column) for column in columns]
    if form == "assin" or FORMATS[form].languages:
        read = pairs_in(stream, name, keys) if form == "assin" else units_in(form, stream, name, keys)
        return _converted(read, name, converter)
    if form == "jsonl":
        return _converted(jsonl_objects(stream, name), name, converter, keys)
    text = read_text(stream, name)  # what is left is .json, which is read whole
    if is_document(text) and any(field.name == "context" for field in converter.fields):  # SQuAD's layout
        return questions_in(text, name, [field.name for field in converter.fields])
    return _converted(json_objects(text, name), name, converter, keys)


def columns_of(
    form: str, stream: BinaryIO, name: str, *, delimiter: str | None = None, sheet: str | None = None
) -> list[str]:
    """The fields of a table's first line, keys of the first object, or languages; none where they cannot be read.
    Raises DataError: an error of the whole file.
    """
    if form in DELIMITERS:
        row = next(table_rows(form, stream, name, delimiter, sheet), None)
        return [] if row is None or isinstance(row, DataError) else row[1]
    if FORMATS[form].languages:
        return languages_in(form, stream, name)
    record = next(objects_in(form, stream, name) or iter(()), None)
    return [] if record is None or isinstance(record, DataError) else list(record[1] or ())


def objects_in(form: str, stream: BinaryIO, name: str) -> Iterator[tuple[int, Any] | DataError] | None:
    """The objects of a file in JSON with their lines; None: it is a document of SQuAD."""
    if form == "jsonl":
        return jsonl_objects(stream, name)
    text = read_text(stream, name)
    return None if is_document(text) else json_objects(text, name)


def header_hint(where: str) -> str:
    """Return what to do if a value at this position is the name of a column; nothing behind the first line."""
    return (
        "; if line 1 is a header, give the columns by its names (in the source of a recipe, or by --columns)"
        if where.endswith(":1") and "]:1" not in where and ".json" not in where  # of records in memory, or with keys
        else ""
    )


def header_notes(columns: Mapping[str, Sequence[Any]], where: Callable[[int], str]) -> Iterator[str]:
    """Yield a note if line 1 has one word a column and most lines have not: a header may be read as a record."""
    first = [values[:_FIRST] for values in columns.values()]  # of the first lines
    texts = [values for values in first if all(isinstance(value, str) for value in values)]
    short = [all(len(value.split()) < 2 for value in row) for row in zip(*texts)]  # one word a column
    if len(texts) > 1 and short and short[0] and sum(short) < len(short) / 2 and where(0).endswith(":1"):
        names = " and ".join(repr(shortened(values[0])) for values in texts)
        yield f"{names} of line 1 are read as a record{header_hint(where(0))}"


DELIMITERS = {"csv": ",", "tsv": "\t", "xlsx": ""}  # between the columns of a line

# Tables -----------------------------------------------------------------------------------------------------------


def table_rows(
    form: str, stream: BinaryIO, name: str, delimiter: str | None, sheet: str | None, decimal: str = "."
) -> Iterator[Row]:
    """The rows of a table as cells."""
    if form == "xlsx":
        return sheet_rows(stream, name, sheet, decimal)
    between = delimiter or DELIMITERS[form]
    if form != "tsv":
        return _csv_rows(stream, name, between)
    lines = enumerate(scan(stream, name), start=1)
    return (line if isinstance(line, DataError) else (number, line.split(between)) for number, line in lines)


def _other(text: str) -> str:
    """Return how to separate columns by the sign that a line seems to have between them, if it is read as one column.

    It is only named in the message.
    """
    found = max(";\t,|", key=text.count)
    command = "" if found == "\t" else f", or `--reading 'delimiter={found}'` of a command,"
    way = f"`delimiter: {json.dumps(found)}` in a recipe's source{command} separates columns by that sign"
    return f"; {way}" if found in text else ""


def _table(
    rows: Iterator[Row], name: str, separated: str, columns: Sequence[Column], header: bool = False
) -> Iterator[Row]:
    """Select columns of each row; every row must have as many columns as the first."""
    width = first = 0  # 0: not yet known
    numbers = [column for column in columns if isinstance(column, int)]
    if len(numbers) < len(columns):
        numbers, width = _header(rows, name, [str(column) for column in columns])
        first = 1
    elif header:
        next(rows, None)
    last = max(numbers)  # the highest column that must exist
    for row in rows:
        if isinstance(row, DataError):
            yield row
            continue
        line, fields = row
        if fields == [""]:
            yield line, [""] * len(numbers)  # a blank line: counted with the empty records
        elif len(fields) <= last:
            hint = _other(fields[0]) if len(fields) == 1 else ""
            yield DataError(
                f"{name}:{line}: {counted(len(fields), 'column')}{separated}, and column {last} (counted from 0) is "
                f"requested{hint}"
            )
        elif width and len(fields) != width:
            quoted = any(field.startswith('"') for field in fields)  # such a cell may hold the separator
            hint = f"; {AS_QUOTED} reads cells that are quoted as in CSV" if quoted else ""
            yield DataError(f"{name}:{line}: {counted(len(fields), 'column')}, and line {first} has {width}{hint}")
        else:
            if not width:
                width, first = len(fields), line
            yield line, [fields[number] for number in numbers]


def _converted(
    rows: Iterator[tuple[int, Any] | DataError], name: str, converter: Converter, keys: Sequence[str] | None = None
) -> Iterator[Row]:
    """Rows of cells, or objects with these keys, as rows of values."""
    for row in rows:
        if isinstance(row, DataError):
            yield row
            continue
        line, found = row
        try:
            if keys is None:
                yield line, converter.cells(found)
            else:
                yield line, [""] * len(keys) if found is None else converter.objects(found, keys)
        except ValueError as error:
            yield DataError(f"{name}:{line}: {error}{header_hint(f'{name}:{line}') if keys is None else ''}")


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
    columns = [as_written(column, names) for column in columns]
    for column in columns:
        if names.count(column) != 1:
            if column in names:
                raise DataError(f"{name}:{row[0]}: column {column!r} appears twice in the header: rename one of them")
            below = (row[0] for row in islice(rows, 5) if isinstance(row, tuple) and set(columns) <= set(row[1]))
            line = next(below, None)  # of a header under a title
            whole = _other(names[0]) if len(names) == 1 else ""  # one column, since another sign separates them
            hint = f"; line {line} is such a header: remove the lines above it" if line else ""
            known = f", {shortened(names[0])!r}{whole}" if whole and not line else f"{listed(column, names)}{hint}"
            raise DataError(f"{name}:{row[0]}: column {column!r} is not in the header{known}")
    return [names.index(column) for column in columns], len(names)


def _csv_rows(stream: BinaryIO, name: str, delimiter: str) -> Iterator[Row]:
    """RFC 4180, with any delimiter, which a quoted field may hold, as line ends (returned as newlines) and doubled
    quotes."""
    pending: list[str] = []
    begin, size, number = 0, 0, 0
    for number, line in enumerate(scan(stream, name), start=1):
        if isinstance(line, DataError):
            pending = []
            yield line
            continue
        if not pending:
            begin, size = number, 0  # a record of its own
            fields = _csv_fields(line, delimiter)
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
            fields = _csv_fields("\n".join(pending), delimiter)
            pending = []
            yield (begin, fields) if isinstance(fields, list) else DataError(f"{name}:{begin}: {fields}")
    if pending:
        yield DataError(f"{name}:{begin}: the quote opened here is never closed (the file ends at line {number})")


def _csv_fields(record: str, delimiter: str) -> list[str] | str | None:
    """Return the fields of a record; None if a quote is open at its end; a message if it breaks the rules."""
    if '"' not in record:
        return record.split(delimiter)
    plain = re.compile(rf'[^"{re.escape(delimiter)}]*')
    fields, at = [], 0
    while True:
        if record.startswith('"', at):
            field = _QUOTED.match(record, at)
            if field is None:
                return None
            fields.append(field[1].replace('""', '"'))
        else:
            field = plain.match(record, at)
            assert field is not None  # it matches the empty string
            fields.append(field[0])
        at = field.end()  # behind the field
        if at == len(record):
            return fields
        if record[at] in ";\t,|" and record[at] != delimiter and record[at - 1] == '"':
            return f"{record[at]!r} behind a quoted field{_other(record[at])}"
        if record[at] != delimiter:
            before = record[at - 1]  # a field that another sign begins is quoted whole
            other = _other(before) if before in ";\t,|" else ""
            return f'a quote inside a field; such a field must be quoted whole and its own quotes doubled (""){other}'
        at += 1
