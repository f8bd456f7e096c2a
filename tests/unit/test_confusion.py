"""The confusion matrix: counts equal to scikit-learn's, as text, HTML, SVG and PNG."""

import importlib.util
import random
import xml.etree.ElementTree as ET

import pytest

from atento.base.errors import UsageError
from atento.inspection.figures.classifier_figures import confusion_png, confusion_svg
from atento.metrics import confusion, confusion_of, f1, report
from failing import fails


def test_counts_equal_those_of_scikit_learn_as_text_html_and_drawing() -> None:
    matrix = confusion(["b", "a", "b"], ["a", "a", "b"])
    assert str(matrix) == "right \\ predicted  a  b\na                  1  1\nb                  0  1"
    shown = confusion(["<b>"], ["a"])._repr_html_()
    assert "&lt;b&gt;" in shown and "<b>" not in shown
    fails(UsageError, "made from the result of `report`: got Score", confusion_of, f1(["a"], ["a"]))
    matrix = confusion(["x", "a", "x"], ["a", "a", "x"])
    root = ET.fromstring(confusion_svg(("a$\\frac$", "<x>"), matrix.counts, "<run>"))
    titles = ["".join(title.itertext()) for title in root.iter("{http://www.w3.org/2000/svg}title")]
    assert titles[0] == "<run>" and "a$\\frac$ predicted as <x>: 1 (50.0%)" in titles and len(titles) == 5
    if importlib.util.find_spec("matplotlib") is not None:
        assert confusion_png(("a$\\frac$", "<x>"), matrix.counts, "<run>").startswith(b"\x89PNG\r\n")
    sklearn_metrics = pytest.importorskip("sklearn.metrics")
    draws = random.Random(1)
    right, predicted = (draws.choices("abcd", k=200) for _ in range(2))
    right = [label if label != "d" else "a" for label in right]  # a label that is predicted and never right
    matrix = confusion(predicted, right)
    assert matrix.labels == tuple("abcd")
    assert [list(row) for row in matrix.counts] == sklearn_metrics.confusion_matrix(right, predicted).tolist()
    assert confusion_of(report(predicted, right)) == matrix
