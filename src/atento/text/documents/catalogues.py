"""Translation catalogues of gettext (.po): messages without a translation get one."""

import gettext
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from atento.base.errors import AtentoWarning, DataError, counted
from atento.text.documents.segments import LINE_END, NUMBERED, Inline, Language, Segment, line_at
from atento.text.found_spans import PLACEHOLDER, SPANS, agree, expression_of, in_order
from atento.text.glossary import has_spaces

_LINE = re.compile(
    r"[ \t]*+(?:(msgctxt|msgid|msgid_plural|msgstr(?:\[\d+\])?)[ \t]*+)?(\"(?:[^\"\\\r\n]|\\[^\r\n])*+\")?"
    r"[ \t]*+(?:\r\n|\r|\n|\Z)"
)
_LANGUAGE = re.compile(r"[\"\s]Language:[ \t]*+([\w@.-]*+)")
_ANY = re.compile(PLACEHOLDER)
_KEY = re.compile(  # of a menu, in Qt and GTK: &File, E&xit, _File, E_xit; not AT&T, &amp; or snake_case
    r"(?<![\w&])&(?=[A-Za-z]\w*+(?!;))|(?<=[A-Za-z])&(?=[a-z]\w*+(?!;))|(?<!\w)_(?=[A-Z][a-z]*+\b)|(?<=\b[A-Z])_(?=[a-z])"
)
_MOST_FORMS = 10
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
    """A message: the texts of its keywords, and the flags of the comment above, such as `fuzzy` and `c-format`."""

    texts: list[_Text] = field(default_factory=list)
    flags: frozenset[str] = frozenset()

    def first(self, keyword: str) -> str:
        return next((one.text for one in self.texts if one.keyword == keyword), "")

    def has(self, *beginnings: str) -> bool:
        """Whether a keyword begins so."""
        return any(one.keyword.startswith(beginnings) for one in self.texts)

    @property
    def outputs(self) -> list[_Text]:
        return [one for one in self.texts if one.keyword.startswith("msgstr")]


class _Locale(Language):
    """A name such as pt_BR."""

    sign = "_"


def read_catalogue(text: str, name: str, *, mark_fuzzy: bool = False) -> list[str | Segment]:
    """The pieces of a catalogue: the empty translations are segments, whose texts are the messages.

    Where a message has other plural forms than the header says, those that it has are read, with a warning.

    Args:
        text: the catalogue.
        name: its name, for messages.
        mark_fuzzy: whether a message that gets a translation also gets the flag `fuzzy`, as one to be looked at.

    Raises:
        DataError: a line is none of a catalogue, or a message has no msgstr; says the line.
    """
    messages, pieces, at = messages_of(text, name), list[str | Segment](), 0
    line_end = next(iter(LINE_END.findall(text)), "\n")  # that of the file
    header = next((message for message in messages if not message.first("msgid") and message.outputs), None)
    says = header.outputs[0].text if header is not None else ""
    if header is not None and (named := _LANGUAGE.search(text, header.outputs[0].start, header.outputs[0].end)):
        pieces, at = [text[: named.start(1)], _Locale(named[1])], named.end()
    forms, others = _Forms.of(says), list[_Message]()
    for message in messages:
        gaps = [(one.start, one.end, [""], [one.keyword]) for one in message.outputs if not one.text]
        numbers, has_forms = [one.keyword for one in message.outputs], message.has("msgid_plural")
        is_right = [("[" in one) == has_forms for one in numbers]
        if not numbers or not all(is_right) or (not has_forms and len(numbers) > 1):
            rule = "with a plural must have msgstr[0] and so on" if has_forms else "must have one msgstr"
            got = ", ".join(numbers) or "none"
            raise DataError(f"{name}:{line_at(text, message.texts[0].start)}: a message {rule}: got {got}")
        keywords = [f"msgstr[{number}]" for number in (range(forms.count or 0) if has_forms else ())]
        if has_forms and numbers != keywords:  # not as many forms as the header says
            others.append(message)
            is_empty = len(gaps) == len(message.outputs) and 0 < len(keywords) <= _MOST_FORMS
            labels = [f"{keyword} " for keyword in keywords]
            gaps = [(_line_begin(text, gaps[0][0]), gaps[-1][1], labels, keywords)] if is_empty else []
        flag = "" if "fuzzy" in message.flags or not mark_fuzzy else f"#, fuzzy{line_end}"
        for begin, end, labels, keywords in gaps if message.first("msgid") else ():
            start = _line_begin(text, message.texts[0].start) if flag else begin
            inside = [_inside(forms.source(message, keyword), message.flags) for keyword in keywords]
            shown = _shown(flag + text[start:begin], labels, inside, text[start:end], line_end)
            segment = Segment(text[start:end], inside[0].text, shown, is_gap=True, attributes=inside[1:])
            pieces += [text[at:start], segment]
            at, flag = end, ""
    if others:
        found = counted(len(others), "message has other plural forms", "messages have other plural forms")
        says = f" than the header says (nplurals={forms.count}): finished ones stay, empty ones get as many"
        says = says if forms.count is not None else ", and the header does not say how many (nplurals): they stay"
        place = f"{name}:{line_at(text, others[0].texts[0].start)}"
        warnings.warn(f"{place}: {found}{says}", AtentoWarning, stacklevel=2)
    return [*pieces, text[at:]]


def _line_begin(text: str, at: int) -> int:
    return 1 + max(text.rfind("\n", 0, at), text.rfind("\r", 0, at))


