"""Masks as drawings: one square for each pair, filled if the query may attend to the key (docs/notes.md#a7, #a16)."""

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from atento.errors import UsageError
from atento.inspection.labels import display_width, shorten, visible

_FILLED, _EMPTY, _INK = "#2f6db5", "#eef1f5", "#1d2733"
_LABEL_COLUMNS = 14


def mask_svg(matrix: Any, rows: Sequence[str] = (), columns: Sequence[str] = (), *, title: str = "") -> str:
    """Draw a boolean mask as a standalone SVG; queries are rows, keys are columns.

    Args:
        matrix: boolean (T,S), or with leading dimensions of size 1, such as `mask.dense(4, 4)`.
        rows: labels of the queries; their numbers if empty.
        columns: labels of the keys; their numbers if empty.
        title: title of the drawing.

    Raises:
        UsageError: the matrix is not boolean, or the number of labels is wrong.
    """
    array = np.asarray(matrix)
    if array.dtype != np.bool_ or array.ndim < 2 or any(size != 1 for size in array.shape[:-2]):
        raise UsageError(f"a mask must be boolean of shape (T, S): got {array.dtype} of shape {array.shape}")
    n_rows, n_columns = array.shape[-2:]
    array = array.reshape(n_rows, n_columns)
    named = []
    for argument, labels, size in (("rows", rows, n_rows), ("columns", columns, n_columns)):
        if labels and len(labels) != size:
            raise UsageError(f"`{argument}` must name {size} positions: got {len(labels)}")
        named.append([visible(shorten(text, _LABEL_COLUMNS)) for text in (labels or [str(n) for n in range(size)])])
    cell = 26 if max(n_rows, n_columns) <= 32 else max(3, 832 // max(n_rows, n_columns))
    labelled = cell >= 12  # there is no room for labels beside smaller squares
    left = 8 + (7 * max((display_width(text) for text in named[0]), default=0) + 6 if labelled else 0)
    above = (26 if title else 8) + (
        7 * max((display_width(text) for text in named[1]), default=0) + 6 if labelled else 0
    )
    width, height = left + cell * n_columns + 8, above + cell * n_rows + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" role="img" '
        f'font-family="sans-serif" font-size="12" fill="{_INK}">',
        f"<title>{escape(title or 'mask')}</title>",
    ]
    if title:
        parts.append(f'<text x="8" y="18" font-size="14">{escape(title)}</text>')
    if labelled:
        for n, text in enumerate(named[0]):
            y = above + n * cell + cell / 2 + 4
            parts.append(f'<text x="{left - 6}" y="{y}" text-anchor="end">{escape(text)}</text>')
        for n, text in enumerate(named[1]):
            x = left + n * cell + cell / 2 + 4
            parts.append(f'<text transform="translate({x} {above - 6}) rotate(-90)">{escape(text)}</text>')
    for (row, column), allowed in np.ndenumerate(array):
        x, y = left + column * cell, above + row * cell
        colour = _FILLED if allowed else _EMPTY
        parts.append(f'<rect x="{x}" y="{y}" width="{cell - 1}" height="{cell - 1}" fill="{colour}"/>')
    return "\n".join([*parts, "</svg>"])
