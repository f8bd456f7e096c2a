"""Subtitles: SubRip (.srt) and WebVTT (.vtt)."""

import re
import warnings
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby, pairwise

from atento.base.errors import AtentoWarning, DataError, counted
from atento.text.documents.segments import Inline, Language, Segment, wrapped

_LINE = re.compile(r"([^\r\n]*)(\r\n|\r|\n|\Z)")
_TIME = r"(?:\d+:)?\d+:\d{1,2}[.,]\d{1,3}"
_TIMES = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}(?!\d).*")
_MARKUP = re.compile(r"<(/?)([A-Za-z]*)[^<>]*>|\{\\[^{}]*\}")
_DASH = re.compile(rf"(?:{_MARKUP.pattern}|\s)*[-–—•]+\s*")  # of a speaker, behind tags
_VOICE = re.compile(r"\s*<v[\s.]")  # of WebVTT
_KEPT = re.compile(r"(?:NOTE|STYLE|REGION)(?:\s|$)")  # blocks of WebVTT
_Line = tuple[str, str]  # its text and its end


def read_srt(text: str, name: str) -> list[str | Segment]:
    """The pieces of a SubRip file. Raises DataError: a subtitle has no times; says the line."""
    return _subtitles(_LINE.findall(text), name, 1, ",")


def read_vtt(text: str, name: str) -> list[str | Segment]:
    """The pieces of a WebVTT file. Raises DataError: its first line is not WEBVTT, or a subtitle has no times."""
    if not re.match(r"WEBVTT(?:[ \t\r\n]|\Z)", text):
        raise DataError(f"{name}:1: the first line must be WEBVTT: got {text.partition(chr(10))[0][:20]!r}")
    lines: list[_Line] = _LINE.findall(text)  # a blank line, or one of times, ends the header
    end = next((n for n, (line, _) in enumerate(lines) if not line.strip() or "-->" in line), len(lines))
    header = re.split(r"(?m)(?<=^Language:)([ \t]*)([\w-]+)", _raw(lines[:end]))
    pieces = [Language(part) if number % 3 == 2 else part for number, part in enumerate(header)]
    return [*pieces, *_subtitles(lines[end:], name, 1 + end, ".")]


def _subtitles(lines: Sequence[_Line], name: str, first: int, sign: str) -> list[str | Segment]:
    """The pieces of subtitles; `first` is the number of the first line, `sign` that before thousandths of a second.

    Number and times stay. Without a blank line between, a line of times begins a subtitle. Behind one, what has none
    goes on with the text of the subtitle before it, with a warning.
    """
    pieces, loose, begun = list[str | Segment](), list[int](), False
    for is_blank, group in groupby(enumerate(lines, first), key=lambda row: not row[1][0].strip()):
        numbers, block = zip(*group)
        times = [at for at, (line, _) in enumerate(block) if _TIMES.fullmatch(line)]
        if is_blank or (sign == "." and _KEPT.match(block[0][0])):
            pieces.append(_raw(block))
        elif times and times[0] < 2:
            begins = [at - (at - 1 > last and block[at - 1][0].strip().isdigit()) for last, at in pairwise(times)]
            for (begin, end), time in zip(pairwise([0, *begins, len(block)]), times):
                pieces += [_raw(block[begin : time + 1]), *_texts(block[time + 1 : end])]
            begun = True
        elif begun and not any("-->" in line for line, _ in block[:2]):
            head = block[0][0].strip().isdigit()  # a number without times
            pieces += [_raw(block[:head]), *_texts(block[head:])]
            loose.append(numbers[0])
        else:
            wrong = min(len(block) - 1, "-->" not in block[0][0])
            raise DataError(
                f"{name}:{numbers[wrong]}: a subtitle must have a line of times, such as "
                f"00:00:01{sign}000 --> 00:00:02{sign}000: got {block[wrong][0][:60]!r}"
            )
    if loose:
        found = counted(len(loose), "text stands behind a blank line", "texts stand behind a blank line")
        said = f"{name}:{loose[0]}: {found}, without times: taken for the rest of the subtitle before"
        warnings.warn(said, AtentoWarning, stacklevel=2)
    return pieces


def _raw(lines: Sequence[_Line]) -> str:
    return "".join(line + end for line, end in lines)


def _texts(lines: Sequence[_Line]) -> list[str | Segment]:
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
