"""Glossaries: terms of a source language, what they must be in the target language, and where they occur in a text."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from unicodedata import normalize

from atento.errors import DataError
from atento.nfc import nfc

_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"  # words run together
_LETTER = f"[^\\W{_UNSPACED}]"


@dataclass(frozen=True)
class Term:
    """A term.

    Attributes:
        source: as a source text has it, in any case.
        forms: what an output may have for it, in any case; the first is the usual one.
        place: file and line, for messages.
    """

    source: str
    forms: tuple[str, ...]
    place: str = ""

    def places(self, output: str) -> list[range]:
        """Where an output has one of the forms, as whole words; iPhone, with a capital inside a word, as it is."""
        return [range(*found.span()) for found in _any_of(self.forms).finditer(output)]


@dataclass(frozen=True)
class Met:
    """A term where it occurs in a text: the characters `start` ... `end` - 1."""

    term: Term
    start: int
    end: int


@dataclass(frozen=True)
class Glossary:
    """Terms. Raises DataError: two of them have the same source."""

    terms: Sequence[Term]
    _starts: dict[str, re.Pattern[str]] = field(init=False, repr=False, compare=False)
    _by_source: dict[str, Term] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_source, starts = dict[str, Term](), defaultdict[str, list[str]](list)
        for term in self.terms:
            key = _key(term.source)  # in lower case, spaces as one
            if key in by_source:
                raise DataError(f"{term.place}: the term {term.source!r} also stands at {by_source[key].place}")
            by_source[key] = term
            for start in {key[:2], normalize("NFD", key)[:2]}:
                starts[start].append(key)
        object.__setattr__(self, "_starts", {start: _any_of(tuple(keys)) for start, keys in starts.items()})
        object.__setattr__(self, "_by_source", by_source)

    def find(self, text: str) -> list[Met]:
        """Where words of a text are a term, as whole words, in any case; where two terms overlap, the longer one."""
        found, at = list[Met](), 0
        while at < len(text):
            starts = (self._starts.get(_lower(text[at : at + size])) for size in (2, 1))  # the first letters of a term
            match = next(filter(None, (start.match(text, at) for start in starts if start is not None)), None)
            # an expression in any case takes ı for i, which is another letter here
            term = None if match is None else self._by_source.get(_key(match[0]))
            if match is not None and term is not None:
                found.append(Met(term, *match.span()))
            at = at + 1 if match is None or term is None else match.end()
        return found

    def report(self, source: str, output: str) -> dict[str, bool]:
        """The terms of a source, and whether its output has a form of each as many times."""
        times = Counter(met.term for met in self.find(source))
        return {term.source: len(term.places(output)) >= number for term, number in times.items()}


GlossaryLike = Glossary | str | Path | Mapping[str, str | Sequence[str]] | Sequence[Sequence[str]]
"""What a glossary is given as: itself, a file, target terms by source terms, or rows."""


def glossary_of_rows(rows: Iterable[tuple[str, Sequence[str]]]) -> Glossary:
    """A glossary of (place, columns): a source term, its target term, and other allowed forms of that.

    Raises:
        DataError: a row has fewer than two columns, or an empty one; a term stands twice. Says the place.
    """
    terms = []
    for place, columns in rows:
        cells = [cell.strip() for cell in columns]
        if len(cells) < 2:
            raise DataError(f"{place}: a row must have a source term and, after a TAB, a target term: got 1 column")
        if not cells[0] or not cells[1]:
            raise DataError(f"{place}: the {'target' if cells[0] else 'source'} term is empty")
        terms.append(Term(cells[0], tuple(dict.fromkeys(map(nfc, filter(None, cells[1:])))), place))
    return Glossary(terms)


def has_spaces(letter: str) -> bool:
    """Whether a letter is of a script that has spaces between words."""
    return re.match(_LETTER, letter) is not None


def _key(words: str) -> str:
    return " ".join(_lower(nfc(words)).split())


def _lower(words: str) -> str:
    return words.lower().replace("i\u0307", "İ")  # of Turkish, which `lower` makes two


@lru_cache(maxsize=4096)
def _any_of(keys: tuple[str, ...]) -> re.Pattern[str]:
    """An expression for any of some terms, the longest first, in any case."""
    return re.compile("|".join(map(_whole_words, sorted(keys, key=len, reverse=True))), re.IGNORECASE)


def _whole_words(key: str) -> str:
    """The expression of a term whose ends are ends of words, in scripts that have spaces between words."""
    key = nfc(key)
    before = f"(?<!{_LETTER}|[\u0300-\u036f])" if has_spaces(key) else ""
    after = f"(?!{_LETTER}|[\u0300-\u036f])" if has_spaces(key[-1]) else ""
    words = (f"(?-i:{_letters(w)})" if re.search(r"[a-z]\w*[A-Z]", w) else _letters(w) for w in key.split())
    return before + "\\s+".join(words) + after


def _letters(word: str) -> str:
    """The expression of a word whose accents are in one piece with their letters, or behind them."""
    parts = ((letter, normalize("NFD", letter)) for letter in word)
    return "".join(re.escape(a) if a == b else f"(?:{re.escape(a)}|{re.escape(b)})" for a, b in parts)
