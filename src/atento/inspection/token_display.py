"""Display of tokens: visible control characters, words without subword markers, widths in columns."""

import unicodedata
from collections.abc import Sequence

_SIGNS = {" ": "␣", "\n": "⏎", "\r": "␍", "\t": "⇥", "": "∅"}
_WORD_STARTS = ("▁", "Ġ")
_CONTINUATION = "##"
_CONTINUED = "@@"


def visible(text: str) -> str:
    """`text` with visible signs in place of lone whitespace, control characters and direction marks."""
    return _SIGNS[text] if text in _SIGNS else "".join(_visible_character(character) for character in text)


def _visible_character(character: str) -> str:
    if character in "\n\r\t":
        return _SIGNS[character]
    hidden = character in "\ufffe\uffff" or unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")
    turns = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
    return "\ufffd" if hidden or unicodedata.bidirectional(character) in turns else character


def display_width(text: str) -> int:
    """The number of columns of `text` in a terminal: wide characters have two, combining characters none."""
    width = 0
    for character in text:
        if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
            continue
        width += 2 if unicodedata.east_asian_width(character) in "WF" else 1
    return width


def padded(text: str, width: int) -> str:
    """`text` with spaces behind it, so many columns wide."""
    return text + " " * (width - display_width(text))


def shorten(text: str, width: int) -> str:
    """`text` cut to at most `width` columns, with an ellipsis if it is cut."""
    if display_width(text) <= width:
        return text
    shortened = ""
    for character in text:
        if display_width(shortened + character) > width - 1:  # one column for the ellipsis
            break
        shortened += character
    return shortened + "…"


def word_label(pieces: Sequence[str]) -> str:
    """The word of subword pieces, without their markers: `▁`, `Ġ` or `##` before, `@@` after."""
    word = ""
    for position, piece in enumerate(pieces):
        if piece.startswith(_WORD_STARTS) and len(piece) > 1:  # a marker alone is a space
            piece = piece[1:]
        elif piece in _WORD_STARTS and len(pieces) > 1:
            piece = ""
        if position and piece.startswith(_CONTINUATION):
            piece = piece[len(_CONTINUATION) :]
        if position < len(pieces) - 1 and piece.endswith(_CONTINUED):
            piece = piece[: -len(_CONTINUED)]
        word += piece
    return word
