"""Still pictures and the page as text: nothing a token holds may act, masks print as the notes show them."""

import base64
import hashlib
import io
import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atento.base.errors import UsageError
from atento.inspection import AttentionRecord, attention_page, attention_png, attention_svg, mask_text
from atento.inspection.figures.svg import ramp_colour
from atento.inspection.page import EXACT_LIMIT, LIMIT
from atento.inspection.palette import DARK_RAMP, LIGHT_RAMP
from failing import fails

HOSTILE = ["<script>alert(1)</script>", "</title>", "&lt;", "\"'", "<!--", "]]>", "\u2028", "{0}{title}", "$x^2$"]
HOSTILE += ["\x1b[0m"]
SVG = "{http://www.w3.org/2000/svg}"


def hostile() -> AttentionRecord:
    n = len(HOSTILE)
    weights = np.tril(np.random.default_rng(0).uniform(0.1, 1, (2, n, n))).astype(np.float32)
    weights /= weights.sum(-1, keepdims=True)
    about: dict[str, Any] = {"masks": {"decoder": "causal <b>"}, "title": HOSTILE[0], "model": "<i>m</i>"}
    return AttentionRecord(tokens=HOSTILE, kinds={"decoder": [weights]}, **about)


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


def test_hostile_tokens_end_no_element_of_the_page() -> None:
    page = Page(attention_page(hostile()))
    names = [name for name, _ in page.tags]
    assert names.count("script") == 2 and names.count("style") == 1 and names.count("title") == 1
    assert "b" not in names and not {"link", "img", "iframe", "object", "base", "form"} & set(names)
    assert page.texts["title"][0].startswith("<script>alert(1)</script>")
    data = json.loads(page.texts["script"][0])["sentences"][0]
    assert [token[0] for token in data["kinds"]["decoder"]["sides"][0]["tokens"]][:6] == HOSTILE[:6]
    assert not re.search("[<>&\u2028\u2029]", page.texts["script"][0])


def test_the_policy_allows_this_script_and_style_and_nothing_else() -> None:
    page = Page(attention_page(hostile()))
    metas = [attributes for name, attributes in page.tags if name == "meta"]
    (policy,) = [one["content"] for one in metas if one.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.split(" ", 1) for rule in str(policy).split("; "))
    assert rules["default-src"] == "'none'" and rules["script-src"] == hash_of(page.texts["script"][1])
    assert rules["style-src"] == hash_of(page.texts["style"][0])
    others = {"base-uri", "form-action", "require-trusted-types-for", "trusted-types"}
    assert set(rules) == {"default-src", "script-src", "style-src"} | others


def test_nothing_in_the_page_acts_outside_its_script_or_names_an_address() -> None:
    text = attention_page(hostile()).replace("url(#atento-mark)", "")  # the one reference, within the page
    for _, attributes in Page(text).tags:
        assert not any(name.startswith("on") or name in ("src", "href", "style") for name in attributes)
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
    root = ET.fromstring(attention_svg(hostile(), head=0))
    texts = [element.text for element in root.iter(f"{SVG}text")]
    for token in HOSTILE[1:6]:
        assert texts.count(token) == 2
    allowed = {f"{SVG}{name}" for name in ("svg", "title", "rect", "text", "g", "circle")}
    assert {element.tag for element in root.iter()} <= allowed
    assert not any("href" in name or name.startswith("on") for element in root.iter() for name in element.attrib)
    weights = np.array([[[1.0, 0.0], [0.25, 0.75]]], dtype=np.float32)
    record = AttentionRecord(tokens=["o", "gato"], kinds={"encoder": [weights]}, masks={"encoder": "bidirectional"})
    root = ET.fromstring(attention_svg(record))
    titled = [(rect, rect.find(f"{SVG}title")) for rect in root.iter(f"{SVG}rect")]
    cells = {title.text: rect.get("fill") for rect, title in titled if title is not None}
    told = {"o reads o: 1.0000", "o reads gato: 0.0000", "gato reads o: 0.2500", "gato reads gato: 0.7500"}
    assert set(cells) == told
    assert cells["o reads o: 1.0000"] == LIGHT_RAMP[-1] and cells["gato reads o: 0.2500"] == LIGHT_RAMP[2]
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert "self-attention, layer 0, mean of 1 head: rows read columns" in texts
    weights = np.full((1, 3, 3), 1 / 3, dtype=np.float32)
    record = AttentionRecord(tokens=["▁pul", "ou", "▁alto"], words=[0, 0, 1], kinds={"decoder": [weights]})
    texts = [text.text for text in ET.fromstring(attention_svg(record, words=True)).iter(f"{SVG}text")]
    assert texts.count("pulou") == 2 and texts.count("alto") == 2 and "ou" not in texts


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_colours_stand_in_the_palette_alone_and_darken_with_readable_text() -> None:
    light = [luminance(ramp_colour(share / 100)) for share in range(101)]
    assert all(before > after for before, after in pairwise(light))
    assert all(before < after for before, after in pairwise([luminance(colour) for colour in DARK_RAMP]))
    style = Page(attention_page(hostile())).texts["style"][0]
    found = re.findall(r"--([a-z-]+): light-dark\((.+?), (.+?)\)", style)
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
