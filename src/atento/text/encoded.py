"""A text as ids with the place of each in it (docs/notes.md#d4)."""

from collections.abc import Iterable
from dataclasses import dataclass

from atento.text.normalization import is_blank

Span = tuple[int, int]


@dataclass(frozen=True)
class Encoded:
    """A text as ids, and where each came from.

    `offsets[i]`: (start, end) in characters of the text as the user gave it, without the blank in front of a word; a
    piece that is only such a blank has an empty span. `word_ids[i]`: the word it belongs to, None for bare spaces;
    `words`: their strings. Pieces that share a character (its bytes, say) share its span.
    """

    ids: list[int]
    tokens: list[str]
    offsets: list[Span]
    word_ids: list[int | None]
    words: list[str]


def walk(spellings: Iterable[bytes | str], text: str, *, prefixed: bool) -> list[Span] | None:
    """The span of each piece in a text that the pieces spell one after the other; None if they do not.

    Args:
        spellings: the text of each piece, or its bytes.
        text: what they should spell.
        prefixed: whether the first piece begins with a space that the text has not.
    """
    spans: list[Span] = []
    at = 0
    owed = 0  # bytes of the character at `at` that are already written
    for i, spelling in enumerate(spellings):
        if isinstance(spelling, bytes):
            if at >= len(text):
                return None
            spans.append((at, at + 1))
            owed += 1
            if owed == len(text[at].encode("utf-8")):
                at, owed = at + 1, 0
            continue
        end = at + len(spelling) - (1 if prefixed and i == 0 else 0)
        spans.append((at + 1 if prefixed and i and spelling.startswith(" ") else at, end))
        at = end
    return spans if at == len(text) else None


def trim(text: str, span: Span) -> Span:
    """The span without the blanks in front."""
    start, end = min(span[0], len(text)), min(span[1], len(text))
    while start < end and is_blank(text[start]):
        start += 1
    return (start, end)
