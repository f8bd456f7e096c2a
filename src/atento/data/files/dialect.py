"""How a table is read where its source leaves it open: encoding, delimiter, decimal sign and header, from the file."""

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from atento.base.errors import DataError
from atento.config.recipe import SourceConfig
from atento.config.tables.formats import Column, columns_of_source, is_usual
from atento.config.tables.task_spec import Field
from atento.data.files.encodings import say_found
from atento.data.files.source_lines import found_encoding, open_binary
from atento.data.files.source_records import DELIMITERS, columns_of, table_rows
from atento.data.records.values import as_written

_BYTES, _ROWS = 1 << 20, 1000  # of the beginning of a table
NAMED = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a bar"}
NUMBER = re.compile(r"[+-]?(?:\d+[.,]?\d*|[.,]\d+)(?:[eE][+-]?\d+)?")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+")

Cells = tuple[int, list[str]]


def sniffed(
    source: SourceConfig,
    form: str,
    fields: Sequence[Field],
    folder: Path,
    chosen: Sequence[Column] = (),
    *,
    say: bool = True,
) -> SourceConfig:
    """Return a source with the keys that say how its table is read, where they were left open; says what was found.

    Args:
        source, form, fields, folder: the file, its format, the fields of its records, and what its name is relative to.
        chosen: the columns that are read, where the source has none for the fields.
        say: false: who reads the records says it.

    Raises:
        DataError: the file allows several readings; names them. Or it cannot be read.
    """
    if form not in DELIMITERS:
        return source
    name, found = str(source.file), dict[str, Any]()
    path = folder / Path(name).expanduser()
    if source.encoding is None and form != "xlsx" and (encoding := found_encoding(path, name)) is not None:
        found["encoding"] = encoding
    encoding = str(found.get("encoding", source.encoding or ""))
    with open_binary(path, name, streamed=True, encoding=encoding) as stream:
        sample = stream.read() if form == "xlsx" else stream.read(_BYTES)
    whole = form == "xlsx" or len(sample) < _BYTES
    sample = sample if whole else sample[: sample.rfind(b"\n") + 1]
    columns = {key: column for key, column in columns_of_source(form, source, fields).items() if column is not None}
    columns = columns or {f"{number}": column for number, column in enumerate(chosen)}

    def rows(delimiter: str, decimal: str = ".") -> list[Cells] | None:
        """The first rows that are not blank; None: one is broken."""
        stated = delimiter or None
        read = list(islice(table_rows(form, io.BytesIO(sample), name, stated, source.sheet, decimal), _ROWS))
        if read and not whole and isinstance(read[-1], DataError):  # a quote is open where the sample ends
            read.pop()
        good = [row for row in read if not isinstance(row, DataError) and row[1] != [""]]
        return good if not any(isinstance(row, DataError) for row in read) else None

    delimiter = source.delimiter or DELIMITERS[form]
    if source.delimiter is None and form != "xlsx":
        readings = {sign: rows(sign) for sign in (delimiter, *(set(NAMED) - {delimiter}))}
        delimiter = _delimiter(readings, list(columns.values()), name, sample)
        found |= {"delimiter": delimiter} if delimiter != DELIMITERS[form] else {}
    numbers = [key for key in columns if any(field.name == key and field.kind == "number" for field in fields)]
    first = rows(delimiter) or []
    if source.decimal is None and numbers and first:
        again = (form == "xlsx" and rows("", ",")) or first
        found |= _decimal(first, again, {key: columns[key] for key in numbers}, name)
    if source.header is None and _has_header(first, columns, numbers):
        found["header"] = True
    if found and say:
        say_found(name, found)
    return replace(source, **found)


def first_of(source: SourceConfig, form: str, folder: Path = Path()) -> list[str]:
    """The names in a table's first line, keys of the first object, or languages, as `columns_of`."""
    source = sniffed(source, form, (), folder, say=False)
    name = str(source.file)
    with open_binary(folder / Path(name).expanduser(), name, encoding=encoding_for(source, form)) as stream:
        return columns_of(form, stream, name, delimiter=source.delimiter, sheet=source.sheet)


