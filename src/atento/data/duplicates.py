"""Exact and near-duplicates of texts, within one file or between training and test data.

Texts are compared by their sets of word n-grams, in lower case and without punctuation. MinHash (Broder 1997) with
locality-sensitive hashing finds candidates without comparing all pairs; each candidate is then compared exactly.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from atento.errors import MissingPartError

PERMUTATIONS = 128  # hashes of a text; more find candidates more surely
_SLACK = 0.8  # candidates are looked for at this share of the threshold, since MinHash only estimates
_WORD = re.compile(r"\w+")
Shingles = frozenset[tuple[str, ...]]


@dataclass(frozen=True)
class Duplicate:
    """A text that repeats another one.

    Attributes:
        number: of the text.
        of: number of the first text that it repeats.
        similarity: Jaccard similarity of their sets of n-grams; 1 for equal texts.
        equal: whether the texts are equal, but for spaces around them.
    """

    number: int
    of: int
    similarity: float
    equal: bool = False


def shingles(text: str, ngram: int) -> Shingles:
    """Return the word n-grams of a text, in lower case and without punctuation; all words if there are fewer."""
    words = tuple(_WORD.findall(text.lower()))
    if len(words) <= ngram:
        return frozenset([words] if words else [])
    return frozenset(words[begin : begin + ngram] for begin in range(len(words) - ngram + 1))


def similarity(first: Shingles, second: Shingles) -> float:
    """Return the Jaccard similarity of two sets, |A ∩ B| / |A ∪ B|; 0 if both are empty."""
    union = len(first | second)
    return len(first & second) / union if union else 0.0


class TextIndex:
    """Texts that can be asked for a text that is equal or similar to a new one.

    Args:
        threshold: smallest Jaccard similarity of near-duplicates, above 0 to 1; None: only equal texts.
        ngram: words of an n-gram.

    Raises:
        MissingPartError: near-duplicates are wanted, and `datasketch` is not installed.
    """

    def __init__(self, threshold: float | None, ngram: int = 3) -> None:
        self.threshold, self.ngram = threshold, ngram
        self.texts: list[str] = []
        self.numbers: list[int] = []
        self._equal: dict[str, int] = {}  # text: its place
        self._candidates: Any = None
        if threshold is not None:
            try:
                from datasketch import MinHashLSH  # late: an extra
            except ImportError as error:
                raise MissingPartError("near-duplicates need datasketch: pip install 'atento[data]'") from error
            self._candidates = MinHashLSH(threshold=max(0.05, _SLACK * threshold), num_perm=PERMUTATIONS)

    def find(self, text: str, number: int) -> Duplicate | None:
        """Return the earliest text that a text, with this number, repeats: an equal one, else the most similar one."""
        place = self._equal.get(text.strip())
        if place is not None:
            return Duplicate(number, self.numbers[place], 1.0, equal=True)
        own = shingles(text, self.ngram)
        if self._candidates is None or self.threshold is None or not own:
            return None
        places = sorted(self._candidates.query(_signature(own)))
        compared = [(similarity(own, shingles(self.texts[place], self.ngram)), -place) for place in places]
        best, place = max(compared, default=(0.0, 0))
        return Duplicate(number, self.numbers[-place], best) if best >= self.threshold else None

    def add(self, text: str, number: int) -> None:
        """Add a text with its number."""
        place = len(self.texts)
        self.texts.append(text)
        self.numbers.append(number)
        self._equal.setdefault(text.strip(), place)
        own = shingles(text, self.ngram)
        if self._candidates is not None and own:
            self._candidates.insert(place, _signature(own))


def _signature(own: Shingles) -> Any:
    """The MinHash of a set of n-grams; the same on any machine."""
    from datasketch import MinHash  # late: an extra

    signature = MinHash(num_perm=PERMUTATIONS, seed=1)
    signature.update_batch([" ".join(words).encode("utf-8") for words in sorted(own)])
    return signature


def duplicates(texts: Iterable[tuple[int, str]], threshold: float | None, ngram: int = 3) -> Iterator[Duplicate]:
    """Yield the numbered texts that repeat an earlier one; a text that repeats another is not compared with later ones.

    Blank texts are no duplicates.
    """
    index = TextIndex(threshold, ngram)
    for number, text in texts:
        if not text.strip():
            continue
        duplicate = index.find(text, number)
        if duplicate is None:
            index.add(text, number)
        else:
            yield duplicate


def shared(
    train: Iterable[tuple[int, str]], test: Iterable[tuple[int, str]], threshold: float | None, ngram: int = 3
) -> Iterator[Duplicate]:
    """Yield the numbered test texts that equal a training text, or are similar to one; `of` is the training text's."""
    index = TextIndex(threshold, ngram)
    for number, text in train:
        if text.strip():
            index.add(text, number)
    for number, text in test:
        duplicate = index.find(text, number) if text.strip() else None
        if duplicate is not None:
            yield duplicate


def seen_ngrams(train: Iterable[str], test: Sequence[str], ngram: int) -> list[int]:
    """Return the indices of the test texts with an n-gram of `ngram` words that a training text has.

    Texts of fewer words than an n-gram have none (Brown et al. 2020 take 13 words).
    """
    of_test: dict[tuple[str, ...], list[int]] = {}
    for number, text in enumerate(test):
        for words in shingles(text, ngram):
            if len(words) == ngram:
                of_test.setdefault(words, []).append(number)
    contained: set[int] = set()
    for text in train:
        for words in shingles(text, ngram) & of_test.keys():
            contained.update(of_test[words])
    return sorted(contained)
