"""Markdown (.md): paragraphs, headings, list items and cells; code, links' addresses and other markup stay."""

import re
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock, reference
from markdown_it.rules_inline import StateInline, autolink, backtick, html_inline, image, link
from markdown_it.token import Token

from atento.text.documents.html_text import NOT_TEXT, has_letters, tag_pieces
from atento.text.documents.segments import NUMBERED, Inline, Segment, wrapped
from atento.text.found_spans import halves, name_of

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


_FRONT = re.compile(r"(---|\+\+\+)[ \t]*\r?\n.*?\r?\n(?:\1|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_KEPT_LINE = re.compile(r"\[![\w-]+\][+-]?|:{3,}.*|(?:!!!|\?\?\?)\+? .*")  # of notes, in several dialects
_IMAGE = re.compile(r"!\[((?:[^\[\]\\]|\\.)*+)\]\([^\"]*?(?:\"((?:[^\"\\]|\\.)*+)\"\s*+)?\)")  # its text and title
_BOX = re.compile(r"\[[ xX]\]\s+")  # of a task
_BLOCK = re.compile(r"(?:[-+*#>]|={2,}|-{2,}|#{2,6}|\d{1,9}(?=[.)])[.)])(?=\s|\Z)|>|`{3}|~{3}")
"""What begins a list, a heading, a quotation or code where a line begins with it."""
_LINES = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z")
_HEAD = re.compile(r"(?:\[\^[^\[\]\s]+\]|\*\[[^\[\]]+\]):\s+|:\s+(?=\S)")
"""What stands before a footnote, an abbreviation or a definition in the line where its text begins."""


def read_markdown(text: str, name: str, *, attributes: bool = False) -> list[str | Segment]:
    """The pieces of a Markdown text, in the rules of CommonMark with tables; a head between lines --- stays.

    `attributes`: whether texts and titles of images, and those of attributes of tags, are segments too.
    """
    front = _FRONT.match(text)
    start = front.end() if front else 0  # behind the head
    lines = list(_LINES.finditer(text, start))
    pieces, at = list[str | Segment](), 0
    parser, noted = Parser(), dict[str, Any]()
    found = dict[int, int]()  # line -> where the last slice of it ends
    for token in parser.parse(text[start:], noted):
        if token.type != "inline" or token.map is None or not token.content.strip():
            continue
        slices = _places(token, lines, found)  # where the lines of a paragraph, heading or cell stand
        marks = parser.marks_of("\n".join(text[begin:end] for begin, end in slices), noted)
        for first, last, segment in _segments(text, slices, marks, attributes):
            if first >= at:  # no place twice
                pieces += [text[at:first], segment]
                at = last
    return [*pieces, text[at:]]


def _cuts(text: str, slices: list[tuple[int, int]], marks: list[Mark]) -> list[tuple[int, int]]:
    """Where texts end, and what stands between two: places in the lines joined by newlines."""
    cuts, at = [(mark.start, mark.end) for mark in marks if name_of(mark.raw) == "br"], 0
    for number, (start, end) in enumerate(slices):
        head = _HEAD.match(text, start, end) or (_BOX.match(text, start, end) if number == 0 else None)
        if head is not None:
            cuts.append((max(0, at - 1), at + head.end() - start))
        length = end - start
        if _KEPT_LINE.fullmatch(text, start, end):
            cuts.append((at, at + length))
        elif number + 1 < len(slices) and text[end - 1 : end] == "\\":  # a hard break
            cuts.append((at + length - 1, at + length + 1))
        elif text.startswith("  ", end):
            cuts.append((at + length, at + length + 1))
        at += length + 1
    return sorted(cuts)


def _places(token: Token, lines: list[re.Match[str]], found: dict[int, int]) -> list[tuple[int, int]]:
    """Where the lines of a token's text stand in the document; none if they are not there as they are."""
    assert token.map is not None
    slices, number = list[tuple[int, int]](), token.map[0]
    for content in token.content.split("\n"):
        words = content.strip()
        in_cell = words.replace("|", r"\|")  # where it is written so
        while number < len(lines):
            match = lines[number]
            begin = max(match.start(), found.get(number, 0))
            places = [(match.string.find(one, begin, match.end()), one) for one in (words, in_cell)]
            at, words = next((place for place in places if place[0] >= 0), (-1, words))
            if at >= 0:
                break
            number += 1
        else:
            return []
        if words:
            slices.append((at, at + len(words)))
            found[number] = at + len(words)
        number += "\n" in token.content  # the next line of a paragraph, not the next cell
    return slices


def _segments(
    text: str, slices: list[tuple[int, int]], marks: list[Mark], attributes: bool
) -> Iterator[tuple[int, int, Segment]]:
    """The segments of some lines, each with where it begins and ends in the document."""
    words = "\n".join(text[start:end] for start, end in slices)
    begins = [0, *(match.end() for match in re.finditer("\n", words))]  # of the lines

    def place(at: int) -> int:
        line = bisect_right(begins, at) - 1
        return slices[line][0] + at - begins[line]

    todo, left, in_code = deque(marks), 0, set[int]()
    for end, behind in [*_cuts(text, slices, marks), (len(words), len(words))]:
        part = words[left:end]
        begin, last = left + len(part) - len(part.lstrip()), left + len(part.rstrip())
        left = max(left, behind)
        inside = list[Mark]()
        while todo and todo[0].start < last:
            mark = todo.popleft()
            if begin <= mark.start and mark.end <= last:
                raw = mark.raw.replace("\n", " ")
                if mark.raw[0] == "`":  # its lines stay, since spaces count in code
                    raw = text[place(mark.start) : place(mark.end - 1) + 1]
                    in_code.update(range(mark.start, mark.end))
                inside.append(replace(mark, start=mark.start - begin, end=mark.end - begin, raw=raw))
        if begin < last:
            first, stop = place(begin), place(last)
            newlines = [at - 1 for at in begins[bisect_right(begins, begin) : bisect_right(begins, last)]]
            between = [text[place(at) : place(at + 1)] for at in newlines if at not in in_code]  # as a newline and "> "
            segment = _segment(words[begin:last].replace("\n", " "), inside, text[first:stop], between, attributes)
            if segment is not None:
                yield first, stop, segment


def _segment(words: str, marks: list[Mark], raw: str, between: list[str], attributes: bool) -> Segment | None:
    """The segment of a text, which is translated as one and has as many lines again."""
    inline, at = Inline(), 0
    for mark in marks:
        inline.add(words[at : mark.start], words[at : mark.start])
        inline.mark(_pieces(mark.raw) if attributes else mark.raw, mark.opens, mark.closes)
        at = mark.end
    inline.add(words[at:], words[at:])

    def lines(written: str) -> str:
        marker = None if _BLOCK.match(words) else _BLOCK.match(written)  # it would begin a list, or a heading
        if marker is not None:
            place = marker.end() - 1 if marker[0][0].isdigit() else 0  # "1\." but "\-"
            written = f"{written[:place]}\\{written[place:]}"
        return wrapped(written, between, _BLOCK)

    text = NUMBERED.sub("", inline.text)  # a sign that it has stays as it is there
    shown = partial(re.sub, "[*_`~]", lambda sign: sign[0] if sign[0] in text else f"\\{sign[0]}")
    made = replace(inline.segment(shown, lines, marks="*_~"), raw=raw)
    return made if inline.has_words else made.of_attributes()


def _pieces(mark: str) -> list[str | Segment]:
    """The pieces of markup: texts of attributes of a tag, or text and title of an image."""
    if mark.startswith("<"):
        return tag_pieces(mark, partial(escape, quote=False), attributes=True)
    pieces: list[str | Segment] = [mark]
    image = _IMAGE.fullmatch(mark)
    for number in (1, 2) if image is not None else ():
        if image is not None and has_letters(image[number] or ""):
            start, end = (at - len(mark) for at in image.span(number))  # behind the last piece's begin
            rest = str(pieces.pop())
            shown = partial(re.sub, r"(?<!\\)[\[\]\"]", r"\\\g<0>")
            pieces += [rest[:start], Segment(image[number], image[number], shown), rest[end:]]
    return pieces
