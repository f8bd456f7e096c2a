"""Markdown (.md): paragraphs, headings, list items and cells; code, links' addresses and markup stay."""

import re
from collections.abc import Iterator
from itertools import pairwise

from markdown_it import MarkdownIt
from markdown_it.token import Token

from atento.text.documents.segments import Inline, Segment, wrapped

_FRONT = re.compile(r"(---|\+\+\+)[ \t]*\r?\n.*?\r?\n(?:\1|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_KEPT_LINE = re.compile(r"\[![\w-]+\][+-]?|:{3,}.*|(?:!!!|\?\?\?)\+? .*")  # of notes, in several dialects
_BOX = re.compile(r"(?:\[[ xX]\]|\[\^[^\[\]\s]+\]:)\s+")  # of a task, or the label of a footnote
_BLOCK = re.compile(r"(?:[-+*#>]|={2,}|-{2,}|#{2,6}|\d{1,9}(?=[.)])[.)])(?=\s|\Z)|>|`{3}|~{3}")
"""What begins a list, a heading, a quotation or code where a line begins with it."""
_LINES = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z")
_MARKUP = re.compile(
    r"(?P<code>(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`))|(?P<image>!\[[^\[\]]*\]\([^()\s]*(?:\s+\"[^\"]*\")?\))"
    r"|(?P<kept><[^<>\s][^<>]*>|\\[^\w\s]|\[\^[^\[\]\s]+\](?::(?=\s))?|&[#\w]+;)|(?P<open>\[)(?=[^\[\]]*(?:!\[[^\[\]]*\]\([^()]*\))?"
    r"[^\[\]]*\](?:\(|\[))|(?P<close>\](?:\([^()\s]*(?:\([^()\s]*\)[^()\s]*)?(?:\s+\"[^\"]*\")?\)|\[[^\[\]]*\]))"
    r"|(?P<mark>\*{1,3}|~~|(?<!\w)_{1,3}(?=\S)|(?<=\S)_{1,3}(?!\w))"
)


def read_markdown(text: str, name: str) -> list[str | Segment]:
    """The pieces of a Markdown text, in the rules of CommonMark with tables; a head between lines --- stays."""
    front = _FRONT.match(text)
    start = front.end() if front else 0  # behind the head
    lines = list(_LINES.finditer(text, start))
    pieces, at = list[str | Segment](), 0
    for slices in filter(None, _slices(lines, text[start:])):
        first, last = slices[0][0], slices[-1][1]
        if first < at:  # no place twice
            continue
        segment = _segment(text, slices)
        if segment is not None:
            pieces += [text[at:first], segment]
            at = last
    return [*pieces, text[at:]]


def _slices(lines: list[re.Match[str]], text: str) -> Iterator[list[tuple[int, int]]]:
    """Where the lines of each paragraph, heading or cell stand."""
    found = dict[int, int]()  # line -> where the last slice of it ends
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type != "inline" or token.map is None or not token.content.strip():
            continue
        slices = _places(token, lines, found)
        text_of_all, group = lines[0].string if lines else "", list[tuple[int, int]]()
        for number, (start, end) in enumerate(slices):
            if number == 0 and (box := _BOX.match(text_of_all, start, end)):
                start = box.end()
            is_broken = number + 1 < len(slices) and text_of_all[end - 1 : end] == "\\"
            end -= is_broken
            is_kept = _KEPT_LINE.fullmatch(text_of_all, start, end) is not None
            group += [] if is_kept else [(start, end)]
            if is_kept or is_broken or text_of_all.startswith("  ", end):  # a hard break
                yield group
                group = []
        yield group


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

    def shown(translation: str) -> str:
        written = made.shown(translation)
        marker = None if _BLOCK.match(words) else _BLOCK.match(written)  # it would begin a list, or a heading
        if marker is not None:
            place = marker.end() - 1 if marker[0][0].isdigit() else 0  # "1\." but "\-"
            written = f"{written[:place]}\\{written[place:]}"
        return wrapped(written, between, _BLOCK)

    return Segment(raw, made.text, shown)
