"""Cells of a table of tabs that another program has quoted as in CSV: their quotes are letters here, and are said."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from atento.errors import counted

AS_QUOTED = '`format: csv, delimiter: "\\t"` in the source'  # reads such a table
_QUOTED = re.compile(r'"(?:[^"]|"")*"')


def note_of_quotes(columns: Mapping[str, list[Any]], where: Callable[[int], str]) -> str | None:
    """Return a sentence about the records with quoted cells; None: there are none.

    Cells are quoted if their own quotes are doubled, as pandas writes them, or if all cells of a column have quotes.

    Args:
        columns: the values of each field.
        where: the position of a record by its number.
    """
    rows: set[int] = set()
    for column in columns.values():
        quoted = [row for row, cell in enumerate(column) if isinstance(cell, str) and _QUOTED.fullmatch(cell)]
        if len(quoted) == len(column) or any('""' in column[row][1:-1] for row in quoted):
            rows.update(quoted)
    if not rows:
        return None
    return (
        f"{counted(len(rows), 'record')} quoted as in CSV, whose quotes are read as letters; {AS_QUOTED} reads them as "
        f"quotes (the first is {where(min(rows))})"
    )
