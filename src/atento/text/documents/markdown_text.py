"""Markdown (.md): paragraphs, headings, list items and cells; code, links' addresses and markup stay."""

import re
from collections.abc import Iterator
from itertools import pairwise

from markdown_it import MarkdownIt
from markdown_it.token import Token

from atento.text.documents.segments import Inline, Segment, wrapped

_FRONT = re.compile(r"---[ \t]*\r?\n.*?\r?\n(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_LINES = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z")
_MARKUP = re.compile(
    r"(?P<code>(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`))|(?P<image>!\[[^\[\]]*\]\([^()\s]*(?:\s+\"[^\"]*\")?\))"
    r"|(?P<kept><[^<>\s][^<>]*>|\\[^\w\s]|\[\^[^\[\]\s]+\]|&[#\w]+;)|(?P<open>\[)(?=[^\[\]]*(?:!\[[^\[\]]*\]\([^()]*\))?"
    r"[^\[\]]*\](?:\(|\[))|(?P<close>\](?:\([^()\s]*(?:\([^()\s]*\)[^()\s]*)?(?:\s+\"[^\"]*\")?\)|\[[^\[\]]*\]))"
    r"|(?P<mark>\*{1,3}|~~|(?<!\w)_{1,3}(?=\S)|(?<=\S)_{1,3}(?!\w))"
)


def read_markdown(text: str, name: str) -> list[str | Segment]:
    """The pieces of a Markdown text, in the rules of CommonMark with tables; a head between lines --- stays."""
    front = _FRONT.match(text)
    start = front.end() if front else 0
    lines = list(_LINES.finditer(text, start))
    pieces, at = list[str | Segment](), 0
    for slices in _slices(lines, text[start:]):
        first, last = slices[0][0], slices[-1][1]
        if first < at:
            continue
        segment = _segment(text, slices)
        if segment is not None:
            pieces += [text[at:first], segment]
            at = last
    return [*pieces, text[at:]]


def _slices(lines: list[re.Match[str]], text: str) -> Iterator[list[tuple[int, int]]]:
    """Where the lines of each paragraph, heading or cell stand."""
    found = dict[int, int]()  # line -> where the last slice of it ends
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    for token in tokens:
        if token.type != "inline" or token.map is None or not token.content.strip():
            continue
        slices = _places(token, lines, found)
        hard = [
            n for n, (start, end) in enumerate(slices) if lines[0].string[end : end + 2] == "  " or _broken(lines, end)
        ]
        begin = 0
        for stop in [*(n + 1 for n in hard), len(slices)]:
            if slices[begin:stop]:
                yield slices[begin:stop]
            begin = stop


def _broken(lines: list[re.Match[str]], end: int) -> bool:
    return lines[0].string[end - 1 : end] == "\\"


def _places(token: Token, lines: list[re.Match[str]], found: dict[int, int]) -> list[tuple[int, int]]:
    """Where the lines of a token's text stand in the document; none if they are not there as they are."""
    assert token.map is not None
    slices, number = list[tuple[int, int]](), token.map[0]
    for content in token.content.split("\n"):
        words = content.strip()
        while number < len(lines):
            match = lines[number]
            at = match.string.find(words, max(match.start(), found.get(number, 0)), match.end())
            if at >= 0:
                break
            number += 1
        else:
            return []
        if words:
            slices.append((at, at + len(words)))
            found[number] = at + len(words)
        number += "\n" in token.content
    return slices


def _segment(text: str, slices: list[tuple[int, int]]) -> Segment | None:
    """The segment of some lines, which are translated as one text and have as many lines again."""
    between = [text[end:start] for (_, end), (start, _) in pairwise(slices)]  # such as a newline and "> "
    words = " ".join(text[start:end] for start, end in slices)
    inline, at, opened = Inline(), 0, list[str]()
    for match in _MARKUP.finditer(words):
        inline.add(words[at : match.start()], words[at : match.start()])
        at, mark = match.end(), match[0]
        if match["open"] is not None:
            inline.mark(mark, opens="[")
        elif match["close"] is not None:
            inline.mark(mark, closes="[")
        elif match["mark"] is None:
            inline.mark(mark)
        elif mark in opened and words[match.start() - 1 : match.start()].strip():  # it closes: no space before it
            opened.remove(mark)
            inline.mark(mark, closes=mark)
        elif words[at : at + 1].strip() and words.find(mark, at) > 0:  # it opens: no space behind it, and one follows
            opened.append(mark)
            inline.mark(mark, opens=mark)
        else:  # a mark that is text
            inline.add(mark, mark)
    inline.add(words[at:], words[at:])
    if not inline.has_words:
        return None
    made = inline.segment()
    raw = text[slices[0][0] : slices[-1][1]]
    return Segment(raw, made.text, lambda translation: wrapped(made.shown(translation), between))
