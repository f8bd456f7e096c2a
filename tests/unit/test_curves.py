"""Curves of training as pictures and as rows of text."""

import re
import sys

import pytest

from atento.base.errors import MissingPartError
from atento.inspection.figures.curves import Line, Panel, curves_page, curves_picture, sparkline
from failing import fails


def test_sparklines_points_names_and_a_missing_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([7.0, 0.0]) == "█▁" and sparkline([2, 2]) == "▁▁" and sparkline([]) == ""
    assert sparkline([0.0, 0.0, 1.0, 1.0], width=2) == "▁█"
    assert len(sparkline(list(range(1000)))) == 40 and sparkline([float("nan"), 1.0, 2.0]) == "▁█"
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = r"needs matplotlib: pip install -e '\.\[plot\]'"
    fails(MissingPartError, said, curves_picture, [Panel("loss", [Line("a", 0, [(1, 1.0)])])], "svg")
    monkeypatch.undo()
    pytest.importorskip("matplotlib")
    svg = curves_picture([Panel("loss", [Line("a", 0, [(0, 0.0), (10, 5.0), (20, 10.0)])])], "svg").decode()
    [path] = re.findall(r'<path d="([^"]*)" clip-path="[^"]*" style="fill: none; stroke: #0072b2', svg)
    numbers = [float(number) for number in re.findall(r"-?[\d.]+", path)]
    (x0, x1, x2), (y0, y1, y2) = numbers[::2], numbers[1::2]
    assert x0 < x1 < x2 and y0 > y1 > y2  # a drawing counts downwards
    assert x1 == pytest.approx((x0 + x2) / 2, abs=0.01) and y1 == pytest.approx((y0 + y2) / 2, abs=0.01)
    # dollar signs are no formula, an underscore hides no line, markup is escaped
    panels = [Panel("loss", [Line("_a$\\frac$<b>", 0, [(1, 1.0), (2, 2.0)]), Line("_b", 1, [(1, 2.0), (2, 1.0)])])]
    page = curves_page(panels, "<script>x</script>").decode()
    assert "_a$\\frac$&lt;b&gt;" in page and ">_b<" in page and "<script" not in page
