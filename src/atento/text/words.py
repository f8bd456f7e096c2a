"""Words and sentences of a text, the word of each token, and labels of words and tokens (docs/notes.md#d4)."""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from atento.base.errors import DataError
from atento.text.found_spans import EMOJI, TAG, halves
from atento.text.kinds import is_blank

# Abbreviations that rarely end a sentence. Those that often do (etc., Ltda., a.m.) are not listed.
_ABBREVIATION_LIST = """
    sr sra srs sras srta dr dra drs dras prof profa profs eng enga arq adv exmo exma ilmo ilma dom dna fr pe sto sta
    pça trav gen cel maj ten sgt dep sen gov pres emb rev hon art arts fl fls fig figs vol vols org orgs trad obs
    p pp pág págs op cit ibid cf tel séc sécs aprox máx mín núm nr n.º
    mr mrs ms messrs mx st mt ft col lt capt cmdr adm jr e.g i.e viz vs approx dept
    jan fev feb apr abr mai jun jul ago aug sept sep oct nov dez dec
"""
_ABBREVIATIONS = frozenset(_ABBREVIATION_LIST.split())

_TAG = re.compile(TAG)
# Possessive, and only at the start of a run of marks: a million full stops cost one pass.
# Tags may stand behind them, and the number of a note in a pair of tags: "One.</b> Two.<sup>3</sup> Three."
_END = re.compile("(?<![.!?…])[.!?…]++(?:[\"'”’»)\\]\2\3]|\1++\\[?[0-9]{1,3}\\]?\2++)*+(?=\\s)")
_LEAD = re.compile("[\\s\1\2\3\"'“‘«([¿¡—–-]*+")
_SYMBOLS = re.compile(rf"\s++({EMOJI}(?:\s++{EMOJI})*+)(?=\s)")  # between two sentences


def split_sentences(text: str) -> list[str]:
    """The sentences of a text, without spaces around them. A line break always ends a sentence.

    One of . ! ? … ends a sentence if a space follows and the next word does not begin with a lower-case letter, unless
    the word before a single full stop is an abbreviation (Sr., Dra., Mr., e.g.), an initial (J. Silva) or a number at
    the start of the line (1. Introduction). The time is linear in the length of the text.
    """
    sentences: list[str] = []
    for line in re.split(r"[\r\n\u2028\u2029]+", text):
        start, plain = 0, _TAG.sub(_blanked, line) if "<" in line else line
        for punctuation in _END.finditer(plain):
            if _ends_sentence(plain, start, punctuation):
                sentences.append(line[start : punctuation.end()].strip())
                start = punctuation.end()
                if (symbols := _SYMBOLS.match(line, start)) is not None:  # no model has to write them
                    sentences.append(symbols[1])
                    start = symbols.end()
        sentences.append(line[start:].strip())
    return [sentence for sentence in sentences if sentence]


def _blanked(tag: re.Match[str]) -> str:
    """A control character for each of a tag: one that begins an element, one that ends it, or another."""
    begins, ends = halves(tag[0])
    return ("\1" if begins else "\2" if ends else "\3") * len(tag[0])


def _ends_sentence(line: str, start: int, punctuation: re.Match[str]) -> bool:
    """Whether the punctuation at `punctuation` ends the sentence that began at `start`."""
    first = _LEAD.match(line, punctuation.end())
    if first is not None and line[first.end() : first.end() + 1].islower():
        return False
    if punctuation.group().strip("\1\2\3") != ".":
        return True
    before = _words(line[max(start, punctuation.start() - 32) : punctuation.start()])
    if not before:
        return True
    word = before[-1].lstrip("\"'“‘«([¿¡—–-")
    if len(word) == 1 and word.isupper():  # an initial
        return False
    if word.isdigit() and _words(line[start : punctuation.start()]) == [word]:  # of an item
        return False
    return word.lower() not in _ABBREVIATIONS


def _words(line: str) -> list[str]:
    return re.sub("[\1\2\3]", "", line).split()


Label = TypeVar("Label", bound=Hashable)

_HAN = ((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2EBEF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F))


@dataclass(frozen=True)
class Words:
    """The words of tokens: `index[i]` is the word of token i, None for special tokens and spaces."""

    index: list[int | None]
    words: list[str]

    def tokens(self, word: int) -> list[int]:
        """The positions of the tokens of a word, which whole-word masking masks together (docs/notes.md#e2)."""
        return [i for i, w in enumerate(self.index) if w == word]


