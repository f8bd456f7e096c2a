"""Trees of searches and their page: valid drawings, every fate told, greedy missing the best path, nothing may act."""

import json
import math
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from atento.base.errors import UsageError
from atento.decoding import Beam, Greedy, Sample, generate
from atento.decoding.trace import CUT, Trace
from atento.inspection import decoding_page as page
from atento.inspection.figures.search_tree import beam_svg, outputs_svg
from atento.inspection.token_display import visible
from atento_lab.notes.checks.toys import Chain, table_chain
from failing import fails
from test_inspection_drawing import SVG, Page, hash_of

# greedy takes "o" (.6) and ends at .6·.4 = .24; "um" (.4) leads to .4·.9 = .36
GREEDY_MISSES = {
    (): {"o": 0.6, "um": 0.4},
    ("o",): {"gato": 0.3, "</s>": 0.4, "cão": 0.3},
    ("um",): {"gato": 0.9, "</s>": 0.1},
}


def traced(chain: Chain, *strategies: Any, top: int = 3) -> Trace:
    trace = Trace(top=top, name=lambda token: chain.names[token])
    for strategy in strategies:
        generate(chain, torch.tensor([[0]]), strategy, max_new_tokens=4, trace=trace, seed=0)
    return trace


def texts(svg: str) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def boxes(svg: str) -> list[ElementTree.Element]:
    return [rect for rect in ElementTree.fromstring(svg).iter(f"{SVG}rect") if rect.get("rx") == "6"]


def test_j7_a_beam_of_two_as_a_tree_with_its_scores() -> None:
    """Each box a token and the sum so far; edges bear log p; what was dropped says why; the best way is bold."""
    chain = table_chain(GREEDY_MISSES)
    svg = beam_svg(traced(chain, Beam(2, 0.0)).runs[0], name=lambda token: chain.names[token])
    said = texts(svg)
    for word in ("o", "um", "gato", "</s>", "outside the best k"):
        assert word in said
    for total in (math.log(0.6), math.log(0.4), math.log(0.36), math.log(0.24)):
        assert f"{total:.2f}" in said
    ways = list(ElementTree.fromstring(svg).iter(f"{SVG}path"))
    bold = [way for way in ways if way.get("stroke-width") == "3.2"]
    assert len(bold) == 3  # um, gato, </s>
    assert len(boxes(svg)) == len(ways) + 1  # a tree


def test_j7_greedy_misses_the_best_path_and_all_is_inside_the_drawing() -> None:
    """Of a search that the limit ends, too."""
    trace = Trace(top=3)
    generate(table_chain(GREEDY_MISSES), torch.tensor([[0]]), Beam(2, 0.0), max_new_tokens=2, trace=trace)
    drawing = ElementTree.fromstring(beam_svg(trace.runs[0]))
    cut = [text for text in drawing.iter(f"{SVG}text") if text.text == CUT]
    assert len(cut) == 2
    assert all(float(text.get("x", 0)) + 5 * len(CUT) <= float(drawing.get("width", 0)) for text in cut)
    # both outputs in one tree, a colour each, with their log-probabilities; sampling's outputs beside them
    chain = table_chain(GREEDY_MISSES)
    trace = traced(chain, Greedy(), Beam(2, 0.0), Sample(n=3))
    svg = outputs_svg(trace.runs, name=lambda token: chain.names[token])
    said = texts(svg)
    assert any(f"greedy {math.log(0.24):.2f}" in one for one in said)
    assert any(f"beam {math.log(0.36):.2f}" in one for one in said)
    assert sum(one.count("sample -") for one in said) == 3
    ways = {(way.get("d"), way.get("stroke")) for way in ElementTree.fromstring(svg).iter(f"{SVG}path")}
    assert {"#d55e00", "#0072b2", "#009e73"} == {stroke for _, stroke in ways}


@pytest.mark.parametrize("strategy", [Greedy(), Sample(n=4), Beam(3, n_best=3), Beam(4, stopping="shrinking")])
def test_m7_every_search_is_drawn_inside_its_picture(strategy: Any) -> None:
    chain = table_chain(GREEDY_MISSES)
    for svg in (beam_svg(traced(chain, strategy).runs[0]), outputs_svg(traced(chain, strategy).runs)):
        root = ElementTree.fromstring(svg)
        width, height = float(root.attrib["width"]), float(root.attrib["height"])
        places = []
        for box in boxes(svg):
            x, y, w, h = (float(box.attrib[key]) for key in ("x", "y", "width", "height"))
            assert x >= 0 and y >= 0 and x + w <= width and y + h <= height
            places.append((x, y))
        assert len(set(places)) == len(places)
        for column in {x for x, _ in places}:
            falling = sorted(y for x, y in places if x == column)
            assert all(b - a >= 34 for a, b in pairwise(falling))  # no box over another


def test_m7_sentences_and_traces_that_are_not_there_are_refused() -> None:
    trace = traced(table_chain(GREEDY_MISSES), Greedy())
    fails(UsageError, "the run has sentences 0 to 0: got 1", beam_svg, trace.runs[0], 1)
    fails(UsageError, "the run has sentences 0 to 0: got -1", outputs_svg, trace.runs, -1)
    fails(UsageError, "the trace is empty", page.decoding_page, Trace())


HOSTILE = ["</s>", "<script>alert(1)</script>", "</script>", "{0}{title}", "\x1b[0m", "\u2028", "]]>", "\"'"]


def test_m7_the_page_stands_alone_and_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = table_chain({(): dict.fromkeys(HOSTILE[1:], 1 / 7)})
    trace = traced(chain, Greedy(), Beam(3), Sample(n=2, top_k=5), top=10)
    made = Page(page.decoding_page(trace, title=HOSTILE[1]))
    scripts = [attributes for tag, attributes in made.tags if tag == "script"]
    assert len(scripts) == 2 and all("src" not in attributes for attributes in scripts)
    assert not [tag for tag, _ in made.tags if tag in ("link", "img", "iframe", "object", "embed")]
    assert not [key for _, attributes in made.tags for key in attributes if key.startswith("on") or key == "style"]
    policy = next(a["content"] for t, a in made.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None and "default-src 'none'" in policy
    for kind, text in (("script", made.texts["script"][1]), ("style", made.texts["style"][0])):
        assert f"{kind}-src {hash_of(text)}" in policy
    data = json.loads(made.texts["script"][0])
    assert [run["strategy"] for run in data["runs"]] == ["greedy", "beam", "sample"]
    assert data["runs"][1]["steps"][0]["candidates"][0]["token"] in [visible(word) for word in HOSTILE]
    filters = [one["filter"] for one in data["runs"][2]["steps"][0]["distributions"] if one["parent"] == 0]
    assert filters[0] == "model" and len(filters) > 1
    monkeypatch.setattr(page, "LIMIT", 2)
    with pytest.raises(UsageError, match="a page holds at most 2 steps: got 6"):
        page.decoding_page(traced(table_chain(GREEDY_MISSES), Beam(2, 0.0), Beam(2, 0.0)))