def encoding_for(source: SourceConfig, form: str) -> str | None:
    """The encoding to open a file with: XML and workbooks say their own."""
    return source.encoding or ("" if form in ("xlsx", "assin", "tmx", "xliff") else None)


def _numbers_of(columns: Sequence[Column], header: Sequence[str]) -> list[int]:
    """The numbers of columns in a table with this first row; -1 where it has none."""
    written = [column if isinstance(column, int) else as_written(column, header) for column in columns]
    at = [one if isinstance(one, int) else header.index(one) if one in header else -1 for one in written]
    return [one if one < len(header) else -1 for one in at]


def _delimiter(readings: Mapping[str, list[Cells] | None], columns: Sequence[Column], name: str, sample: bytes) -> str:
    """The sign between columns: that of the format where it fits, else the only one that does, or fits best."""
    lacking, width = {}, {}  # of each sign that divides all rows alike: how many columns it does not show, and shows
    for sign, rows in readings.items():
        widths = {len(row[1]) for row in rows or ()}
        if rows and len(widths) == 1 and widths != {1}:
            lacking[sign], width[sign] = _numbers_of(columns, rows[0][1]).count(-1), widths.pop()
    own, least = next(iter(readings)), min(lacking.values(), default=0)
    fitting = {sign: width[sign] for sign, number in lacking.items() if number == least}
    of_numbers = own == "," and re.search(rb"(?<!\d),|,(?!\d)", sample) is None  # decimal commas alone
    if not fitting or (own in fitting and not (of_numbers and len(fitting) > 1)):
        return own
    others = [sign for sign in fitting if sign != own]
    if len(others) > 1:
        seen = " or ".join(f"{NAMED[sign]} ({fitting[sign]} columns)" for sign in sorted(others))
        raise DataError(f"{name}: its columns may be separated by {seen}: `delimiter` says by which")
    return others[0]


def _decimal(
    rows: Sequence[Cells], with_commas: Sequence[Cells], columns: Mapping[str, Column], name: str
) -> dict[str, object]:
    """The decimal comma, where all numbers of these columns have it that are no whole ones."""
    for key, number in zip(columns, _numbers_of(list(columns.values()), rows[0][1])):
        read, again = (
            [(line, cells[number].strip()) for line, cells in part if number < len(cells)]
            for part in (rows, with_commas)
        )
        commas = [(line, cell) for line, cell in read if "," in cell and NUMBER.fullmatch(cell)]
        points = [(line, cell) for line, cell in again if "." in cell and NUMBER.fullmatch(cell)]
        if not commas or number < 0 or any("." in cell for _, cell in commas):
            continue
        if points:
            seen = " and ".join(f"{cell!r} in line {line}" for line, cell in (commas[0], points[0]))
            raise DataError(
                f"{name}: `{key}` has decimal commas and decimal points ({seen}): `decimal` says which it is"
            )
        if all(_THOUSANDS.fullmatch(cell) for _, cell in commas):
            line, cell = commas[0]
            raise DataError(
                f"{name}:{line}: the comma of {cell!r} may be a decimal one or stand between thousands: "
                "`decimal` of the source says which it is"
            )
        return {"decimal": ","}
    return {}


def _has_header(rows: Sequence[Cells], columns: Mapping[str, Column], numbers: Sequence[str]) -> bool:
    """Whether line 1 names the columns, which are given by number: usual names, or no number where all others are."""
    if len(rows) < 2 or len(columns) < 2 or not all(isinstance(column, int) for column in columns.values()):
        return False
    at = dict(zip(columns, _numbers_of(list(columns.values()), rows[0][1])))
    first = rows[0][1]
    if -1 in at.values():
        return False
    if all(is_usual(first[number], key) for key, number in at.items()):
        return True
    below = [cells[at[key]].strip() for _, cells in rows[1:] for key in numbers if at[key] < len(cells)]
    named = any(not NUMBER.fullmatch(first[at[key]].strip()) for key in numbers)
    return named and bool(below) and all(map(NUMBER.fullmatch, below))
