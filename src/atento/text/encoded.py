"""Encoded text: ids with their character offsets and words, also of normalised characters (docs/notes.md#d4)."""

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from atento.base.nfc import nfc
from atento.text.kinds import BLANK_CHARS, is_blank
from atento.text.words import first_words

Span = tuple[int, int]
_JOINER = "\u200d"  # ZERO WIDTH JOINER
# Characters of combining class 0 that still compose with the one before them (Hangul vowels and finals, some Indic
# vowel signs): a split before one of these would change the NFC form.
_JOINING_STARTERS = frozenset(
    [chr(i) for i in (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))]
    + list(
        "\u09be\u09d7\u0b3e\u0b56\u0b57\u0bbe\u0bd7\u0cc2\u0cd5\u0cd6\u0d3e\u0d57\u0dcf\u0ddf\u102e\u1b35"
        "\U00011127\U0001133e\U00011357\U000114b0\U000114ba\U000114bd\U000115af\U00011930"
    )
)


@dataclass(frozen=True)
class Normalized:
    """Normalised text, whose character i comes from `original[spans[i][0]:spans[i][1]]`."""

    text: str
    spans: list[tuple[int, int]]


@dataclass(frozen=True)
class Encoded:
    """A text as ids, with the part of the text that each id encodes.

    Attributes:
        offsets: (start, end) of each id in characters of the given text, without the space before a word. A piece that
            is only such a space has an empty span. Pieces of the same character (its bytes) have the same span.
    """

    ids: list[int]  # the ids
    tokens: list[str]  # the piece of each id
    offsets: list[Span]
    word_ids: list[int | None]  # the word of each id; None for spaces
    words: list[str]  # the words

    def of_words(self, words: Sequence[str], *, spaces: bool = False) -> "Encoded":
        """The same ids with these words, which the encoded text joins by single spaces, as their words.

        Args:
            words: the words.
            spaces: whether a space that is a piece of its own belongs to the word behind it.
        """
        visible: list[tuple[Span, int]] = []  # the characters of words that are not blank
        start = 0
        for number, word in enumerate(words):
            visible += [((at, at + 1), number) for at, char in enumerate(word, start) if not is_blank(char)]
            start += len(word) + 1  # + 1: the space between words
        found = first_words([span for span, _ in visible], self.offsets)
        word_ids = [None if first is None else visible[first][1] for first in found]
        for position in reversed(range(len(word_ids) - 1)) if spaces else ():
            if word_ids[position] is None:
                word_ids[position] = word_ids[position + 1]
        return Encoded(self.ids, self.tokens, self.offsets, word_ids, list(words))

    def with_every_word(self, token_id: int, token: str) -> "Encoded":
        """Add a token for each word that has none, before the tokens of the words behind it.

        The encoded text must be the words joined by single spaces.

        Args:
            token_id: id of the added tokens.
            token: their piece.
        """
        starts = list(accumulate((len(word) + 1 for word in self.words), initial=0))
        missing = sorted(set(range(len(self.words))) - set(self.word_ids), reverse=True)  # popped from its end
        rows: list[tuple[int, str, Span, int | None]] = []
        # a last row, dropped again, lets in the words that follow all tokens
        for row in [*zip(self.ids, self.tokens, self.offsets, self.word_ids), (0, "", (0, 0), len(self.words))]:
            while missing and row[3] is not None and missing[-1] < row[3]:
                number = missing.pop()
                rows.append((token_id, token, (starts[number], starts[number] + len(self.words[number])), number))
            rows.append(row)
        ids, tokens, offsets, word_ids = (list(column) for column in zip(*rows[:-1]))
        return Encoded(ids, tokens, offsets, word_ids, self.words)


