"""Glossaries: terms of a source language, what they must be in the target language, and where they occur in a text."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from atento.base.errors import DataError
from atento.base.nfc import nfc
from atento.text.encoded import normalize_with_spans

_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"  # words run together
_LETTER = re.compile(f"[^\\W{_UNSPACED}]")
_START = re.compile(f"(?<![\u0300-\u036f]){_LETTER.pattern}+|[^\\w\\s]|[{_UNSPACED}]")  # a word, or a sign
_IN_WORD = re.compile(f"{_LETTER.pattern}|[\u0300-\u036f]")  # a mark is of the letter before it
_CAPITAL_INSIDE = re.compile(r"[a-z]\w*[A-Z]")
T = TypeVar("T")
_ALIKE = str.maketrans("ıſςµ", "isσμ")  # letters of one capital


@dataclass(frozen=True)
class Term:
    """A term."""

    source: str  # as a source text has it, in any case
    forms: tuple[str, ...]  # what an output may have for it, in any case; the first is the usual one
    place: str = ""  # file and line, for messages

    def places(self, output: str) -> list[range]:
        """Where an output has one of the forms, as whole words; iPhone, with a capital inside a word, as it is."""
        capitals = {_folded(form)[0]: {*filter(_CAPITAL_INSIDE.search, form.split())} for form in self.forms}

        def is_form(start: int, end: int) -> bool:
            return capitals.get(_folded(found := nfc(output[start:end]))[0], {""}) <= {*found.split()}

        return [range(start, end) for _, start, end in _phrases_of(self.forms).find(output, is_form)]


@dataclass(frozen=True)
class TermMatch:
    """A term where it occurs in a text: the characters `start` ... `end` - 1."""

    term: Term
    start: int
    end: int


@dataclass(frozen=True)
class Glossary:
    """Terms. Raises DataError: two of them have the same source."""

    terms: Sequence[Term]
    _phrases: "_Phrases" = field(init=False, repr=False, compare=False)
    _by_source: dict[str, Term] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_source = dict[str, Term]()
        for term in self.terms:
            key = _key(term.source)  # in lower case, spaces as one
            if key in by_source:
                raise DataError(f"{term.place}: the term {term.source!r} also stands at {by_source[key].place}")
            by_source[key] = term
        object.__setattr__(self, "_phrases", _Phrases(by_source))
        object.__setattr__(self, "_by_source", by_source)

    def find(self, text: str) -> list[TermMatch]:
        """Where words of a text are a term, as whole words, in any case; where two terms overlap, the longer one."""
        # ı, which looks like i in capitals, is another letter here
        found = self._phrases.find(text, lambda start, end: self._by_source.get(_key(text[start:end])))
        return [TermMatch(*one) for one in found]

    def report(self, source: str, output: str) -> dict[str, bool]:
        """The terms of a source, and whether its output has a form of each as many times."""
        times = Counter(met.term for met in self.find(source))
        return {term.source: len(term.places(output)) >= number for term, number in times.items()}


GlossaryLike = Glossary | str | Path | Mapping[str, str | Sequence[str]] | Sequence[Sequence[str]]
"""What a glossary is given as: itself, a file, target terms by source terms, or rows."""


def glossary_of_rows(rows: Iterable[tuple[str, Sequence[str]]]) -> Glossary:
    """A glossary of (place, columns): a source term, its target term, and other allowed forms of that.
    Raises DataError: a row has fewer than two columns, or an empty one; a term stands twice. Says the place.
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
    return _LETTER.match(letter) is not None


def _key(words: str) -> str:
    return " ".join(nfc(words).lower().replace("i\u0307", "İ").split())  # İ, which `lower` makes two


@lru_cache(maxsize=64)
def _folded(text: str) -> tuple[str, list[tuple[int, int]]]:
    """A text as phrases are compared, in any case, spaces as one; where each of its characters stands in the text."""
    whole = normalize_with_spans(text, lowercase=True)
    dots = {match.end() - 1 for match in re.finditer("i\u0307", whole.text)}  # of İ, which lower case makes two
    spans = [span for n, span in enumerate(whole.spans) if n not in dots] if dots else whole.spans
    return whole.text.replace("i\u0307", "i").translate(_ALIKE), spans


class _Phrases:
    """Phrases that are found in a text by its words: building takes the time of their length, a search that of its."""

    def __init__(self, phrases: Iterable[str]) -> None:
        self._phrases = {_folded(phrase)[0] for phrase in phrases}
        lengths = defaultdict[str, set[int]](set)  # of the phrases, by how they start
        for phrase in self._phrases:
            if start := _START.match(phrase):
                lengths[start[0]].add(len(phrase))
        self._lengths = {start: sorted(found, reverse=True) for start, found in lengths.items()}

    def find(self, text: str, of: Callable[[int, int], T | None]) -> Iterator[tuple[T, int, int]]:
        """Each phrase as whole words: what `of` gives for its begin and end, and both; the longest that gives one."""
        (folded, spans), done = _folded(text), 0
        for start in _START.finditer(folded):
            at = start.start()
            for end in (at + length for length in self._lengths.get(start[0], ()) if at >= done):
                is_whole = not has_spaces(folded[end - 1 : end]) or not _IN_WORD.match(folded, end)
                if folded[at:end] in self._phrases and end <= len(folded) and is_whole:
                    begin, stop = spans[at][0], spans[end - 1][1]
                    if found := of(begin, stop):
                        yield found, begin, stop
                        done = end
                        break


_phrases_of = lru_cache(maxsize=4096)(_Phrases)
