"""Exact and near-duplicates of texts, within one file or between training and test data.

Texts are compared by their sets of word n-grams, in lower case and without punctuation. MinHash (Broder 1997) with
locality-sensitive hashing finds candidates without comparing all pairs; each candidate is then compared exactly.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from hashlib import blake2b
from itertools import islice, tee
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atento.base.errors import MissingPartError, install_hint
from atento.base.nfc import nfc
from atento.text.bulk import SEPARATOR, Answer, TextProcesses, TextWorkers, serve

PERMUTATIONS = 128  # hashes of a text; more find candidates more surely
_SLACK = 0.8  # candidates are looked for at this share of the threshold, since MinHash only estimates
_WORD = re.compile(r"\w+")
_BLOCK = 1000  # texts whose hashes a worker computes at once
_SERVE = (
    "import sys; from atento_cli.corpus.find_duplicates import serve_signatures; serve_signatures(int(sys.argv[1]))"
)
Shingles = frozenset[tuple[str, ...]]
Hashes = NDArray[np.uint64]  # (`PERMUTATIONS`,), the MinHash of a set


@dataclass(frozen=True)
class Duplicate:
    """A text that repeats another one."""

    number: int  # of the text
    of: int  # number of the first text that it repeats
    similarity: float  # Jaccard similarity of their sets of n-grams; 1 for equal texts
    equal: bool = False  # whether the texts are equal, but for spaces around them


def shingles(text: str, ngram: int) -> Shingles:
    """Return the word n-grams of a text, in lower case and without punctuation; all words if there are fewer."""
    words = tuple(_WORD.findall(nfc(text.lower())))
    if len(words) <= ngram:
        return frozenset([words] if words else [])  # fewer words than an n-gram: all of them
    return frozenset(words[begin : begin + ngram] for begin in range(len(words) - ngram + 1))


def similarity(first: Shingles, second: Shingles) -> float:
    """Return the Jaccard similarity of two sets, |A ∩ B| / |A ∪ B|; 0 if both are empty."""
    union = len(first | second)  # |A ∪ B|
    return len(first & second) / union if union else 0.0


class _Candidates:
    """Sets of n-grams by key, of which those that may be similar to a new one are found (MinHash, LSH).

    Raises:
        MissingPartError: `datasketch` is not installed.
    """

    def __init__(self, threshold: float) -> None:
        try:
            from datasketch import MinHashLSH  # late: an extra
        except ImportError as error:
            raise MissingPartError(f"near-duplicates need datasketch: {install_hint('data')}") from error
        self._table = MinHashLSH(threshold=max(0.05, _SLACK * threshold), num_perm=PERMUTATIONS)

    def add(self, key: int, own: Shingles, hashes: Hashes | None = None) -> None:
        """Add a set, whose MinHash may be known."""
        if own:
            self._table.insert(key, _signature(own, hashes))

    def similar(self, own: Shingles, hashes: Hashes | None = None) -> list[int]:
        """Return the keys of sets that may be similar, rising."""
        return sorted(self._table.query(_signature(own, hashes))) if own else []


class TextIndex:
    """Texts that can be asked for a text that is equal or similar to a new one.

    Of equal texts, a hash of 16 bytes is in memory; near-duplicates need the texts themselves.

    Args:
        threshold: smallest Jaccard similarity of near-duplicates, above 0 to 1; None: only equal texts.
        ngram: words of an n-gram.

    Raises:
        MissingPartError: near-duplicates are wanted, and `datasketch` is not installed.
    """

    def __init__(self, threshold: float | None, ngram: int = 3) -> None:
        self.threshold, self.ngram = threshold, ngram
        self._equal: dict[bytes, int] = {}  # of a text: its number
        self._texts: dict[int, str] = {}
        self._candidates = None if threshold is None else _Candidates(threshold)

    def find(self, text: str, number: int, hashes: Hashes | None = None) -> Duplicate | None:
        """Return the earliest text that a text, with this number, repeats: an equal one, else the most similar one.

        The MinHash of the text is computed if it is not known.
        """
        first = self._equal.get(_digest(text))
        if first is not None:
            return Duplicate(number, first, 1.0, equal=True)
        if self._candidates is None or self.threshold is None:
            return None
        own = shingles(text, self.ngram)
        compared = [
            (similarity(own, shingles(self._texts[candidate], self.ngram)), -candidate)  # of equal ones the earlier
            for candidate in self._candidates.similar(own, hashes)
        ]
        best, first = max(compared, default=(0.0, 0))  # the most similar, of these the earliest
        return Duplicate(number, -first, best) if best >= self.threshold else None

    def add(self, text: str, number: int, hashes: Hashes | None = None) -> None:
        """Add a text with its number, which is larger than those before."""
        self._equal.setdefault(_digest(text), number)
        if self._candidates is not None:
            self._texts[number] = text
            self._candidates.add(number, shingles(text, self.ngram), hashes)


def _digest(text: str) -> bytes:
    """A hash of a text without the spaces around it, its accented letters in one piece (NFC)."""
    return blake2b(nfc(text.strip()).encode("utf-8", "surrogatepass"), digest_size=16).digest()


@cache
def _empty_signature() -> Any:
    """The MinHash of nothing, whose permutations all others have."""
    from datasketch import MinHash  # late: an extra

    return MinHash(num_perm=PERMUTATIONS, seed=1)  # the same seed everywhere: hashes compare


def _signature(own: Shingles, hashes: Hashes | None = None) -> Any:
    """The MinHash of a set of n-grams, which may be known; the same on any machine."""
    signature = _empty_signature().copy()
    if hashes is not None:
        signature.hashvalues = hashes
        return signature
    signature.update_batch([" ".join(words).encode("utf-8") for words in sorted(own)])  # sorted: sets have no order
    return signature


def marked(
    texts: Iterable[tuple[int, str]], threshold: float | None, ngram: int = 3, workers: TextWorkers | None = None
) -> Iterator[Duplicate | None]:
    """Yield for each numbered text the earlier one that it repeats, or None; numbers rise.

    A text that repeats another is not compared with later ones. Blank texts are no duplicates.

    Args:
        texts: the numbered texts.
        threshold, ngram: as in `TextIndex`.
        workers: compute the hashes of near-duplicates, with `signed_answer`; None: this process does.
    """
    index = TextIndex(threshold, ngram)
    signed: Iterable[tuple[tuple[int, str], Hashes | None]] = ((numbered, None) for numbered in texts)
    if workers is not None:
        compared, read = tee(texts)  # workers read ahead
        signed = zip(compared, signatures((text for _, text in read), workers))
    for (number, text), hashes in signed:
        duplicate = index.find(text, number, hashes) if text.strip() else None
        if text.strip() and duplicate is None:
            index.add(text, number, hashes)
        yield duplicate


def signatures(texts: Iterable[str], workers: TextWorkers) -> Iterator[Hashes | None]:
    """Yield the MinHash of each text, computed by workers; None: it has no words."""
    # what is no text in UTF-8 is in no word either
    plain = (text.replace(SEPARATOR, " ").encode("utf-8", "replace").decode("utf-8") for text in texts)
    blocks = iter(lambda: list(islice(plain, _BLOCK)), [])
    for _, (with_words, hashes) in workers.answers(blocks):
        rows = iter(np.frombuffer(hashes, dtype="<u8").reshape(-1, PERMUTATIONS))  # (texts with words, PERMUTATIONS)
        for has_words in with_words:
            yield next(rows).copy() if has_words else None


def signed_answer(ngram: int, texts: bytes) -> Answer:
    """The answer of a worker: a byte for each text, 1 if it has words, and the MinHashes of those that have."""
    sets = [shingles(text, ngram) for text in texts.decode("utf-8").split(SEPARATOR)]
    hashes = b"".join(_signature(own).hashvalues.astype("<u8").tobytes() for own in sets if own)
    return bytes(bool(own) for own in sets), hashes


def signing_processes(ngram: int, count: int) -> TextProcesses:
    """Start worker processes of this machine that compute the hashes of texts."""
    return TextProcesses(_SERVE, [str(ngram)], count)


def serve_signatures(ngram: int) -> None:
    """In a worker process: compute the hashes of texts."""
    serve(partial(signed_answer, ngram))


def shared(
    train: Iterable[tuple[int, str]], test: Iterable[tuple[int, str]], threshold: float | None, ngram: int = 3
) -> Iterator[Duplicate]:
    """Yield the numbered test texts that equal a training text, or are similar to one; `of` is the training text's.

    It is the earliest equal one, else the most similar one. The test texts are in memory, a training text is read once.
    """
    asked = [(number, text) for number, text in test if text.strip()]
    grams = [shingles(text, ngram) for _, text in asked] if threshold is not None else []
    candidates = None if threshold is None else _Candidates(threshold)
    equal: dict[bytes, list[int]] = {}
    for position, (_, text) in enumerate(asked):
        equal.setdefault(_digest(text), []).append(position)
        if candidates is not None:
            candidates.add(position, grams[position])  # test texts are held, and training texts pass by
    best: list[Duplicate | None] = [None] * len(asked)
    for number, text in train:
        if not text.strip():
            continue
        for position in equal.pop(_digest(text), []):  # the first equal training text is named, no later one
            best[position] = Duplicate(asked[position][0], number, 1.0, equal=True)
        if candidates is None or threshold is None:
            continue
        own = shingles(text, ngram)  # of the training text
        for position in candidates.similar(own):
            before, now = best[position], similarity(own, grams[position])
            if now >= threshold and (before is None or (not before.equal and now > before.similarity)):
                best[position] = Duplicate(asked[position][0], number, now)
    return (duplicate for duplicate in best if duplicate is not None)


def seen_ngrams(train: Iterable[str], test: Sequence[str], ngram: int) -> list[int]:
    """Return the indices of the test texts with an n-gram of `ngram` words that a training text has.

    Texts of fewer words than an n-gram have none (Brown et al. 2020 take 13 words).
    """
    of_test: dict[tuple[str, ...], list[int]] = {}
    for number, text in enumerate(test):
        for words in shingles(text, ngram):
            if len(words) == ngram:  # a shorter text has shorter ones
                of_test.setdefault(words, []).append(number)
    contained: set[int] = set()
    for text in train:
        for words in shingles(text, ngram) & of_test.keys():  # n-grams of both
            contained.update(of_test[words])
    return sorted(contained)
