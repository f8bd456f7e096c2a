"""Pictures, trees of searches and pages: nothing a token holds may act, masks print as the notes show them."""

import base64
import hashlib
import io
import json
import math
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from atento.base.errors import UsageError
from atento.decoding import Beam, Greedy, Sample, generate
from atento.decoding.trace import CUT, Trace
from atento.inspection import AttentionRecord, attention_page, attention_png, attention_svg, mask_text
from atento.inspection import decoding_page as page
from atento.inspection.figures.search_tree import beam_svg, outputs_svg
from atento.inspection.figures.svg import ramp_colour
from atento.inspection.page import EXACT_LIMIT, LIMIT
from atento.inspection.palette import DARK_RAMP, LIGHT_RAMP
from atento.inspection.token_display import visible
from atento_lab.notes.checks.toys import Chain, table_chain
from failing import fails

HOSTILE = ["<script>alert(1)</script>", "</title>", "&lt;", "\"'", "<!--", "]]>", "\u2028", "{0}{title}", "$x^2$"]
HOSTILE += ["\x1b[0m", "</script>"]
SVG = "{http://www.w3.org/2000/svg}"


def hostile() -> AttentionRecord:
    n = len(HOSTILE)
    weights = np.tril(np.random.default_rng(0).uniform(0.1, 1, (2, n, n))).astype(np.float32)
    weights /= weights.sum(-1, keepdims=True)
    about: dict[str, Any] = {"masks": {"decoder": "causal <b>"}, "title": HOSTILE[0], "model": "<i>m</i>"}
    return AttentionRecord(tokens=HOSTILE, kinds={"decoder": [weights]}, **about)


def texts(svg: str) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


