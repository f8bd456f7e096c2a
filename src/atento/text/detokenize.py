"""Join words and punctuation marks to text, for vocabularies that do not encode spaces."""

from collections.abc import Sequence

_NO_SPACE_BEFORE = frozenset(",.!?;:)]}%»”’…ºª°")
_NO_SPACE_AFTER = frozenset("([{«“‘¿¡$€£#@")
_JOINS_LETTERS = frozenset("-'’_/")
_JOINS_DIGITS = frozenset(".,:/-")
_QUOTES = frozenset('"')


def detokenize(words: Sequence[str]) -> str:
    """Join words with the usual spaces: none before a comma or inside brackets; quotes are paired.

    Word and WordPiece vocabularies do not encode spaces, so this is a heuristic: hyphens and apostrophes join letters
    ("guarda-chuva", "d'água"), points and commas join digits ("1.234,56").
    """
    out: list[str] = []
    open_quote = False
    glue = True  # no space before the next word
    for i, word in enumerate(words):
        before = words[i - 1] if i else ""
        after = words[i + 1] if i + 1 < len(words) else ""
        joins = (word in _JOINS_LETTERS and before[-1:].isalnum() and after[:1].isalnum()) or (
            word in _JOINS_DIGITS and before[-1:].isdigit() and after[:1].isdigit()
        )
        closing = word in _QUOTES and open_quote
        if not (glue or joins or closing or word in _NO_SPACE_BEFORE):
            out.append(" ")
        out.append(word)
        opening = word in _QUOTES and not open_quote
        if word in _QUOTES:
            open_quote = not open_quote
        glue = joins or opening or word in _NO_SPACE_AFTER
    return "".join(out)
