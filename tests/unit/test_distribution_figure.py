"""Distributions as bars: as high as they are probable, dark where kept, told in words; faults said."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
import torch

from atento.base.errors import UsageError
from atento.decoding.filters import top_k
from atento.inspection.figures.distribution import NextToken, distribution_svg, distribution_text
from failing import fails

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
    said = "`max_tokens` must be at least 1: got 0"
    fails(UsageError, said, distribution_svg, [NextToken("a", [1.0])], max_tokens=0)
