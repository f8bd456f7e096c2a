"""The parts of an HTML document: its markup, which stays as it is, and its texts."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from itertools import accumulate, pairwise
from typing import Literal

_NOT_TEXT = frozenset({"script", "style", "code", "kbd", "samp", "var", "textarea", "svg", "math"})
_VOID = frozenset(
    {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
)

Kind = Literal["markup", "text", "lines"]  # lines: a text whose line breaks are shown, as in <pre>


@dataclass(frozen=True)
class Part:
    """A part of a document: markup as it stands there, or a text with its entities resolved."""

    kind: Kind
    text: str


def parts_of(document: str) -> list[Part]:
    """The parts of a document, in their order.

    What has no words is markup: tags, comments, scripts, styles, code, and elements with `translate="no"` or the class
    `notranslate`.
    """
    parser = _Parser(document)
    parser.feed(document)
    parser.close()
    return parser.parts()


class _Parser(HTMLParser):
    """Notes where each tag and each text begins; what stands between two beginnings is copied from the document."""

    def __init__(self, document: str) -> None:
        super().__init__(convert_charrefs=True)
        self._document = document
        lengths = (len(line) for line in document.split("\n"))
        self._lines = [0, *accumulate(length + 1 for length in lengths)]
        self._begins: list[tuple[int, Kind]] = []
        self._skipped: list[str] = []  # the open elements from one without words on
        self._preformatted = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._begin("markup")
        if tag in _VOID:
            return
        values = dict(attrs)
        is_kept = values.get("translate") == "no" or "notranslate" in (values.get("class") or "").split()
        if self._skipped or tag in _NOT_TEXT or is_kept:
            self._skipped.append(tag)
        self._preformatted += tag == "pre"

    def handle_endtag(self, tag: str) -> None:
        self._begin("markup")
        if tag in self._skipped:  # those that were not closed end with it
            del self._skipped[len(self._skipped) - 1 - self._skipped[::-1].index(tag) :]
        self._preformatted -= tag == "pre" and self._preformatted > 0

    def handle_data(self, data: str) -> None:
        self._begin("markup" if self._skipped else "lines" if self._preformatted else "text")

    def handle_comment(self, data: str) -> None:
        self._begin("markup")

    def handle_decl(self, decl: str) -> None:
        self._begin("markup")

    def handle_pi(self, data: str) -> None:
        self._begin("markup")

    def unknown_decl(self, data: str) -> None:
        self._begin("markup")

    def _begin(self, kind: Kind) -> None:
        line, column = self.getpos()
        begin = self._lines[line - 1] + column
        if not self._begins or self._begins[-1][1] != kind:  # a text may come in several parts
            self._begins.append((begin, kind))

    def parts(self) -> list[Part]:
        """What was noted; the document begins as markup if no part begins there."""
        begins: Sequence[tuple[int, Kind]] = self._begins or [(0, "markup")]
        begins = [(0, begins[0][1]), *begins[1:]]
        ends = [*(begin for begin, _ in begins), len(self._document)]
        slices = [self._document[start:end] for start, end in pairwise(ends)]
        return [
            Part(kind, part if kind == "markup" else html.unescape(part)) for part, (_, kind) in zip(slices, begins)
        ]
