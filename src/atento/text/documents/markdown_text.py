"""Markdown (.md): paragraphs, headings, list items and cells; code, links' addresses and markup stay."""

import re
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from html import escape
from typing import Any

from markdown_it.token import Token

from atento.text.documents.markdown_marks import Mark, Parser
from atento.text.documents.segments import NUMBERED, Inline, Segment, wrapped
from atento.text.documents.web_pages import has_letters, tag_pieces
from atento.text.markup_tags import name_of

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
    for slices, marks in _texts(lines, text[start:]):
        for first, last, segment in _segments(text, slices, marks, attributes):
            if first >= at:  # no place twice
                pieces += [text[at:first], segment]
                at = last
    return [*pieces, text[at:]]


def _texts(lines: list[re.Match[str]], text: str) -> Iterator[tuple[list[tuple[int, int]], list[Mark]]]:
    """Where the lines of each paragraph, heading or cell stand, and the markup in them, joined by newlines."""
    found = dict[int, int]()  # line -> where the last slice of it ends
    parser, noted = Parser(), dict[str, Any]()
    for token in parser.parse(text, noted):
        if token.type == "inline" and token.map is not None and token.content.strip():
            slices = _places(token, lines, found)
            words = "\n".join(lines[0].string[start:end] for start, end in slices)
            yield slices, parser.marks_of(words, noted)


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
            between = [
                text[place(at) : place(at + 1)] for at in newlines if at not in in_code
            ]  # such as a newline and "> "
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
