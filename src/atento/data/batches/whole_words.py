"""Texts as whole words, for networks that read words: the ids of the words, and their characters (ELMo).

"o gato", template bos-eos -> ids "<s> o gato </s>", characters of a begin of sentence, "o", "gato", an end of sentence
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from atento.config.sections.network import NetworkConfig
from atento.data.batches.batch import MemoryStore, Ragged
from atento.text.characters import BEGIN_SENTENCE, END_SENTENCE, framed, word_characters
from atento.text.lengths import truncate
from atento.text.specials import Template
from atento.text.tokenizer import Tokenizer
from atento.text.words import word_spans

CHARACTERS = "characters"  # the column of the characters of each row, word after word
_UNREADABLE = "\ufffd"


def reads_words(network: NetworkConfig) -> bool:
    """Return whether a network reads whole words instead of the pieces of its tokenizer."""
    return network.architecture == "elmo"


def characters_of_words(network: NetworkConfig) -> int | None:
    """Return how many characters of each word a network reads; None: it reads ids."""
    return None if network.elmo is None or network.elmo.characters is None else network.elmo.characters.max_characters


def words_of(tokenizer: Tokenizer, texts: list[str]) -> list[list[str]]:
    """Return the words of each text, normalized by the tokenizer; texts without a word are left out."""
    return [words for text in texts if (words := _words(tokenizer, text))]


def word_ids(tokenizer: Tokenizer, words: list[str]) -> list[int]:
    """Return the ids of words; words that the tokenizer does not have get the id of the unknown token."""
    known = (tokenizer.token_id(word) for word in words)
    return [tokenizer.unk_id if token is None else token for token in known]


def readable(tokenizer: Tokenizer, words: Iterable[str]) -> list[str]:
    """Return words as the tokenizer normalises them, none of them empty."""
    return [tokenizer.normalize(word) or _UNREADABLE for word in words]


def row_characters(
    template: Template, words: Sequence[str], pair: Sequence[str] | None, count: int
) -> NDArray[np.int16]:
    """Return the characters of a row, `count` of each word (L·C,); its special tokens begin and end sentences."""
    numbers = [-1 - number for number in range(len(words) + len(pair or ()))]  # below all special ids
    row, _ = template.apply(numbers[: len(words)], None if pair is None else numbers[len(words) :])
    spelled, begin = [*words, *(pair or ())], row[0] if row else -1  # the token that begins a sentence
    boundaries = {False: framed([END_SENTENCE], count), True: framed([BEGIN_SENTENCE], count)}
    rows = [boundaries[n == begin] if n >= 0 else word_characters(spelled[-1 - n], count) for n in row]
    return np.array(rows, dtype=np.int16).reshape(-1)  # (L·C,)


def words_as_store(
    tokenizer: Tokenizer,
    template: Template,
    texts: Sequence[str],
    pairs: Sequence[str] | None,
    longest: int | None,
    network: NetworkConfig,
) -> tuple[MemoryStore, int]:
    """Encode texts or pairs as `labels.store_texts` does, where a network reads whole words."""
    added, count, cut = template.added(pairs is not None), characters_of_words(network), 0
    rows, characters = [], []
    for number, text in enumerate(texts):
        words, pair = _words(tokenizer, text), None if pairs is None else _words(tokenizer, pairs[number])
        room = len(words) + len(pair or ()) if longest is None else max(0, longest - added)
        # `truncate` looks at lengths alone, so the numbers of the words stand for them
        kept, kept_pair, lost = truncate(range(len(words)), None if pair is None else range(len(pair)), room)
        words, pair = words[: len(kept)], None if pair is None else pair[: len(kept_pair or ())]
        cut += lost > 0
        rows.append(template.apply(word_ids(tokenizer, words), None if pair is None else word_ids(tokenizer, pair)))
        if count is not None:
            characters.append(row_characters(template, words, pair, count))
    columns = {"ids": Ragged([ids for ids, _ in rows]), "segments": Ragged([segments for _, segments in rows])}
    if count is not None:
        columns[CHARACTERS] = Ragged.of_arrays(characters)
    return MemoryStore(columns), cut


def _words(tokenizer: Tokenizer, text: str) -> list[str]:
    text = tokenizer.normalize(text)
    return [text[start:end] for start, end in word_spans(text)]