def _shown(head: str, labels: Sequence[str], inside: Sequence[Segment], gap: str, line_end: str) -> Callable[..., str]:
    """How the translations of a message are written, each behind its label; where one is empty, the gap stays."""

    def shown(*translations: str) -> str:
        new = [one.shown(translation) for one, translation in zip(inside, translations)]
        lines = line_end.join(label + _quoted(one, line_end) for label, one in zip(labels, new))
        return head + lines if all(new) else gap

    return shown


def _inside(source: str, flags: frozenset[str]) -> Segment:
    """A message without the mark of its menu key; placeholders are numbered tags where a model could lose their order.

    What it is in translation has the newlines at its ends, and the mark; it is empty where it has other placeholders.
    """
    expression, key = expression_of(flags), _KEY.search(source)
    text = source if key is None else source[: key.start()] + source[key.end() :]
    found, inline, at = list(expression.finditer(text)), Inline(), 0
    is_open = len(in_order(match[0] for match in found)) < 2 and all(_ANY.fullmatch(match[0]) for match in found)
    for match in () if is_open or NUMBERED.search(text) else found:
        inline.add(text[at : match.start()], text[at : match.start()])
        inline.mark(match[0])
        at = match.end()
    inline.add(text[at:], text[at:])
    made = inline.segment()

    def shown(translation: str) -> str:
        new = made.shown(translation).strip("\n")
        if key is not None:
            letter, plain = source[key.end()], SPANS.sub(lambda span: "\0" * len(span[0]), new)
            searches = (re.search(one, plain) for one in (rf"(?i)\b{letter}", rf"(?i){letter}", r"[^\W\d_]"))
            place = next(filter(None, searches), None)
            is_word = place is not None and has_spaces(plain[place.start()])
            at = place.start() if is_word and place is not None else len(new)
            new = new[:at] + (key[0] if is_word else f"({key[0]}{letter})") + new[at:]
        new = source[: len(source) - len(source.lstrip("\n"))] + new + source[len(source.rstrip("\n")) :]
        return new if agree(source, new, expression) else ""

    return replace(made, shown=shown)


def messages_of(text: str, name: str) -> list[_Message]:
    """The messages of a catalogue; comments and messages that are out of use are not among them.
    Raises DataError: as `read_catalogue`.
    """
    messages, at, flags = list[_Message](), 0, frozenset[str]()
    current: _Text | None = None
    while at < len(text):
        match = _LINE.match(text, at)
        if match is None:
            if comment := _COMMENT.match(text, at):
                at, current = _next_line(text, at), None  # a comment ends a text in several lines
                says = text[comment.end() : at]
                named = says[1:].replace(",", " ").split() if says.startswith(",") else ()
                flags = frozenset() if says.startswith("~") else flags.union(named)  # those of one that is out of use
                continue
            rule = f"{name}:{line_at(text, at)}: a line must begin with msgid, msgstr or #, or be a text in quotes"
            raise DataError(f"{rule}: got {text[at : _next_line(text, at)].strip()[:60]!r}")
        keyword, quoted = match[1], match[2]  # a text alone continues the last one
        if (keyword is not None and quoted is None) or (keyword is None and quoted is not None and current is None):
            raise DataError(f"{name}:{line_at(text, at)}: a keyword and a text in quotation marks must stand together")
        if keyword is not None:
            if keyword in ("msgctxt", "msgid") and (not messages or messages[-1].has(keyword, "msgstr")):
                messages.append(_Message(flags=flags))  # the last is complete, or has no msgstr
                flags = frozenset()
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


@dataclass(frozen=True)
class _Forms:
    """The plural forms of a catalogue."""

    count: int | None = None  # their number; None: the header says none
    singular: int = 0  # the number of the form that 1 has
    is_for_one: bool = True  # whether no other number has it

    @classmethod
    def of(cls, header: str) -> "_Forms":
        """Those that a header names."""
        count, rule = re.search(r"nplurals\s*=\s*(\d+)", header), re.search(r"\bplural\s*=\s*([^;\n]+)", header)
        if count is None:
            return cls()
        try:
            form = gettext.c2py(rule[1] if rule is not None else "n != 1")
            numbers = [form(number) for number in range(1001)]
        except (ValueError, ArithmeticError):  # no rule
            return cls(int(count[1]))
        return cls(int(count[1]), numbers[1], numbers.count(numbers[1]) == 1)

    def source(self, message: _Message, keyword: str) -> str:
        """The text that a form of a message is translated from.

        The singular for the form that 1 has; but where others have that form too, as 21 in Russian, only if it has the
        placeholders of the plural, and a language has further forms.
        """
        singular, plural = message.first("msgid"), message.first("msgid_plural")
        if not plural or keyword != f"msgstr[{self.singular}]":
            return plural or singular
        same = agree(singular, plural, expression_of(message.flags))
        return singular if self.is_for_one or (same and self.count != 1) else plural


def _plain(quoted: str) -> str:
    def character(match: re.Match[str]) -> str:
        code = match[1]
        return _ESCAPES.get(code) or (chr(int(code[1:], 16) % 0x110000) if code[0] == "x" else chr(int(code, 8)))

    return _ESCAPE.sub(character, quoted[1:-1])


def _quoted(text: str, line_end: str) -> str:
    """A translation in quotation marks, each of its lines on one."""
    lines = re.findall(r"[^\n]*\n|[^\n]+", text.replace("\\", "\\\\").replace('"', '\\"')) or [""]
    escapes = str.maketrans({letter: f"\\{key}" for key, letter in _ESCAPES.items() if key not in '\\"'})
    rows = [f'"{line.translate(escapes)}"' for line in lines]
    return line_end.join(rows if len(rows) == 1 else ['""', *rows])  # an empty first line, as gettext writes it
