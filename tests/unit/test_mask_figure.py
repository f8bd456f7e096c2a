"""A mask as text: a row for each query, 1 where allowed; faults said."""

from atento.attention.masks import causal, window
from atento.inspection.figures.mask import mask_text


def test_a7_the_triangle_of_the_causal_mask() -> None:
    assert mask_text(causal().dense(4)).split("\n") == ["1 0 0 0", "1 1 0 0", "1 1 1 0", "1 1 1 1"]
    assert mask_text(window(0, 1).dense(2, 5)).count("1") == int(window(0, 1).dense(2, 5).sum())
