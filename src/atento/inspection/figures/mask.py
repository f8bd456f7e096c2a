"""Masks as drawings, one square for each pair, filled if the query may attend to the key, and as text.

See docs/notes.md#a7, #a16.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from atento.errors import UsageError
from atento.inspection.figures import svg
from atento.inspection.token_display import display_width, shorten, visible

_FILLED, _EMPTY, _INK = "#2f6db5", "#eef1f5", "#1d2733"
_LABEL_COLUMNS = 14


def mask_svg(matrix: object, rows: Sequence[str] = (), columns: Sequence[str] = (), *, title: str = "") -> str:
    """Draw a boolean mask as a standalone SVG; queries are rows, keys are columns.

    Args:
        matrix: boolean (T,S), or with leading dimensions of size 1, such as `mask.dense(4, 4)`.
        rows: labels of the queries; their numbers if empty.
        columns: labels of the keys; their numbers if empty.

    Raises UsageError: the matrix is not boolean, or the number of labels is wrong.
    """
    array = _checked(matrix)
    n_rows, n_columns = array.shape
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
    parts = [svg.tooltip(title or "mask")]
    if title:
        parts.append(svg.text(8, 18, title, font_size=14))
    if labelled:
        for n, text in enumerate(named[0]):
            parts.append(svg.text(left - 6, above + n * cell + cell / 2 + 4, text, text_anchor="end"))
        for n, text in enumerate(named[1]):
            parts.append(svg.turned_text(left + n * cell + cell / 2 + 4, above - 6, -90, text))
    for (row, column), allowed in np.ndenumerate(array):
        x, y = left + column * cell, above + row * cell
        parts.append(svg.rect(x, y, cell - 1, cell - 1, fill=_FILLED if allowed else _EMPTY))
    root: dict[str, svg.Value] = {"width": width, "height": height, "role": "img", "font_family": "sans-serif"}
    return svg.root("\n".join(["", *parts, ""]), **root, font_size=12, fill=_INK)


def mask_text(matrix: object, rows: Sequence[str] = (), columns: Sequence[str] = ()) -> str:
    """A boolean mask as lines of text, 1 = may attend: `1 1 1 0` (docs/notes.md#a7, #l2).

    Args:
        matrix: boolean (T,S), or with leading dimensions of size 1, such as `mask.dense(4, 4)`.
        rows: labels of the queries, printed if given.
        columns: labels of the keys, printed if given.

    Raises UsageError: the matrix is not boolean, or the number of labels is wrong.
    """
    array = _checked(matrix)
    n_rows, n_columns = array.shape
    for name, labels, count in (("rows", rows, n_rows), ("columns", columns, n_columns)):
        if labels and len(labels) != count:
            raise UsageError(f"`{name}` must be as many labels as the mask has {name}, {count}: got {len(labels)}")
    heads = [visible(label) for label in columns] or [""] * n_columns
    widths = [max(1, display_width(head)) for head in heads]
    names = [visible(label) for label in rows]
    margin = max((display_width(name) for name in names), default=0)
    lines = [[("1" if value else "0").ljust(width) for value, width in zip(row, widths)] for row in array]
    if columns:
        lines.insert(0, [_padded(head, width) for head, width in zip(heads, widths)])
        names = ["", *names] if names else names
    if names:
        lines = [[_padded(name, margin + 1), *line] for name, line in zip(names, lines)]
    return "\n".join(" ".join(line).rstrip() for line in lines)


def _padded(text: str, width: int) -> str:
    return text + " " * (width - display_width(text))


def _checked(matrix: object) -> NDArray[np.bool_]:
    array = np.asarray(matrix)
    if array.dtype != np.bool_ or array.ndim < 2 or any(size != 1 for size in array.shape[:-2]):
        raise UsageError(f"a mask must be boolean of shape (T, S): got {array.dtype} of shape {array.shape}")
    return array.reshape(array.shape[-2:])
