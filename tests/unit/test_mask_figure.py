"""A mask as a picture: as many squares as pairs, filled where allowed, labels escaped, faults said."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from atento.attention.masks import causal, window
from atento.errors import UsageError
from atento.inspection.figures.mask import mask_svg

SVG = "{http://www.w3.org/2000/svg}"


def filled(drawing: str, width: int) -> list[list[bool]]:
    squares = [one.get("fill") == "#2f6db5" for one in ElementTree.fromstring(drawing).iter(f"{SVG}rect")]
    return [squares[n : n + width] for n in range(0, len(squares), width)]


def test_a7_the_triangle_of_the_causal_mask() -> None:
    assert filled(mask_svg(causal().dense(4)), 4) == np.tri(4, dtype=bool).tolist()
    assert filled(mask_svg(window(0, 1).dense(2, 5)), 5) == window(0, 1).dense(2, 5)[0, 0].tolist()


def test_words_and_title_are_escaped() -> None:
    drawing = mask_svg(causal().dense(2), ["<o>", "gato & eu"], ["a", "b"], title='"1 < 2"')
    texts = [one.text for one in ElementTree.fromstring(drawing).iter(f"{SVG}text")]
    assert texts == ['"1 < 2"', "<o>", "gato & eu", "a", "b"]


def test_a_large_mask_has_small_squares_and_no_labels() -> None:
    root = ElementTree.fromstring(mask_svg(causal().dense(100)))
    assert float(str(root.get("width"))) < 1000 and not list(root.iter(f"{SVG}text"))


@pytest.mark.parametrize(
    ("matrix", "rows", "message"),
    [
        (np.zeros((2, 2)), [], "a mask must be boolean of shape"),
        (np.zeros((2, 2, 2), dtype=bool), [], "a mask must be boolean of shape"),
        (np.zeros((2, 2), dtype=bool), ["a"], "`rows` must name 2 positions: got 1"),
    ],
)
def test_what_cannot_be_drawn_is_said(matrix: object, rows: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        mask_svg(matrix, rows)