class Page(HTMLParser):
    """Elements, and the text of scripts, styles and the title, as a browser cuts them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside = tag
        if tag in ("script", "style", "title"):
            self.texts.setdefault(tag, []).append("")

    def handle_data(self, data: str) -> None:
        if self.inside in self.texts:
            self.texts[self.inside][-1] += data

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""


def hash_of(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode() + "'"


def standing_alone(text: str) -> Page:
    """The page, whose policy allows its one script and style, and in which nothing else acts or is fetched."""
    page = Page(text)
    names = [name for name, _ in page.tags]
    assert names.count("script") == 2 and names.count("style") == 1
    assert not {"b", "link", "img", "iframe", "object", "embed", "base", "form"} & set(names)
    for _, attributes in page.tags:
        assert not any(name.startswith("on") or name in ("src", "href", "style") for name in attributes)
    (policy,) = [one["content"] for _, one in page.tags if one.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.split(" ", 1) for rule in str(policy).split("; "))
    assert rules["default-src"] == "'none'" and rules["script-src"] == hash_of(page.texts["script"][1])
    assert rules["style-src"] == hash_of(page.texts["style"][0])
    others = {"base-uri", "form-action", "require-trusted-types-for", "trusted-types"}
    assert set(rules) == {"default-src", "script-src", "style-src"} | others
    return page


def test_hostile_tokens_end_no_element_and_pages_allow_their_script_alone() -> None:
    page = standing_alone(attention_page(hostile()))
    (title,) = page.texts["title"]
    assert title.startswith("<script>alert(1)</script>")
    data = json.loads(page.texts["script"][0])["sentences"][0]
    assert [token[0] for token in data["kinds"]["decoder"]["sides"][0]["tokens"]][:6] == HOSTILE[:6]
    assert not re.search("[<>&\u2028\u2029]", page.texts["script"][0])
    text = attention_page(hostile()).replace("url(#atento-mark)", "")  # the one reference, within the page
    for forbidden in ("http://", "https://", "innerHTML", "eval(", "fetch(", "XMLHttpRequest", "@import", "url("):
        assert forbidden not in text


def test_weights_stand_in_the_page_to_the_last_bit_and_it_opens_on_the_map_asked_for() -> None:
    record = hostile()
    data = json.loads(Page(attention_page(record)).texts["script"][0])["sentences"][0]
    for head, text in enumerate(data["kinds"]["decoder"]["layers"][0]):
        values = np.frombuffer(base64.b64decode(text), dtype="<f4").reshape(len(HOSTILE), -1)
        np.testing.assert_array_equal(values, record.weights(0, head))
    assert data["exact"] is True and data["kinds"]["decoder"]["name"] == "decoder masked self-attention"
    page = Page(attention_page(hostile(), layer=-1, head=-1, words=True))
    start = json.loads(page.texts["script"][0])["sentences"][0]["start"]
    assert start == {"kind": "decoder", "layer": 0, "head": 1, "merge": True}
    fails(UsageError, "`head` must be from 0 to 1", attention_page, hostile(), head=5)


def uniform(heads: int, length: int, **more: Any) -> AttentionRecord:
    weights = np.broadcast_to(np.float32(1 / length), (heads, length, length))
    return AttentionRecord(tokens=["x"] * length, kinds={"encoder": [weights]}, **more)


def test_large_pages_round_and_huge_ones_are_refused() -> None:
    record = uniform(5, 1000)
    assert EXACT_LIMIT < 5 * 1000 * 1000
    text = attention_page(record)
    assert len(text) < 5 * 1000 * 1000 * 3
    data = json.loads(Page(text).texts["script"][0])["sentences"][0]
    values = np.frombuffer(base64.b64decode(data["kinds"]["encoder"]["layers"][0][0]), dtype="<u2") / 65535
    assert data["exact"] is False and np.abs(values - 0.001).max() < 1e-5
    fails(UsageError, f"at most {LIMIT:,} weights: got 49,000,000; .* shorter text", attention_page, uniform(49, 1000))


def test_svg_shows_tokens_words_and_weights() -> None:
    drawn = attention_svg(hostile(), head=0)
    root = ElementTree.fromstring(drawn)
    for token in HOSTILE[1:6]:
        assert texts(drawn).count(token) == 2
    allowed = {f"{SVG}{name}" for name in ("svg", "title", "rect", "text", "g", "circle")}
    assert {element.tag for element in root.iter()} <= allowed
    assert not any("href" in name or name.startswith("on") for element in root.iter() for name in element.attrib)
    weights = np.array([[[1.0, 0.0], [0.25, 0.75]]], dtype=np.float32)
    record = AttentionRecord(tokens=["o", "gato"], kinds={"encoder": [weights]}, masks={"encoder": "bidirectional"})
    root = ElementTree.fromstring(attention_svg(record))
    titled = [(rect, rect.find(f"{SVG}title")) for rect in root.iter(f"{SVG}rect")]
    cells = {title.text: rect.get("fill") for rect, title in titled if title is not None}
    told = {"o reads o: 1.0000", "o reads gato: 0.0000", "gato reads o: 0.2500", "gato reads gato: 0.7500"}
    assert set(cells) == told
    assert cells["o reads o: 1.0000"] == LIGHT_RAMP[-1] and cells["gato reads o: 0.2500"] == LIGHT_RAMP[2]
    assert "self-attention, layer 0, mean of 1 head: rows read columns" in texts(attention_svg(record))
    weights = np.full((1, 3, 3), 1 / 3, dtype=np.float32)
    record = AttentionRecord(tokens=["▁pul", "ou", "▁alto"], words=[0, 0, 1], kinds={"decoder": [weights]})
    said = texts(attention_svg(record, words=True))
    assert said.count("pulou") == 2 and said.count("alto") == 2 and "ou" not in said


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_colours_stand_in_the_palette_alone_and_darken_with_readable_text() -> None:
    light = [luminance(ramp_colour(share / 100)) for share in range(101)]
    assert all(before > after for before, after in pairwise(light))
    assert all(before < after for before, after in pairwise([luminance(colour) for colour in DARK_RAMP]))
    found = re.findall(r"--([a-z-]+): light-dark\((.+?), (.+?)\)", Page(attention_page(hostile())).texts["style"][0])
    assert len(found) > 15
    for theme in (1, 2):
        colour = {row[0]: row[theme] for row in found}
        pairs = [("ink", "ground"), ("ink", "surface"), ("muted", "ground"), ("muted", "surface"), ("mark", "surface")]
        for ink, paper in [*pairs, ("ink", "tint"), ("ink", "field"), ("on-accent", "accent"), ("surface", "ink")]:
            high, low = sorted((luminance(colour[ink]), luminance(colour[paper])), reverse=True)
            assert (high + 0.05) / (low + 0.05) >= 4.5, (ink, paper)
    # in no script, sheet or figure of a page; but for white paper, and the letters on a cell of a map
    root = Path(__file__).parents[2]
    folders = ("src/atento/inspection", "src/atento_serve", "src/atento_lab", "docs/assets", "tools")
    sources = [file for folder in folders for file in (root / folder).rglob("*") if file.name != "palette.py"]
    sources = [file for file in sources if file.suffix in (".css", ".js", ".html", ".py")]
    assert len(sources) > 100
    for file in sources:
        text = file.read_text(encoding="utf-8")
        assert set(re.findall(r"#[0-9a-f]{6}\b", text)) <= {"#ffffff", "#10202f"}, file.name
        if file.suffix == ".css":
            assert not re.findall(r"font(?:-size)?: *\d+px", text), file.name


def test_png_is_a_picture_even_of_tokens_that_look_like_formulas(tmp_path: Any) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib (atento[plot])")
    kinds = {"encoder": [np.full((1, 2, 2), 0.5, np.float32)]}
    record = AttentionRecord(tokens=["$\\foo", "$x^2$"], kinds=kinds, title="$\\bar")
    record.save(tmp_path / "r.png", layer=0, head=0)
    content = (tmp_path / "r.png").read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n") and content == attention_png(record, 0, 0)


def test_a7_l2_masks_as_text_keep_their_columns() -> None:
    assert mask_text(np.tril(np.ones((4, 4), dtype=bool))) == "1 0 0 0\n1 1 0 0\n1 1 1 0\n1 1 1 1"
    tokens = ["o", "gato", "pulou", "alto"]
    causal = np.tril(np.ones((1, 1, 4, 4), dtype=bool))
    assert mask_text(causal).splitlines()[2] == "1 1 1 0"
    assert mask_text(np.ones((4, 4), dtype=bool)).splitlines()[2] == "1 1 1 1"
    head, *rows = mask_text(causal, tokens, tokens).splitlines()
    assert head == "       o gato pulou alto"
    assert rows == ["o      1 0    0     0", "gato   1 1    0     0", "pulou  1 1    1     0", "alto   1 1    1     1"]
    assert mask_text(np.array([[True, False]]), columns=["日本", "é"]) == "日本 é\n1    0"
    assert mask_text(np.array([[True], [False]]), rows=["日", "\x1b[2J"]) == "日    1\n\ufffd[2J  0"


def test_what_is_no_mask_is_refused() -> None:
    for arguments, message in (
        ((np.ones((2, 2)),), r"a mask must be boolean of shape \(T, S\): got float64 of shape \(2, 2\)"),
        ((np.ones(3, dtype=bool),), r"got bool of shape \(3,\)"),
        ((np.ones((2, 1, 2, 2), dtype=bool),), r"got bool of shape \(2, 1, 2, 2\)"),
        ((np.ones((2, 2, 2), dtype=bool),), r"got bool of shape \(2, 2, 2\)"),
        ((np.ones((2, 3), dtype=bool), ["a"]), "`rows` must be as many labels as the mask has rows, 2: got 1"),
        ((np.ones((2, 3), dtype=bool), (), ["a"]), "`columns` must be as many .* the mask has columns, 3: got 1"),
    ):
        fails(UsageError, message, mask_text, *arguments)


def test_a_long_title_is_wrapped_in_a_png_and_none_of_it_clipped() -> None:
    """Drawn with its title, the picture is as wide as without one, and its edges stay white."""
    from matplotlib.image import imread

    kinds, titles = {"encoder": [np.full((1, 3, 3), 1 / 3, dtype=np.float32)]}, ("", "uma frase bastante longa " * 8)
    records = [AttentionRecord(tokens=["um", "dois", "três"], kinds=kinds, title=title) for title in titles]
    pictures = [imread(io.BytesIO(attention_png(record)))[..., :3] for record in records]
    assert pictures[0].shape[1] == pictures[1].shape[1]
    for picture in pictures:
        assert (picture[:, :3] == 1).all() and (picture[:, -3:] == 1).all() and (picture[:2] == 1).all()


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
    assert len([way for way in ways if way.get("stroke-width") == "3.2"]) == 3  # um, gato, </s>
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


def test_m7_the_page_stands_alone_and_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = table_chain({(): dict.fromkeys(HOSTILE, 1 / len(HOSTILE))})
    trace = traced(chain, Greedy(), Beam(3), Sample(n=2, top_k=5), top=10)
    data = json.loads(standing_alone(page.decoding_page(trace, title=HOSTILE[0])).texts["script"][0])
    assert [run["strategy"] for run in data["runs"]] == ["greedy", "beam", "sample"]
    assert data["runs"][1]["steps"][0]["candidates"][0]["token"] in [visible(word) for word in HOSTILE]
    filters = [one["filter"] for one in data["runs"][2]["steps"][0]["distributions"] if one["parent"] == 0]
    assert filters[0] == "model" and len(filters) > 1
    monkeypatch.setattr(page, "LIMIT", 2)
    with pytest.raises(UsageError, match="a page holds at most 2 steps: got 6"):
        page.decoding_page(traced(table_chain(GREEDY_MISSES), Beam(2, 0.0), Beam(2, 0.0)))
