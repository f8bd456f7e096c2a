"""Figures: curves, a confusion matrix, distributions and networks, in numbers as in words; faults are said."""

import importlib.util
import random
import re
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from atento.base.errors import MissingPartError, UsageError
from atento.config import presets
from atento.config.sections.network import NetworkConfig
from atento.config.sections.recurrent import RecurrentConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.decoding.filters import top_k
from atento.inspection.figures.classifier_figures import confusion_png, confusion_svg
from atento.inspection.figures.curves import Line, Panel, curves_page, curves_picture, sparkline
from atento.inspection.figures.distribution import NextToken, distribution_svg, distribution_text
from atento.inspection.figures.network_diagram import network_svg, network_text
from atento.metrics import confusion, confusion_of, f1, report
from atento.networks import build_network, parameter_count
from atento.networks.describe import Part, describe
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


def test_counts_equal_those_of_scikit_learn_as_text_html_and_drawing() -> None:
    matrix = confusion(["b", "a", "b"], ["a", "a", "b"])
    assert str(matrix) == "right \\ predicted  a  b\na                  1  1\nb                  0  1"
    shown = confusion(["<b>"], ["a"])._repr_html_()
    assert "&lt;b&gt;" in shown and "<b>" not in shown
    fails(UsageError, "made from the result of `report`: got Score", confusion_of, f1(["a"], ["a"]))
    matrix = confusion(["x", "a", "x"], ["a", "a", "x"])
    root = ElementTree.fromstring(confusion_svg(("a$\\frac$", "<x>"), matrix.counts, "<run>"))
    titles = ["".join(title.itertext()) for title in root.iter(f"{SVG}title")]
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


SVG = "{http://www.w3.org/2000/svg}"
FLAT, PEAKED = [0.2, 0.3, 0.2, 0.2, 0.1], [0.01, 0.02, 0.9, 0.04, 0.03]
NAMES = ["o", "<gato>", "pulou & caiu", "alto", "\x00"]


def kept(probabilities: list[float], k: int) -> np.ndarray:
    return (top_k(torch.tensor([probabilities]).log(), k)[0] > -float("inf")).numpy()


def bars(drawing: str) -> list[tuple[float, str]]:
    """Height and colour of each bar, the background aside."""
    found = list(ElementTree.fromstring(drawing).iter(f"{SVG}rect"))[1:]
    return [(float(str(one.get("height"))), str(one.get("fill"))) for one in found]


def texts(drawing: str) -> list[str]:
    return [str(one.text) for one in ElementTree.fromstring(drawing).iter(f"{SVG}text")]


def test_j6_bars_and_text_show_what_is_kept_and_what_finds_no_room() -> None:
    drawing = distribution_svg([NextToken("flat", FLAT, kept(FLAT, 2)), NextToken("peaked", PEAKED, kept(PEAKED, 2))])
    found = bars(drawing)
    highest = max(height for height, _ in found)
    shares = [height / highest * 0.9 for height, _ in found]  # one scale for both
    assert shares == pytest.approx([*sorted(FLAT, reverse=True), *sorted(PEAKED, reverse=True)], abs=1e-3)
    assert [colour == "#0072b2" for _, colour in found] == [True, True, False, False, False] * 2
    assert "keeps 2 of 5 tokens, 50.0% of the mass" in texts(drawing)
    assert "keeps 2 of 5 tokens, 94.0% of the mass" in texts(drawing)
    drawing = distribution_svg([NextToken("a < b", PEAKED, names=NAMES)], title="A & B")
    assert texts(drawing) == ["A & B", "a < b", "5 tokens", "pulou & caiu", "alto", "\ufffd", "<gato>", "o"]
    assert {colour for _, colour in bars(drawing)} == {"#0072b2"}
    one = NextToken("flat", np.full(50, 0.02), np.arange(50) < 30)
    drawing = distribution_svg([one], max_tokens=20)
    assert len(bars(drawing)) == 20 and "and 30 more: 60.0%, 10 of them kept" in texts(drawing)
    assert "and 30 more" in distribution_text([one], max_tokens=20)
    assert distribution_text([NextToken("peaked", PEAKED, kept(PEAKED, 2), NAMES)]).splitlines() == [
        "peaked: keeps 2 of 5 tokens, 94.0% of the mass",
        "  + pulou & caiu 0.9000 " + "█" * 27,
        "  + alto         0.0400 █",
        "  - \ufffd            0.0300 ░",
        "  - <gato>       0.0200 ░",
        "  - o            0.0100",
    ]


