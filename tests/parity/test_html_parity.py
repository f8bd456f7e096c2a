"""The texts of an HTML document against html5lib, which follows the standard of browsers word for word."""

import html
import itertools
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atento.text.documents.html_text import parts_of

html5lib = pytest.importorskip("html5lib", reason="the package html5lib is not installed")

_NOT_TEXT = {"script", "style", "code", "pre", "listing", "kbd", "samp", "var", "textarea", "svg", "math", "iframe"}


def shown(tree: Any) -> dict[str, bool]:
    """Word -> whether it is a text that is translated, by the tree of html5lib."""
    words: dict[str, bool] = {}

    def walk(element: Any, is_kept: bool) -> None:
        tag = element.tag.rpartition("}")[2] if isinstance(element.tag, str) else "!comment"
        attributes = element.attrib
        is_kept = is_kept or tag in _NOT_TEXT or tag == "!comment" or attributes.get("translate", "").lower() == "no"
        is_kept = is_kept or "notranslate" in attributes.get("class", "").split()
        words.update(dict.fromkeys(re.findall("w[0-9]+w", element.text or ""), not is_kept))
        for child in element:
            walk(child, is_kept)
            words.update(dict.fromkeys(re.findall("w[0-9]+w", child.tail or ""), not is_kept))

    walk(tree, False)
    return words


def tags(*names: str) -> st.SearchStrategy[str]:
    attributes = st.sampled_from(["", "", "", " translate=no", " class='x notranslate'", ' translate="NO"', " id=a"])
    starts = st.builds("<{}{}>".format, st.sampled_from(names), attributes)
    return starts | st.builds("</{}>".format, st.sampled_from(names))


BLOCKS = ("p", "li", "ul", "dt", "dd", "dl", "div", "section", "blockquote")
CELLS = st.builds(
    "{}<{}>{}".format,
    st.sampled_from(["", "", "<tr>", "</td>", "</tr><tr>", "<tbody><tr>", "</td></tr></tbody><tbody><tr>"]),
    st.sampled_from(["td", "th", "td translate=no"]),
    st.lists(tags("p", "b", "li", "ul", "div"), max_size=3).map("w0w".join),
)
TOKENS = [
    *("<", ">", "/", "!", "--", '"', "'", "=", " ", "p", "<b translate=no>", "</b>", "translate=no"),
    *('class="notranslate"', "<p ", "</p", "<![CDATA[", "]]>", "<?", "&amp;", "<br/>\n", "<script>", "</script>"),
    *("<style>", "</style ", "<textarea>", "<title>", "</title>", "<!--", "-->", "--!>", "<svg>", "</svg>"),
    *("</math>", "<math/>", "<iframe>"),
]


@settings(max_examples=300, derandomize=True)
@given(
    st.lists(tags(*BLOCKS, "b", "i", "a", "code"), max_size=12)
    | st.lists(tags(*BLOCKS, "h2", "h3", "pre", "span", "kbd"), max_size=12)
    | st.lists(CELLS, max_size=8).map(lambda cells: ["<table><tr><td>", *cells, "</table>"])
    | st.lists(st.sampled_from(TOKENS), max_size=12)
)
def test_what_is_translated_is_what_the_standard_calls_text(parts: list[str]) -> None:
    """Tags left out, tags that cross, attributes, raw text, comments."""
    count = itertools.count()
    document = re.sub("w0w", lambda _: f"w{next(count)}w", "".join(f"{part}w0w " for part in parts))
    theirs, parts_here = shown(html5lib.parseFragment(document)), parts_of(document)
    own = {word: part.kind != "markup" for part in parts_here for word in re.findall("w[0-9]+w", part.text)}
    assert {word: own[word] for word in theirs} == theirs
    assert not any(own[word] for word in own.keys() - theirs.keys())


@settings(max_examples=300, derandomize=True)
@given(st.lists(st.sampled_from(TOKENS) | st.text(max_size=3), max_size=12).map("".join))
def test_nothing_of_a_document_is_lost(document: str) -> None:
    assert html.unescape("".join(part.text for part in parts_of(document))) == html.unescape(document)


def test_numbers_of_any_length_are_characters() -> None:
    texts = ["&#" + "0" * 5000 + "65;", "&#" + "9" * 5000 + ";", "&#x" + "f" * 5000 + ";", "&#00000038;lt;"]
    assert [parts_of(text)[0].text for text in texts] == ["A", "\ufffd", "\ufffd", "&lt;"]