@lru_cache(maxsize=65536)
def _is_word(char: str) -> bool:
    """Punctuation and Han characters are words of their own."""
    if char.isascii():
        return not char.isalnum()
    return unicodedata.category(char).startswith("P") or any(low <= ord(char) <= high for low, high in _HAN)


def word_spans(text: str) -> list[tuple[int, int]]:
    """(start, end) of each word: split at spaces; each punctuation mark and Han character is a word."""
    spans: list[tuple[int, int]] = []
    start = -1
    for i, char in enumerate(text):
        if is_blank(char) or _is_word(char):
            if start >= 0:
                spans.append((start, i))
            start = -1
            if not is_blank(char):
                spans.append((i, i + 1))
        elif start < 0:
            start = i
    if start >= 0:
        spans.append((start, len(text)))
    return spans


def align_words(text: str, offsets: Sequence[tuple[int, int] | None]) -> Words:
    """The word of each token by its character offsets: that of its first character that is not a space.

    Args:
        text: the text the offsets point into.
        offsets: (start, end) for each token, None for special tokens; in order of start.
    """
    spans = word_spans(text)
    return Words(first_words(spans, offsets), [text[start:end] for start, end in spans])


def first_words(words: Sequence[tuple[int, int]], offsets: Iterable[tuple[int, int] | None]) -> list[int | None]:
    """The number of the first word that has a character of each span; None where there is none.

    Args:
        words: (start, end) of each word, in order.
        offsets: (start, end) of each span, None for one without characters.
    """
    ends = [end for _, end in words]
    index: list[int | None] = []
    for offset in offsets:
        start, end = offset or (0, 0)
        word = bisect_right(ends, start)
        index.append(word if start < end and word < len(words) and words[word][0] < end else None)
    return index


def spelled_words(spellings: Iterable[bytes | str | None]) -> Words:
    """The words of a sequence of pieces, from their spellings alone.

    Args:
        spellings: the text of each token, or its bytes, which may be part of a character; None for special tokens.
            Invalid bytes are read as U+FFFD.
    """
    spelt = bytearray()
    cuts: list[tuple[int, int] | None] = []
    for spelling in spellings:
        start = len(spelt)
        if spelling is None:
            cuts.append(None)
            spelt += b" "
            continue
        spelt += spelling if isinstance(spelling, bytes) else spelling.encode("utf-8")
        cuts.append((start, len(spelt)))
    text = spelt.decode("utf-8", "surrogateescape")  # an invalid byte becomes one character
    char_at: list[int] = []
    for number, char in enumerate(text):
        char_at += [number] * (1 if "\udc80" <= char <= "\udcff" else len(char.encode("utf-8")))
    offsets = [None if c is None or c[0] == c[1] else (char_at[c[0]], char_at[c[1] - 1] + 1) for c in cuts]
    words = align_words(text, offsets)
    readable = [word.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for word in words.words]
    return Words(words.index, readable)


def spread_labels(
    labels: Sequence[Label], index: Sequence[int | None], *, inner: dict[Label, Label] | None = None
) -> list[Label | None]:
    """Labels of words as labels of tokens; None for tokens without a word.

    Args:
        labels: the label of each word.
        index: the word of each token.
        inner: replacements for the second and later tokens of a word (`{"B-PER": "I-PER"}`).

    Raises:
        DataError: the word of a token has no label.
    """
    out: list[Label | None] = []
    last: int | None = None
    for token, word in enumerate(index):
        if word is None:
            out.append(None)
            continue
        if not 0 <= word < len(labels):
            raise DataError(f"every word must have a label: token {token} is of word {word}, got {len(labels)} labels")
        label = labels[word]
        out.append((inner or {}).get(label, label) if word == last else label)
        last = word
    return out


def merge_labels(
    labels: Sequence[Label], index: Sequence[int | None], n_words: int, *, missing: Label | None = None
) -> list[Label | None]:
    """Labels of tokens as labels of words: that of the first token of a word, `missing` for a word without tokens.

    Raises:
        DataError: `labels` and `index` differ in length.
    """
    if len(labels) != len(index):
        raise DataError(f"every token must have a label: got {len(labels)} labels for {len(index)} tokens")
    out: list[Label | None] = [missing] * n_words
    labelled: set[int] = set()
    for label, word in zip(labels, index, strict=True):
        if word is not None and word not in labelled and 0 <= word < n_words:
            labelled.add(word)
            out[word] = label
    return out