def walk(spellings: Iterable[bytes | str], text: str, *, prefixed: bool) -> list[Span] | None:
    """The span of each piece in a text; None if the pieces do not spell the text.

    Args:
        spellings: the text of each piece, or its bytes.
        text: the text.
        prefixed: whether the first piece begins with a space that the text does not have.
    """
    spans: list[Span] = []
    at = 0
    owed = 0  # bytes of the character at `at` that pieces have already spelled
    for i, spelling in enumerate(spellings):
        if isinstance(spelling, bytes):
            if at >= len(text):
                return None
            spans.append((at, at + 1))  # bytes of one character share its span
            owed += 1
            if owed == len(text[at].encode("utf-8")):
                at, owed = at + 1, 0
            continue
        end = at + len(spelling) - (1 if prefixed and i == 0 else 0)  # the space of the first piece is added
        spans.append((at + 1 if prefixed and i and spelling.startswith(" ") else at, end))
        at = end
    return spans if at == len(text) else None


def trim(text: str, span: Span) -> Span:
    """The span without leading spaces."""
    start, end = min(span[0], len(text)), min(span[1], len(text))
    while start < end and is_blank(text[start]):
        start += 1
    return (start, end)


def trimmed_offsets(text: str, offsets: Iterable[Span], spellings: Iterable[bytes | str]) -> list[Span]:
    """Offsets without leading spaces; a piece that is only a space gets an empty span."""
    blank = [isinstance(spelling, str) and spelling.isspace() for spelling in spellings]
    spans = [trim(text, span) for span in offsets]
    return [(start, start if alone else end) for (start, end), alone in zip(spans, blank, strict=True)]


def original_offsets(text: str, origins: Sequence[Span], offsets: Iterable[Span]) -> list[Span]:
    """Offsets in a normalised text as offsets in the original `text`; `origins` has the span of each character."""
    spans = [*origins, (len(text), len(text))]
    return [(spans[start][0], spans[end - 1][1] if end > start else spans[start][0]) for start, end in offsets]


def whole_characters(text: str, span: Span) -> Span:
    """The span grown to whole characters as readers see them: a letter with its combining marks, an emoji of several.

    Tokenizers that remove accents or joiners give tokens whose characters end before them.
    """
    start, end = span
    while 0 < start < end and _continues(text, start):
        start -= 1
    while start < end < len(text) and _continues(text, end):
        end += 1
    return start, end


def _continues(text: str, index: int) -> bool:
    """Whether the code point at `index` belongs to the character before it."""
    code, before = text[index], text[index - 1]
    return (
        unicodedata.category(code).startswith("M")
        or _JOINER in (code, before)
        or "\U0001f3fb" <= code <= "\U0001f3ff"  # the colours of skin
    )


def normalize_with_spans(text: str, lowercase: bool = False) -> Normalized:
    """The rule with the original span of each character (docs/notes.md#d4), in linear time.

    If NFC or lower case changes a character with its combining marks, each resulting character has the span of the
    whole group, so that a span never separates a letter from its accent.
    """
    pairs = _composed(text, lowercase)
    out: list[str] = []
    spans: list[tuple[int, int]] = []
    blank: tuple[int, int] | None = None  # the span of blanks since the last letter
    for char, span in pairs:
        if char in BLANK_CHARS:
            blank = span if blank is None else (blank[0], span[1])
            continue
        if blank is not None and out:  # blanks at both ends are dropped
            out.append(" ")
            spans.append(blank)
        blank = None
        out.append(char)
        spans.append(span)
    return Normalized("".join(out), spans)


def _composed(text: str, lowercase: bool) -> list[tuple[str, tuple[int, int]]]:
    """Lower case and NFC: each character with its original span."""
    if not lowercase and unicodedata.is_normalized("NFC", text):
        return [(char, (i, i + 1)) for i, char in enumerate(text)]
    pairs: list[tuple[str, tuple[int, int]]] = []
    start = 0
    for end in range(1, len(text) + 1):  # one behind a letter with its marks
        if end < len(text) and (text[end] in _JOINING_STARTERS or unicodedata.combining(text[end])):
            continue
        group = text[start:end]
        # Lower case of single characters, since the library has no special case for final sigma.
        changed = nfc("".join(c.lower() for c in group) if lowercase else group)
        if len(changed) == len(group) and (changed == group or len(group) == 1):
            pairs += [(char, (start + i, start + i + 1)) for i, char in enumerate(changed)]
        else:
            pairs += [(char, (start, end)) for char in changed]
        start = end
    return pairs
