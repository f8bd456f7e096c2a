"""Bidirectional language modelling over words (ELMo): each word from those before it, and from those behind it.

words "<s> o gato </s>"   labels, forward "o gato </s> -", backward "- <s> o gato" (docs/notes.md#e9)
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atento.config.objective import ObjectiveConfig
from atento.data.batches import Batch, Draw, PlannedBatches, Rows
from atento.data.objectives.preparation import Preparation
from atento.data.store import MemoryStore, Ragged, Store
from atento.errors import DataError
from atento.text.characters import character_batch
from atento.text.tokenizer import Tokenizer
from atento.text.words import word_spans

HEAD = "bidirectional"


@dataclass(frozen=True)
class Bidirectional:
    """Column "words": ids of words between BOS and EOS; `sentences` are the words themselves, without these.

    Attributes:
        max_characters: of a word, for a network that reads characters; None: it reads the ids of words.
    """

    sentences: list[list[str]]
    max_characters: int | None

    def sizes(self, store: Store) -> NDArray[np.float64]:
        """Each pair of neighbours once in each direction."""
        return (2 * (store["words"].lengths - 1)).astype(np.float64)

    def lengths(self, store: Store) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of the sentences, BOS and EOS with them."""
        return store["words"].lengths, store["words"].lengths

    def batch(self, store: Store, rows: Rows, draw: Draw) -> Batch:
        """ids (B,L,C) characters or (B,L) words; labels (B,L,2), forward and backward."""
        words = store["words"].padded(rows, 0)
        ids = words
        if self.max_characters is not None:
            chosen = [self.sentences[row] for row in rows.tolist()]
            ids = torch.from_numpy(character_batch(chosen, max_characters=self.max_characters)[0])
        return laid_out(ids, words, torch.from_numpy(store["words"].lengths[rows]))


def laid_out(ids: Tensor, words: Tensor, lengths: Tensor) -> Batch:
    """Inputs (B,L,C) or (B,L), words (B,L) and their lengths (B,), with both neighbours of each word as labels."""
    real = torch.arange(words.shape[1]) < lengths.unsqueeze(1)
    labels = torch.full((*words.shape, 2), -1)
    pairs = real[:, 1:] & real[:, :-1]
    labels[:, :-1, 0] = torch.where(pairs, words[:, 1:], -1)
    labels[:, 1:, 1] = torch.where(pairs, words[:, :-1], -1)
    inputs = {"ids": ids, "token_mask": real}
    return Batch(inputs, {HEAD: labels}, extras={"words": words}, lengths={"ids": lengths})


def bidirectional(given: Preparation, config: ObjectiveConfig) -> PlannedBatches:
    """Each text as words between BOS and EOS; one longer than `data.max_len` words is cut in several.

    Raises:
        DataError: no text has a word.
    """
    tokenizer, recipe = given.tokenizer, given.recipe
    whole = words_of(tokenizer, given.split["text"])
    room = recipe.data.max_len
    sentences = [piece for words in whole for piece in _cut(words, room)]
    if not sentences:
        raise DataError("no text is left: all are blank")
    if len(sentences) > len(whole):
        given.say(f"{len(whole)} texts in {len(sentences)} examples: some are longer than {room} words")
    rows = [[tokenizer.bos_id, *word_ids(tokenizer, words), tokenizer.eos_id] for words in sentences]
    elmo = given.network.elmo
    characters = None if elmo is None or elmo.characters is None else elmo.characters.max_characters
    objective = Bidirectional(sentences, characters)
    return PlannedBatches(
        MemoryStore({"words": Ragged(rows)}),
        objective,
        budget=recipe.training.batch_tokens,
        seed=recipe.training.seed,
        weight=config.weight,
    )


def words_of(tokenizer: Tokenizer, texts: list[str]) -> list[list[str]]:
    """The words of each text that has any, as the tokenizer would read them."""
    normal = (tokenizer.normalize(text) for text in texts)
    found = ([text[start:end] for start, end in word_spans(text)] for text in normal)
    return [words for words in found if words]


def word_ids(tokenizer: Tokenizer, words: list[str]) -> list[int]:
    """The ids of words, that of the unknown for those that the tokenizer does not have."""
    known = (tokenizer.token_id(word) for word in words)
    return [tokenizer.unk_id if token is None else token for token in known]


def _cut(words: list[str], room: int) -> list[list[str]]:
    return [words[at : at + room] for at in range(0, len(words), room)]
