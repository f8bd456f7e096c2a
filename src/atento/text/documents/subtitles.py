"""Subtitles: SubRip (.srt) and WebVTT (.vtt)."""

import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from atento.errors import AtentoWarning, DataError, counted
from atento.text.documents.segments import Inline, Language, Segment, wrapped

_LINE = re.compile(r"([^\r\n]*)(\r\n|\r|\n|\Z)")
_TIME = r"(?:\d+:)?\d+:\d{1,2}[.,]\d{1,3}"
_TIMES = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}(?!\d).*")
_MARKUP = re.compile(r"<(/?)([A-Za-z]*)[^<>]*>|\{\\[^{}]*\}")
_DASH = re.compile(rf"(?:{_MARKUP.pattern}|\s)*[-–—•]+\s*")  # of a speaker, behind tags
_VOICE = re.compile(r"\s*<v[\s.]")  # of WebVTT
_Line = tuple[str, str]  # its text and its end


def read_srt(text: str, name: str) -> list[str | Segment]:
    """The pieces of a SubRip file. Raises DataError: a subtitle has no times; says the line."""
    return _subtitles(list(_blocks(text)), name, ",")


def read_vtt(text: str, name: str) -> list[str | Segment]:
    """The pieces of a WebVTT file. Raises DataError: its first line is not WEBVTT, or a subtitle has no times."""
    if not re.match(r"WEBVTT(?:[ \t\r\n]|\Z)", text):
        raise DataError(f"{name}:1: the first line must be WEBVTT: got {text.partition(chr(10))[0][:20]!r}")
    blocks = list(_blocks(text))
    _, block = blocks.pop(0)
    end = next((n for n, (line, _) in enumerate(block) if "-->" in line), len(block))  # a line of times ends the header
    header = re.split(r"(?m)(?<=^Language:)([ \t]*)([\w-]+)", _raw(block[:end]))
    pieces = [Language(part) if number % 3 == 2 else part for number, part in enumerate(header)]
    return [*pieces, *_subtitles([(1 + end, block[end:])] * (end < len(block)) + blocks, name, ".")]


def _subtitles(blocks: list[tuple[int, list[_Line]]], name: str, sign: str) -> list[str | Segment]:
    """The pieces of blocks. One without times behind a subtitle goes on with its text, which a blank line has cut."""
    pieces, loose, begun = list[str | Segment](), list[int](), False
    for number, block in blocks:
        if sign == "." and re.match(r"(?:NOTE|STYLE|REGION)(?:\s|$)", block[0][0]):
            pieces.append(_raw(block))
        elif begun and block[0][0].strip() and not any("-->" in line for line, _ in block):
            head = block[0][0].strip().isdigit()  # a number without times
            pieces += [_raw(block[:head]), *_texts(block[head:])]
            loose.append(number)
        else:
            pieces += _cues(block, name, number, sign)
            begun = begun or bool(block[0][0].strip())
    if loose:
        found = counted(len(loose), "text stands behind a blank line", "texts stand behind a blank line")
        said = f"{name}:{loose[0]}: {found}, without times: taken for the rest of the subtitle before"
        warnings.warn(said, AtentoWarning, stacklevel=2)
    return pieces


def _blocks(text: str) -> Iterator[tuple[int, list[_Line]]]:
    """The blocks between blank lines, and those lines as blocks, each with the number of its first line."""
    block, first, was_blank = list[_Line](), 1, None
    for number, match in enumerate(_LINE.finditer(text), 1):
        line = (match[1], match[2])
        is_blank = not line[0].strip()
        if block and is_blank != was_blank:
            yield first, block
            block, first = [], number
        block.append(line)
        was_blank = is_blank
    if block:
        yield first, block


def _raw(lines: Sequence[_Line]) -> str:
    return "".join(line + end for line, end in lines)


def _cues(block: list[_Line], name: str, number: int, sign: str) -> Iterator[str | Segment]:
    """The pieces of the subtitles of a block: without a blank line between, a line of times begins one."""
    times = [at for at, (line, _) in enumerate(block) if _TIMES.fullmatch(line)]
    begins = [at - (at - 1 > last and block[at - 1][0].strip().isdigit()) for last, at in pairwise(times)]
    for begin, end in pairwise([0, *begins, len(block)]):
        yield from _cue(block[begin:end], name, number + begin, sign)


def _cue(block: list[_Line], name: str, number: int, sign: str) -> list[str | Segment]:
    """The pieces of a subtitle: number and times stay; the sign stands before thousandths of a second."""
    if not block[0][0].strip():  # blank lines between two
        return [_raw(block)]
    head = 1 if "-->" in block[0][0] else 2  # of lines before the text: a number may be left out
    if len(block) < head or not _TIMES.fullmatch(block[head - 1][0]):
        raise DataError(
            f"{name}:{number + min(head, len(block)) - 1}: a subtitle must have a line of times, such as "
            f"00:00:01{sign}000 --> 00:00:02{sign}000: got {block[min(head, len(block)) - 1][0][:60]!r}"
        )
    return [_raw(block[:head]), *_texts(block[head:])]


def _texts(lines: list[_Line]) -> list[str | Segment]:
    """The pieces of some lines of text: one segment a speaker, whose text is behind a dash or a voice."""
    parts, pieces = list[list[_Line]](), list[str | Segment]()
    for line in lines:
        begins = _DASH.match(line[0]) or _VOICE.match(line[0])
        parts += [[line]] if begins or not parts else []
        if parts[-1][-1] is not line:
            parts[-1].append(line)
    for part in parts:
        dash = _DASH.match(part[0][0])
        if dash is not None:
            pieces.append(dash[0])
            part[0] = (part[0][0][dash.end() :], part[0][1])  # without the dash
        pieces += [_segment(part), part[-1][1]]
    return pieces


def _segment(lines: Sequence[_Line]) -> Segment:
    """The text of some lines, which is translated as one and has as many lines again."""
    raw, ends = _raw(lines)[: len(_raw(lines)) - len(lines[-1][1])], [end for _, end in lines[:-1]]
    inline, at, text = Inline(), 0, " ".join(line.strip() for line, _ in lines)
    for match in _MARKUP.finditer(text):
        inline.add(text[at : match.start()], text[at : match.start()])
        name = match[2] or None  # None: a position in braces, or a time inside, which opens nothing
        inline.mark(match[0], None if match[1] else name, name if match[1] else None)
        at = match.end()
    inline.add(text[at:], text[at:])
    return replace(inline.segment(lines=lambda written: wrapped(written, ends)), raw=raw)
