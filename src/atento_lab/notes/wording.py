"""The words of the notes' lines and pages in English and, from `portuguese.json`, in Brazilian Portuguese."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from html import escape, unescape
from importlib.resources import files

from atento.base.errors import UsageError, nearest
from atento_lab.notes.errata import ERRATA

CREDIT = (
    "After five Portuguese lecture notes: on bidirectional self-attention, on bidirectional encoders, on transformers "
    "and language models (A. Carvalho and A. Soares), on natural language processing with attention models (after the "
    "course of that name, CC BY-SA 2.0), and on absolute and relative positions. The descriptions here are our own."
)
LANGUAGES = ("en", "pt", "pt-BR")
_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
_NUMERIC = re.compile(r"[-+−]?(?:\d+(?:,\d{3})*)?\.?\d+(?:e[-+]?\d+)?\s?%?")
_SWAPPED = str.maketrans(",.", ".,")


@dataclass(frozen=True)
class Wording:
    """A language of the output; English has no catalogue, since every text is written in it.

    Args:
        tag: the language as in the `lang` attribute of a page.
        rows: title and description of each row.
        errors: what the notes say and what is right, by number.
        phrases: texts by their English; `{}` stands for any part, which is translated itself.
        drawn: short texts of drawings and figures by their English.
        yes, no: the two truth values.
    """

    tag: str = "en"
    rows: Mapping[str, Sequence[str]] = field(default_factory=dict, repr=False)
    errors: Mapping[str, Sequence[str]] = field(default_factory=dict, repr=False)
    phrases: Mapping[str, str] = field(default_factory=dict, repr=False)
    drawn: Mapping[str, str] = field(default_factory=dict, repr=False)
    yes: str = "yes"
    no: str = "no"

    def text(self, english: str) -> str:
        """Return a text in this language; what the catalogue lacks (a name, a formula) stays as it is."""
        if not self.phrases:
            return english
        if (known := self.phrases.get(english)) is not None:
            return known
        for pattern, translated in self._patterns:
            if match := pattern.fullmatch(english):
                return translated.format(*(self._part(part) for part in match.groups()))
        return self.number(english) if _NUMERIC.fullmatch(english) else english

    def said(self, english: str, *values: object) -> str:
        """Return a text whose `{}` are filled in this language."""
        return self.text(english).format(*(self._part(str(value)) for value in values))

    def remark(self, english: str) -> str:
        """Return a remark, which may be several phrases with semicolons between them."""
        parts = english.split("; ")
        for count in range(len(parts) if self.phrases else 0, 0, -1):
            first, rest = "; ".join(parts[:count]), parts[count:]
            if (known := self.text(first)) != first:
                return "; ".join([known, *([self.remark("; ".join(rest))] if rest else [])])
        return english

    def number(self, text: str) -> str:
        """Return a text with the decimal and thousands signs of the language."""
        return _NUMBER.sub(lambda match: match[0].translate(_SWAPPED), text) if self.phrases else text

    def error(self, number: int) -> tuple[str, str]:
        """Return what the notes say and what is right."""
        english = ERRATA[number].notes, ERRATA[number].right
        notes, right = self.errors.get(str(number), english)
        return notes, right

    def drawing(self, lines: str) -> str:
        """Return a drawing of text in this language; its columns stay where they are, if there is room."""
        if not self.phrases:
            return lines
        return "\n".join(map(self._line, lines.splitlines()))

    def figure(self, svg: str) -> str:
        """Return an SVG drawing with its texts in this language; longer ones are drawn narrower, by a fifth at most."""
        if not self.phrases:
            return svg
        return re.sub(r"<(text|title)([^>]*)>([^<>]+)<", self._drawn_text, svg)

    def _part(self, text: str) -> str:
        known = self.text(text)
        return self.number(text) if known == text else known

    def _line(self, line: str) -> str:
        """Return a line of a drawing; a word of a column ends where it ended, a label takes from the space behind."""
        inner = line.strip()
        if (known := self.text(inner)) != inner:
            return line.replace(inner, known)
        done, at, longer = "", 0, 0  # longer: by how much the part so far is, in characters
        for match in self._drawn_words.finditer(line):
            done, longer = _spaced(done, line[at : match.start()], longer)
            word, at = self.drawn[match[0]], match.end()
            more, room = len(word) - len(match[0]), len(done) - len(done.rstrip()) - 1
            if done.strip() and room > 0 and (" " not in word or at < len(line)):
                moved = min(more, room)
                done = done[: len(done) - moved] if moved > 0 else done + " " * -moved
                more -= moved
            elif not done.strip() and re.match(" +[-0-9]", line[at:]):
                word, more = word.ljust(len(match[0])), max(more, 0)
            done, longer = done + word, longer + more
        return self.number(_spaced(done, line[at:], longer)[0])

    @cached_property
    def _patterns(self) -> list[tuple[re.Pattern[str], str]]:
        """The phrases with parts, those of more words first."""
        keys = sorted((key for key in self.phrases if "{}" in key), key=len, reverse=True)
        part = "((?:(?!; ).)+?)"  # of one phrase: phrases are joined by semicolons
        return [(re.compile(part.join(map(re.escape, key.split("{}")))), self.phrases[key]) for key in keys]

    @cached_property
    def _drawn_words(self) -> re.Pattern[str]:
        words = "|".join(re.escape(word) for word in sorted(self.drawn, key=len, reverse=True))
        return re.compile(rf"(?<![\w-])(?:{words})(?![\w-])")

    def _drawn_text(self, match: re.Match[str]) -> str:
        english = unescape(match[3])
        text = self.drawn.get(english) or self._part(english)
        size = re.search(r'font-size="([\d.]+)"', match[2])
        unit = 0.56 * float(size[1] if size else 12)  # about the width of a letter
        room = round(unit * max(len(english), 0.8 * len(text)))
        longer = match[1] == "text" and len(text) > len(english) + 1 and len(english) > 3
        fitted = f' textLength="{room}" lengthAdjust="spacingAndGlyphs"' if longer else ""
        return f"<{match[1]}{match[2]}{fitted}>{escape(text)}<"


ENGLISH = Wording()


def wording(language: str) -> Wording:
    """Return the wording of a language.

    Raises:
        UsageError: no such language.
    """
    language = next((one for one in LANGUAGES if one.lower() == language.lower().replace("_", "-")), language)
    if language not in LANGUAGES:
        raise UsageError(f"--language: the notes are not written in {language!r}{nearest(language, list(LANGUAGES))}")
    return ENGLISH if language == "en" else _portuguese()


@cache
def _portuguese() -> Wording:
    text = files("atento_lab.notes").joinpath("portuguese.json").read_text(encoding="utf-8")
    return Wording(tag="pt-BR", **json.loads(text))


def _spaced(done: str, between: str, longer: int) -> tuple[str, int]:
    """Return a line with the part that follows, whose first gap gives up, or takes, what the line is longer by."""
    gap = re.search("   +", between)
    if longer == 0 or not gap:
        return done + between, longer
    width = max(1, len(gap[0]) - longer)
    return done + between[: gap.start()] + " " * width + between[gap.end() :], longer - len(gap[0]) + width
