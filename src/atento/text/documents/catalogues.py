"""Translation catalogues of gettext (.po): messages without a translation get one."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from atento.errors import DataError
from atento.text.documents.segments import LINE_END, Segment, line_at

_LINE = re.compile(
    r"[ \t]*+(?:(msgctxt|msgid|msgid_plural|msgstr(?:\[\d+\])?)[ \t]*+)?(\"(?:[^\"\\\r\n]|\\[^\r\n])*+\")?"
    r"[ \t]*+(?:\r\n|\r|\n|\Z)"
)
_COMMENT = re.compile(r"[ \t]*+#")
_ESCAPE = re.compile(r"\\([nrtabfv\\\"]|[0-7]{1,3}|x[0-9A-Fa-f]+)")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "\\": "\\", '"': '"'}


@dataclass
class _Text:
    """A keyword's text: where it stands, and its lines."""

    keyword: str
    start: int
    end: int
    lines: list[str]

    @property
    def text(self) -> str:
        """What it says."""
        return "".join(self.lines)


@dataclass
class _Message:
    """A message: the texts of its keywords, and whether a comment above marks it as fuzzy."""

    texts: list[_Text] = field(default_factory=list)
    is_fuzzy: bool = False

    def first(self, keyword: str) -> str:
        return next((one.text for one in self.texts if one.keyword == keyword), "")

    def has(self, *beginnings: str) -> bool:
        """Whether a keyword begins so."""
        return any(one.keyword.startswith(beginnings) for one in self.texts)

    @property
    def outputs(self) -> list[_Text]:
        return [one for one in self.texts if one.keyword.startswith("msgstr")]


def read_catalogue(text: str, name: str) -> list[str | Segment]:
    """The pieces of a catalogue: the empty translations are segments, whose texts are the messages.

    Raises:
        DataError: a line is none of a catalogue, the plural forms of a message are not as many as the header says, or
            the encoding is another than UTF-8; says the line.
    """
    messages, pieces, at = messages_of(text, name), list[str | Segment](), 0
    line_end = next(iter(LINE_END.findall(text)), "\n")  # that of the file
    plurals = _plurals(messages, text, name)
    for message in messages:
        _check_plurals(message, plurals, text, name)
        singular, plural = message.first("msgid"), message.first("msgid_plural")
        for output in message.outputs if singular else ():
            if not output.text:
                source = plural if plural and output.keyword != "msgstr[0]" else singular
                raw = text[output.start : output.end]
                pieces += [
                    text[at : output.start],
                    Segment(raw, source, partial(_quoted, line_end=line_end), is_gap=True),
                ]
                at = output.end
    return [*pieces, text[at:]]


def messages_of(text: str, name: str) -> list[_Message]:
    """The messages of a catalogue; comments and messages that are out of use are not among them.

    Raises:
        DataError: as `read_catalogue`.
    """
    messages, at, is_fuzzy = list[_Message](), 0, False
    current: _Text | None = None
    while at < len(text):
        match = _LINE.match(text, at)
        if match is None:
            if comment := _COMMENT.match(text, at):
                at, current = _next_line(text, at), None  # a comment ends a text in several lines
                flags = text[comment.end() : at]  # those of a message that is out of use end with it
                says = flags.startswith(",") and "fuzzy" in flags.replace(",", " ").split()
                is_fuzzy = (is_fuzzy or says) and not flags.startswith("~")
                continue
            line = text[at : _next_line(text, at)].strip()
            raise DataError(
                f"{name}:{line_at(text, at)}: a line must begin with msgid, msgstr or #, or be a text in quotes:"
                f" got {line[:60]!r}"
            )
        keyword, quoted = match[1], match[2]  # a text alone continues the last one
        if (keyword is not None and quoted is None) or (keyword is None and quoted is not None and current is None):
            raise DataError(f"{name}:{line_at(text, at)}: a keyword and a text in quotation marks must stand together")
        if keyword is not None:
            if keyword in ("msgctxt", "msgid") and (not messages or messages[-1].has(keyword, "msgstr")):
                messages.append(_Message(is_fuzzy=is_fuzzy))  # the last is complete, or has no msgstr
                is_fuzzy = False
            if not messages:
                raise DataError(f"{name}:{line_at(text, at)}: {keyword} must follow a msgid")
            current = _Text(keyword, match.start(2), match.end(2), [_plain(quoted)])
            messages[-1].texts.append(current)
        elif quoted is not None and current is not None:
            current.end = match.end(2)
            current.lines.append(_plain(quoted))
        else:
            current = None  # a blank line
        at = match.end()
    return messages


def _next_line(text: str, at: int) -> int:
    end = LINE_END.search(text, at)
    return len(text) if end is None else end.end()


def _plurals(messages: Sequence[_Message], text: str, name: str) -> int | None:
    """The number of plural forms that the header says; None: it says none."""
    header = next((message for message in messages if not message.first("msgid") and message.outputs), None)
    if header is None:
        return None
    says = header.outputs[0].text
    charset = re.search(r"charset=([\w-]+)", says)
    if charset is not None and charset[1].lower() not in ("utf-8", "utf8"):
        line = line_at(text, header.outputs[0].start)
        hint = "; write UTF-8 there" if charset[1].lower() in ("charset", "us-ascii", "ascii") else ""
        raise DataError(f"{name}:{line}: the encoding of a catalogue must be UTF-8: got {charset[1]}{hint}")
    forms = re.search(r"nplurals\s*=\s*(\d+)", says)
    return None if forms is None else int(forms[1])


def _check_plurals(message: _Message, plurals: int | None, text: str, name: str) -> None:
    numbers = [one.keyword for one in message.outputs]
    if not any(one.keyword == "msgid_plural" for one in message.texts):
        expected, rule = ["msgstr"], "a message must have one msgstr"
    elif plurals is None:
        expected, rule = None, "the message has plural forms, and the header does not say how many (nplurals)"
    else:
        expected = [f"msgstr[{number}]" for number in range(plurals)]
        rule = f"the header says nplurals={plurals}, so the message must have msgstr[0] to msgstr[{plurals - 1}]"
    if numbers != expected:
        got = "" if expected is None else f": got {', '.join(numbers) or 'none'}"
        raise DataError(f"{name}:{line_at(text, message.texts[0].start)}: {rule}{got}")


def _plain(quoted: str) -> str:
    def character(match: re.Match[str]) -> str:
        code = match[1]
        return _ESCAPES.get(code) or (chr(int(code[1:], 16) % 0x110000) if code[0] == "x" else chr(int(code, 8)))

    return _ESCAPE.sub(character, quoted[1:-1])


def _quoted(text: str, line_end: str) -> str:
    """A translation in quotation marks, each of its lines on one."""
    plain = {value: key for key, value in _ESCAPES.items() if key not in '\\"'}
    lines = re.findall(r"[^\n]*\n|[^\n]+", text.replace("\\", "\\\\").replace('"', '\\"')) or [""]
    rows = [
        '"' + "".join(f"\\{plain[letter]}" if letter in plain else letter for letter in line) + '"' for line in lines
    ]
    return line_end.join(rows if len(rows) == 1 else ['""', *rows])  # an empty first line, as gettext writes it
