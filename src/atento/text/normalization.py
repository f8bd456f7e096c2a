"""Normalisation of text, and the original characters of each normalised character.

All kinds of tokenizer share the rule. Text is lower-cased if requested and converted to Unicode NFC (accents are kept).
Each run of spaces, tabs, line ends, other separators (Z*), control characters (Cc, also NUL) and U+2581, which is the
space in pieces, becomes one space; spaces at both ends are removed. Format characters (joiners in emoji, direction
marks, U+FEFF) are kept.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Regex, normalizers

from atento.errors import DataError, TokenizerError, UsageError
from atento.nfc import nfc

# One class for both engines: Python's `re` and Oniguruma read it alike.
_BLANK = (
    "\\u0000-\\u0020\\u007f-\\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u2581\\u3000"  # Cc, Z*, U+2581
)
_BLANKS = re.compile(f"[{_BLANK}]+")
_BLANK_CHARS = frozenset(chr(i) for i in range(0x3001) if _BLANKS.fullmatch(chr(i)))

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


def require_unicode(text: str, what: str = "text") -> None:
    """Check that a text is valid Unicode.

    Raises:
        TokenizerError: it is not a string, or has a lone surrogate; the message names its position.
    """
    if not isinstance(text, str):
        raise TokenizerError(f"{what} must be a string: got {type(text).__name__}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = f"U+{ord(text[error.start]):04X}"
        raise TokenizerError(
            f"{what} must be Unicode text: got the lone surrogate {code} at character {error.start}"
        ) from None


def require_texts(texts: Sequence[str], what: str = "text") -> None:
    """Check several texts, or words, as `require_unicode` does; one string is none, although it has letters."""
    if isinstance(texts, str):
        raise TokenizerError(f"a list of {what}s is needed: got one string")
    for number, text in enumerate(texts):
        require_unicode(text, f"{what} {number}")


def check_texts(texts: Sequence[object]) -> None:
    """Raises UsageError: one is no str, or all are one. DataError: one has a NUL character, which no line may have."""
    if isinstance(texts, str):
        raise UsageError(f"give a list of texts: got the text {texts[:60]!r}")
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            place = f" in place of text {number}" if len(texts) > 1 else ""
            raise UsageError(f"a text must be a str: got {type(text).__name__}{place}")
        if "\0" in text:
            at = text.index("\0")
            raise DataError(f"text {number} must not have a NUL character: there is one at character {at}")
        require_unicode(text, f"text {number}")


def is_blank(char: str) -> bool:
    """Whether normalisation replaces this character by a space."""
    return char in _BLANK_CHARS


def library_normalizer(lowercase: bool) -> normalizers.Normalizer:
    """The rule as a normalizer of the `tokenizers` library, as stored in `tokenizer.json`."""
    steps: list[normalizers.Normalizer] = [normalizers.Lowercase()] if lowercase else []
    spelled = re.sub(r"\\u([0-9a-f]{4})", r"\\x{\1}", _BLANK)
    steps += [normalizers.NFC(), normalizers.Replace(Regex(f"[{spelled}]+"), " "), normalizers.Strip()]
    return normalizers.Sequence(steps)


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
        if char in _BLANK_CHARS:
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
