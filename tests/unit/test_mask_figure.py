"""A mask as text: a row for each query, 1 where allowed; faults said."""

import numpy as np
import pytest

from atento.attention.masks import causal, window
from atento.base.errors import UsageError
from atento.inspection.figures.mask import mask_text


def test_a7_the_triangle_of_the_causal_mask() -> None:
    assert mask_text(causal().dense(4)).split("\n") == ["1 0 0 0", "1 1 0 0", "1 1 1 0", "1 1 1 1"]
    assert mask_text(window(0, 1).dense(2, 5)).count("1") == int(window(0, 1).dense(2, 5).sum())


@pytest.mark.parametrize(
    ("matrix", "rows", "message"),
    [
        (np.zeros((2, 2)), [], "a mask must be boolean of shape"),
        (np.zeros((2, 2, 2), dtype=bool), [], "a mask must be boolean of shape"),
        (np.zeros((2, 2), dtype=bool), ["a"], "`rows` must be as many labels as the mask has rows, 2: got 1"),
    ],
)
def test_what_cannot_be_shown_is_said(matrix: object, rows: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        mask_text(matrix, rows)
