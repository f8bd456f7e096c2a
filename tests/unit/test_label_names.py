"""What is a label, and what is a list of texts."""

import numpy as np
import pytest

from atento.errors import UsageError
from atento.metrics import accuracy
from atento.metrics.label_names import label_name
from atento.tasks.verb_calls import listed


def test_a_whole_number_of_a_column_with_gaps_is_that_number() -> None:
    """pandas makes 1.0 of 1 where a value is missing; scikit-learn takes both for one label."""
    assert [label_name(value) for value in (1.0, np.float64(0.0), 1, "1")] == ["1", "0", "1", "1"]
    assert [label_name(value) for value in (0.5, float("nan"), float("inf"), None)] == [None] * 4
    assert accuracy([1.0, 0.0, 1.0], [1, 0, 0]).value == pytest.approx(2 / 3)


def test_texts_without_an_order_are_refused() -> None:
    for texts in ({"a", "b"}, frozenset({"a"}), {"a": 1}):
        with pytest.raises(UsageError, match="give a text or a list of texts"):
            listed(texts)
    assert listed(("a", "b")) == ["a", "b"]