def test_what_cannot_be_drawn_is_said() -> None:
    for panels, message in (
        ([], "a drawing needs at least one distribution: got none"),
        ([NextToken("a", [0.5, 0.4])], r"probabilities must be of shape \(V,\), none negative, and sum to 1: got"),
        ([NextToken("a", [1.5, -0.5])], r"probabilities must be of shape \(V,\), none negative"),
        ([NextToken("a", [[0.5, 0.5]])], r"got \(1, 2\) for 'a'"),
        ([NextToken("a", [0.5, 0.5], [True])], r"`kept` must be boolean of shape \(2,\): got bool of shape \(1,\)"),
        ([NextToken("a", [0.5, 0.5], [1, 0])], r"`kept` must be boolean of shape \(2,\): got int64"),
        ([NextToken("a", [0.5, 0.5], names=["x"])], "`names` must name 2 tokens: got 1"),
    ):
        fails(UsageError, message, distribution_svg, panels)
    fails(UsageError, "`max_tokens` must be at least 1: got 0", distribution_svg, [NextToken("a", [1.0])], max_tokens=0)


IDS = {"ids": dict.fromkeys(("pad", "bos", "eos", "unk", "start"), 0)}
SIZES = {"vocab_size": 30, "d_model": 12, "n_heads": 3, "max_len": 8}
CONFIGS = {
    "pre": presets.transformer_tiny(**SIZES | IDS),
    "bert": presets.bert_tiny(**SIZES | IDS, heads=(HeadConfig("answer"),)),
    "llama": presets.llama3_8b(**SIZES | IDS, d_ff=20, attention={"n_kv_heads": 1}, n_layers=3),
    "t5": presets.t5_small(**SIZES | IDS, n_decoder_layers=1, attention={"d_head": 4}),
    "recurrent": NetworkConfig(architecture="recurrent-seq2seq", recurrent=RecurrentConfig(), **SIZES | IDS),
    "recurrent LM": NetworkConfig(architecture="recurrent-lm", recurrent=RecurrentConfig(), **SIZES | IDS),
}


def counted(parts: list[Part]) -> int:
    return sum((counted(list(p.parts)) if p.parts else p.parameters or 0) * p.repeats for p in parts)


def test_j3_j9_every_number_stands_in_one_box_named_and_lines_say_how_many_blocks() -> None:
    """Relative positions stand beside their stack; an embedding that both sides share is drawn twice."""
    for name in CONFIGS:
        network = build_network(CONFIGS[name])
        columns = describe(network)
        beside = sum(p.numel() for n, p in network.named_parameters() if ".positions." in n and "inputs" not in n)
        assert counted(columns) - (30 * 12 if len(columns) == 2 else 0) + beside == parameter_count(network)
        root = ElementTree.fromstring(network_svg(columns, "a < b"))
        said = [text.text for text in root.iter(f"{SVG}text")]
        lines = [line.strip() for line in network_text(columns).splitlines()]
        for column in columns:
            assert column.name in said and column.name in lines
        assert root.attrib["aria-label"] == "a < b" and said[0] == "a < b"
        boxes = [rect for rect in root.iter(f"{SVG}rect") if rect.get("rx") == "5"]
        assert len(boxes) == len([line for line in lines if not line.startswith("block")]) - len(columns)
        width, height = (float(root.attrib[side]) for side in ("width", "height"))
        for box in boxes:
            x, y, w, h = (float(box.attrib[key]) for key in ("x", "y", "width", "height"))
            assert x >= 0 and x + w <= width and y >= 0 and y + h <= height
    lines = network_text(describe(build_network(CONFIGS["llama"]))).splitlines()
    assert "  block × 3 (Rotary)  1,128" in lines and "    self-attention (3 heads, 1 of keys; causal)  384" in lines
    assert "    feed-forward (20 wide)  720" in lines
