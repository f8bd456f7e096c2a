"""Masks as text (docs/notes.md#a7)."""

from collections.abc import Sequence

import numpy as np

from atento.base.errors import UsageError
from atento.inspection.token_display import display_width, padded, visible


def mask_text(matrix: object, rows: Sequence[str] = (), columns: Sequence[str] = ()) -> str:
    """A boolean mask as lines of text, 1 = may attend: `1 1 1 0` (docs/notes.md#a7, #l2).

    Args:
        matrix: boolean (T,S), or with leading dimensions of size 1, such as `mask.dense(4, 4)`.
        rows: labels of the queries, printed if given.
        columns: labels of the keys, printed if given.

    Raises UsageError: the matrix is not boolean, or the number of labels is wrong.
    """
    array = np.asarray(matrix)
    if array.dtype != np.bool_ or array.ndim < 2 or any(size != 1 for size in array.shape[:-2]):
        raise UsageError(f"a mask must be boolean of shape (T, S): got {array.dtype} of shape {array.shape}")
    n_rows, n_columns = array.shape[-2:]
    for name, labels, count in (("rows", rows, n_rows), ("columns", columns, n_columns)):
        if labels and len(labels) != count:
            raise UsageError(f"`{name}` must be as many labels as the mask has {name}, {count}: got {len(labels)}")
    heads = [visible(label) for label in columns] or [""] * n_columns
    widths = [max(1, display_width(head)) for head in heads]
    names = [visible(label) for label in rows]
    margin = max((display_width(name) for name in names), default=0)
    lines = [
        [("1" if value else "0").ljust(width) for value, width in zip(row, widths)]
        for row in array.reshape(n_rows, n_columns)
    ]
    if columns:
        lines.insert(0, [padded(head, width) for head, width in zip(heads, widths)])
        names = ["", *names] if names else names
    if names:
        lines = [[padded(name, margin + 1), *line] for name, line in zip(names, lines)]
    return "\n".join(" ".join(line).rstrip() for line in lines)
