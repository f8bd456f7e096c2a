"""Glossaries in files of columns, separated by tabs or the one sign that all lines have, or as rows."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from atento.base.errors import DataError, UsageError
from atento.data.files.encodings import say_found
from atento.data.files.source_lines import read_lines
from atento.text.glossary import Glossary, GlossaryLike, glossary_of_rows


def glossary_of(value: GlossaryLike) -> Glossary:
    """A glossary of a file of columns (source term, target term, other allowed forms), or of such rows.

    Args:
        value: a glossary; a path; a mapping of source terms to target terms, or to lists of allowed forms; or rows.

    Raises:
        DataError: a term stands twice, a row lacks its target term, or a file has no term; says the file and line, or
            the row. UsageError: something else.
    """
    if isinstance(value, Glossary):
        return value
    if isinstance(value, str | Path):
        lines = read_lines(value)
        others = [sign for sign in ";,|" if all(sign in line for line in lines if line.strip())]
        sign = others[0] if len(others) == 1 and not any("\t" in line for line in lines) else "\t"
        cells = [(f"{value}:{number}", line.split(sign)) for number, line in enumerate(lines, 1)]
        terms = [(place, row) for place, row in cells if any(cell.strip() for cell in row)]
        if terms and sign != "\t":
            say_found(str(value), {"delimiter": sign})
        if not terms:
            raise DataError(f"{value}: holds no term")
        return glossary_of_rows(terms)
    rows: list[object] = []  # stays empty for what is none of these, which is refused below
    if isinstance(value, Mapping):
        rows = [[source, *(forms if isinstance(forms, list | tuple) else [forms])] for source, forms in value.items()]
    elif isinstance(value, Sequence):
        rows = list(value)
    listed = (row for row in rows if isinstance(row, Sequence) and not isinstance(row, str))
    checked = [row for row in listed if all(isinstance(cell, str) for cell in row)]
    if not rows or len(checked) < len(rows):
        raise UsageError(
            "`glossary` is a file, a mapping of terms, or rows of a source term and target terms; one at least"
        )
    return glossary_of_rows((f"`glossary` row {number}", row) for number, row in enumerate(checked))
