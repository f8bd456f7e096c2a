"""The markup inside a text of Markdown: links, images, code and tags where markdown-it-py finds them, and emphasis."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock, reference
from markdown_it.rules_inline import StateInline, autolink, backtick, html_inline, image, link

from atento.text.documents.html_elements import NOT_TEXT
from atento.text.markup_tags import halves

_Rule = Callable[[StateInline, bool], bool]
_RULES = {"link": link, "image": image, "backticks": backtick, "autolink": autolink, "html_inline": html_inline}
_MARKUP = re.compile(
    r"(?P<kept>!\[[^\[\]]*\]\[[^\[\]]*\]|<[^<>\s][^<>]*>|\\(?:[^\w\s]|_)|\[\^[^\[\]\s]+\]|&[#\w]+;)"
    r"|(?P<open>\[)(?=[^\[\]]*\]\[[^\[\]]+\])|(?P<close>\]\[[^\[\]]+\])"  # a label that is defined elsewhere
    r"|(?P<mark>\*{1,3}|~~|(?<!\w)_{1,3}+(?=\S)|(?<=\S)_{1,3}+(?!\w))"
)


@dataclass(frozen=True)
class Mark:
    """Markup in a text: where it stands, how it is written there, and the element that begins or ends with it."""

    start: int
    end: int
    raw: str
    opens: str | None = None
    closes: str | None = None


class Parser(MarkdownIt):
    """A parser of CommonMark with tables, which notes where links, images, code and tags stand in a text."""

    def __init__(self) -> None:
        super().__init__("commonmark")
        self.enable("table").disable(["inline", "emphasis"])  # texts are asked for one by one
        self.block.ruler.at("reference", _reference)
        for name, rule in _RULES.items():
            self.inline.ruler.at(name, _recorded(rule))

    def validateLink(self, url: str) -> bool:
        """Any address is one: it stays."""
        return True

    def marks_of(self, text: str, found: dict[str, Any]) -> list[Mark]:
        """The markup in a text, in its order; `found` is what `parse` noted of the document, with its references."""
        recorded = found["marks"] = list[Mark]()
        self.inline.parse(text, self, found, [])
        return list(_with_emphasis(text, sorted(recorded, key=lambda mark: mark.start)))


def _reference(state: StateBlock, first: int, last: int, silent: bool) -> bool:
    """The definition of a link's address; that of a note is text."""
    is_note = state.src.startswith("[^", state.bMarks[first] + state.tShift[first])
    return not is_note and reference(state, first, last, silent)


def _recorded(rule: _Rule) -> _Rule:
    """A rule of markdown-it-py that also notes the place of what it finds."""

    def record(state: StateInline, silent: bool) -> bool:
        marks, start = state.env["marks"], state.pos
        count = len(marks)
        if not rule(state, silent):
            return False
        if rule is html_inline and (name := halves(state.src[start : state.pos])[0]) in NOT_TEXT:  # as <kbd>
            end = state.src.find(f"</{state.src[start + 1 : start + 1 + len(name)]}>", state.pos)
            state.pos = max(state.pos, end + len(name) + 3) if end >= 0 else state.pos
        if silent or state.pending:  # a row of ` that begins no code is pending text
            return True
        raw = state.src[start : state.pos]
        if rule is not link or raw.startswith("[^"):
            del marks[count:]  # what stands in the text of an image
            marks.append(Mark(start, state.pos, raw, *(halves(raw) if rule is html_inline else ())))
            return True
        middle = state.md.helpers.parseLinkLabel(state, start, True)
        closing = state.src[middle : state.pos]
        label = f"][{state.src[start + 1 : middle]}]"  # of [beach] and [beach][], which a translation would change
        marks.append(Mark(start, start + 1, "[", opens="["))
        marks.append(Mark(middle, state.pos, label if closing in ("]", "][]") else closing, closes="["))
        return True

    return record


def _with_emphasis(text: str, recorded: list[Mark]) -> Iterator[Mark]:
    """The markup that was noted, and between it what is emphasized, escaped, or of other dialects."""
    at, opened, match = 0, list[str](), _MARKUP.search(text)
    for known in [*recorded, Mark(len(text), len(text), "")]:
        while match is not None and match.start() < known.start:
            if match.start() < at:
                match = _MARKUP.search(text, at)
                continue
            at, mark, opens, closes = match.end(), match[0], None, None
            if match["kept"]:
                opens, closes = halves(mark)
            elif match["mark"] is None:
                opens, closes = "[" if match["open"] else None, "[" if match["close"] else None
            elif mark in opened and text[match.start() - 1 : match.start()].strip():  # it closes: no space before it
                opened.remove(mark)
                closes = mark
            elif text[at : at + 1].strip() and text.find(mark, at) > 0:  # it opens: no space behind it, and one follows
                opened.append(mark)
                opens = mark
            if match["mark"] is None or opens or closes:  # else it is text
                yield Mark(match.start(), at, mark, opens, closes)
            match = _MARKUP.search(text, at)
        if known.start >= at and known.raw:
            yield known
            at = known.end
