"""Sheets of .xlsx files to rows of cells, read with openpyxl under limits."""

import io
from collections.abc import Iterator
from datetime import date, datetime, time
from typing import Any, BinaryIO

from atento.base.errors import DataError, MissingPartError, install_hint
from atento.base.limits import refuse_swelling
from atento.data.records.values import as_written

_ROWS = 1_048_576  # of a sheet, by the format


def sheet_rows(
    stream: BinaryIO, name: str, sheet: str | None = None, decimal: str = "."
) -> Iterator[tuple[int, list[str]] | DataError]:
    """Yield each row that is not empty with its number, from 1, as texts of equal number.

    Numbers are written with the sign `decimal`, dates as in ISO 8601, formulas as the value that was saved with them.

    Args:
        stream: the file.
        name: its name in messages.
        sheet: the sheet; None: the only one that is not empty.

    Raises:
        MissingPartError: openpyxl is not installed. DataError: no such sheet, several sheets, or no workbook.
    """
    try:
        from openpyxl.reader.excel import ExcelReader  # late: an extra
    except ImportError:
        raise MissingPartError(f"{name}: .xlsx needs openpyxl: {install_hint('data')}") from None
    try:
        reader = ExcelReader(io.BytesIO(stream.read()), read_only=True, data_only=True)
        parts = reader.archive.infolist()
        refuse_swelling(name, [(f"its part {part.filename}", part.file_size, part.compress_size) for part in parts])
        reader.read()
        yield from _rows(_chosen(reader.wb, name, sheet), name, decimal)
    except DataError:
        raise
    except Exception as error:  # of many kinds: of the library, of zip, of XML
        reason = " ".join(str(error).split()) or type(error).__name__
        if type(error).__name__ == "BadZipFile":
            reason = "it is no .xlsx file; name a table of text .csv or .tsv"
        raise DataError(f"{name}: the workbook cannot be read: {reason}") from None


def _chosen(book: Any, name: str, sheet: str | None) -> object:
    """Return the sheet that the source names, or the only one that is not empty."""
    sheets = {one.title: one for one in book.worksheets}
    for one in sheets.values():
        one.reset_dimensions()  # what a file says of its size may be wrong
    if sheet is not None:
        if (sheet := as_written(sheet, sheets)) not in sheets:
            raise DataError(f"{name}: has no sheet {sheet!r}; its sheets are {', '.join(map(repr, sheets))}")
        return sheets[sheet]
    filled = [title for title, one in sheets.items() if next(_rows(one, name, "."), None) is not None]
    if len(filled) > 1:
        way = "name one as `sheet` (`--reading sheet=NAME` of a command)"
        raise DataError(f"{name}: has several sheets, {', '.join(map(repr, filled))}: {way}")
    return sheets[filled[0]] if filled else next(iter(sheets.values()))


def _rows(sheet: Any, name: str, decimal: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows that are not empty, each as long as the first or longer."""
    width = 0
    for number, row in enumerate(sheet.iter_rows(values_only=True), start=1):
        if number > _ROWS:
            raise DataError(f"{name}: has a row beyond {_ROWS:,}, the last of a sheet")
        cells = [_text(value, decimal) for value in row]
        while cells and not cells[-1] and len(cells) > width:  # cells behind the table
            cells.pop()
        if any(cells):
            width = width or len(cells)  # that of the first row
            yield number, cells + [""] * (width - len(cells))


def _text(value: object, decimal: str) -> str:
    """The value of a cell as a text."""
    if value is None:
        return ""
    if isinstance(value, float):
        return repr(int(value) if value.is_integer() and abs(value) < 2**53 else value).replace(".", decimal)
    return value.isoformat() if isinstance(value, datetime | date | time) else str(value)
