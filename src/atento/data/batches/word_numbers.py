"""The number of the word of each token: one text as its rule, and many texts at once from a table of the pieces."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from atento.data.batches.batch import Ragged
from atento.text.tokenizer import Tokenizer
from atento.text.words import word_spans

_LETTER = "a"  # a character that continues the word before it


def word_numbers(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """Return the number of the word of each token; equal numbers stand together.

    The words are those of the spelling of the tokens, so that any tokenizer has them. A token that is only a space
    belongs to the word behind it, and at the end of a text to none.
    """
    index = tokenizer.words(ids).index
    number = 1 + max((word for word in index if word is not None), default=0)
    numbers = []
    for word in reversed(index):
        number = number if word is None else word  # a space takes the number behind it
        numbers.append(number)
    return numbers[::-1]


class WordNumbers:
    """`word_numbers` of many texts at once.

    How many words begin in a piece depends on the piece and on whether a word reaches its beginning, so a table of the
    pieces and cumulative sums give the numbers. A text with a piece that is a part of a character is read by itself.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._begins = np.zeros(tokenizer.vocab_size, dtype=np.int64)  # words that begin in a piece, wherever it stands
        names = ("known", "partial", "empty", "blank", "joins", "open")
        self._is = {name: np.zeros(tokenizer.vocab_size, dtype=np.bool_) for name in names}

    def of(self, texts: Ragged) -> Ragged:
        """Return the numbers of the tokens of each text."""
        ids = texts.flat.astype(np.int64)
        for piece in np.unique(ids[~self._is["known"][ids]]).tolist():
            self._learn(piece)
        text = np.repeat(np.arange(len(texts)), texts.lengths)  # the text of each token
        numbers = Ragged.of_flat(self._numbers(ids, text).astype(np.int32), texts.lengths)
        for row in np.unique(text[self._is["partial"][ids]]).tolist():
            numbers[row][:] = word_numbers(self.tokenizer, texts[row].tolist())
        return numbers

    def _learn(self, piece: int) -> None:
        """Add a piece to the table."""
        self._is["known"][piece] = True
        spelling = self.tokenizer.spelling(piece)
        if isinstance(spelling, bytes):
            try:
                spelling = spelling.decode("utf-8")
            except UnicodeDecodeError:
                self._is["partial"][piece] = True
                return
        if spelling is None:  # a special token parts words as a space does
            spelling = " "
        spans = word_spans(spelling)  # (begin, end) of each word in it
        joins = bool(spelling) and word_spans(_LETTER + spelling)[0][1] > len(_LETTER)
        self._begins[piece] = len(spans) - joins  # the first word only where nothing joins
        self._is["empty"][piece], self._is["blank"][piece], self._is["joins"][piece] = not spelling, not spans, joins
        self._is["open"][piece] = bool(spelling) and word_spans(spelling + _LETTER)[-1][0] < len(spelling)

    def _numbers(self, ids: NDArray[np.int64], text: NDArray[np.int64]) -> NDArray[np.int64]:
        """The numbers of tokens (n,) of the texts `text` (n,)."""
        spelt = np.flatnonzero(~self._is["empty"][ids])  # pieces that spell something
        index = np.full(len(ids), -1)
        pieces, of = ids[spelt], text[spelt]
        continues = np.zeros(len(pieces), dtype=np.bool_)  # whether the word before a piece reaches into it
        continues[1:] = self._is["open"][pieces[:-1]] & (of[1:] == of[:-1])  # open before, in the same text
        joins = self._is["joins"][pieces]
        begins = self._begins[pieces] + (joins & ~continues)  # a word begins unless one goes on
        before = np.cumsum(begins) - begins  # words that begin before a piece, in all texts
        first = np.searchsorted(of, of)  # the first piece of its text
        before = before - before[first]  # counted from its own text
        own = np.where(joins & continues, before - 1, before)  # the word of the first character that is no space
        index[spelt] = np.where(self._is["blank"][pieces], -1, own)
        # replace -1 by the number behind it in the same text, at its end by 1 more than the largest (none: by 1)
        positions, count = np.arange(len(index)), len(index)
        behind = np.minimum.accumulate(np.where(index >= 0, positions, count)[::-1])[::-1]
        before = np.maximum.accumulate(np.where(index >= 0, positions, -1))
        padded_index, padded_text = np.append(index, 0), np.append(text, -1)  # of the positions `count` and -1
        at_end = 1 + np.where(padded_text[before] == text, padded_index[before], 0)
        return np.where(padded_text[behind] == text, padded_index[behind], at_end)
