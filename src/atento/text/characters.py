"""Character ids of words in the layout of the published ELMo. Does not need torch.

The alphabet has 262 symbols: 0 is the padding of a batch, byte b of the UTF-8 of a word is b + 1, and five special
symbols follow. A word is `BEGIN_WORD bytes END_WORD PADDING ...`, 50 symbols long. A sentence begins and ends with a
word that contains a special symbol of its own.

    "ab" -> 259  98  99 260 261 261 ... 261
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from atento.base.errors import DataError

BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, PADDING = 257, 258, 259, 260, 261
N_CHARACTERS = 262
MAX_CHARACTERS = 50


def word_characters(word: str, max_characters: int = MAX_CHARACTERS) -> list[int]:
    """A word as `max_characters` ids; bytes beyond max_characters - 2 are cut, as in the published model.
    Raises DataError: the word is empty, or has half of a surrogate pair, which is not valid Unicode.
    """
    if not word:
        raise DataError("a word must have at least one character: got ''")
    try:
        data = word.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(f"a word must be Unicode text: {word!r} has half a surrogate pair at {error.start}") from None
    return framed([byte + 1 for byte in data[: max_characters - 2]], max_characters)


def sentence_characters(
    words: Sequence[str], *, boundaries: bool = True, max_characters: int = MAX_CHARACTERS
) -> NDArray[np.int64]:
    """A sentence as ids (L,C); by default its begin and end are words too, so that L = len(words) + 2.

    Text that looks like a special symbol, such as `<S>`, is encoded byte by byte like any other.
    Raises DataError: as `word_characters`, with the number of the word.
    """
    rows: list[list[int]] = []
    for number, word in enumerate(words):
        try:
            rows.append(word_characters(word, max_characters))
        except DataError as error:
            raise DataError(f"word {number}: {error}") from None
    if boundaries:
        rows = [framed([BEGIN_SENTENCE], max_characters), *rows, framed([END_SENTENCE], max_characters)]
    return np.array(rows, dtype=np.int64).reshape(len(rows), max_characters)


def character_batch(
    sentences: Sequence[Sequence[str]], *, boundaries: bool = True, max_characters: int = MAX_CHARACTERS
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Sentences as ids (B,L,C), padded with words of zeros, and the token mask (B,L), True = a real word.
    Raises DataError: as `word_characters`, with the numbers of sentence and word.
    """
    rows: list[NDArray[np.int64]] = []
    for number, words in enumerate(sentences):
        try:
            rows.append(sentence_characters(words, boundaries=boundaries, max_characters=max_characters))
        except DataError as error:
            raise DataError(f"sentence {number}, {error}") from None
    longest = max((len(row) for row in rows), default=0)
    ids = np.zeros((len(rows), longest, max_characters), dtype=np.int64)  # (B,L,C)
    real = np.zeros((len(rows), longest), dtype=np.bool_)  # (B,L)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row
        real[number, : len(row)] = True
    return ids, real


def framed(symbols: list[int], max_characters: int) -> list[int]:
    """Symbols between the begin and the end of a word, padded to `max_characters` ids."""
    word = [BEGIN_WORD, *symbols, END_WORD]
    return word + [PADDING] * (max_characters - len(word))
