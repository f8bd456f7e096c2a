"""Bidirectional language modelling (ELMo): predict each word from the words before it, and from those after it.

words "<s> o gato </s>"   labels, forward "o gato </s> -", backward "- <s> o gato" (docs/notes.md#e9)
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atento.base.errors import DataError, RecipeError
from atento.base.splitmix import log_uniform
from atento.config.tables.objective import ObjectiveConfig
from atento.data.batches.batch import Batch, Draw, MemoryStore, Ragged, Rows, Store
from atento.data.batches.planning import PlannedBatches
from atento.data.batches.whole_words import characters_of_words, word_ids, words_of
from atento.data.objectives.preparation import Preparation
from atento.text.characters import character_batch

HEAD = "bidirectional"
_SAMPLED_KEY = 18  # keeps these hashes apart from hashes for other purposes


@dataclass(frozen=True)
class Bidirectional:
    """Batches for ELMo. Column "words": ids of the words of each sentence, between BOS and EOS."""

    sentences: list[list[str]]  # the words of each sentence as text
    # maximum characters of a word, for a network that reads characters; None: it reads word ids
    max_characters: int | None
    vocab_size: int = 0  # words of the vocabulary
    sampled: int = 0  # words that are drawn for the sampled softmax of a batch; 0: it is over all words

    def sizes(self, store: Store) -> NDArray[np.float64]:
        """Return two targets for each pair of neighbours, one in each direction."""
        return (2 * (store["words"].lengths - 1)).astype(np.float64)  # a pair of neighbours is a target each way

    def lengths(self, store: Store) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the length of each sentence with BOS and EOS, twice."""
        return store["words"].lengths, store["words"].lengths

    def batch(self, store: Store, rows: Rows, draw: Draw) -> Batch:
        """Return a batch: ids (B,L,C) of characters or (B,L) of words; labels (B,L,2), forward and backward."""
        words = store["words"].padded(rows, 0)  # (B,L)
        ids = words
        if self.max_characters is not None:
            chosen = [self.sentences[row] for row in rows.tolist()]
            ids = torch.from_numpy(character_batch(chosen, max_characters=self.max_characters)[0])
        batch = word_batch(ids, words, torch.from_numpy(store["words"].lengths[rows]))
        if not self.sampled:
            return batch
        drawn = log_uniform(self.sampled, self.vocab_size, draw.seed, draw.epoch, int(rows[0]), _SAMPLED_KEY)
        return replace(batch, extras={**batch.extras, "sampled": torch.from_numpy(drawn)})


def word_batch(ids: Tensor, words: Tensor, lengths: Tensor) -> Batch:
    """Return a batch of inputs (B,L,C) or (B,L), whose labels are both neighbours of each of the words (B,L)."""
    real = torch.arange(words.shape[1]) < lengths.unsqueeze(1)  # (B,L)
    labels = torch.full((*words.shape, 2), -1)  # (B,L,2)
    pairs = real[:, 1:] & real[:, :-1]  # (B,L-1): both neighbours are real
    labels[:, :-1, 0] = torch.where(pairs, words[:, 1:], -1)  # forward: the word behind
    labels[:, 1:, 1] = torch.where(pairs, words[:, :-1], -1)  # backward: the word before
    return Batch({"ids": ids, "token_mask": real}, {HEAD: labels}, extras={"words": words}, lengths={"ids": lengths})


def bidirectional(preparation: Preparation, config: ObjectiveConfig) -> PlannedBatches:
    """Return batches for bidirectional language modelling; texts longer than `data.max_len` words are split.

    Raises:
        DataError: no text has a word. RecipeError: a sampled and an adaptive softmax together.
    """
    tokenizer, recipe, network = preparation.tokenizer, preparation.recipe, preparation.network
    texts = words_of(tokenizer, preparation.split["text"])
    room = recipe.data.max_len
    sentences = [words[at : at + room] for words in texts for at in range(0, len(words), room)]
    if not sentences:
        raise DataError("no text is left: all are blank")
    if len(sentences) > len(texts):
        preparation.report(f"{len(texts):,} texts in {len(sentences):,} examples: some are longer than {room} words")
    rows = [[tokenizer.bos_id, *word_ids(tokenizer, words), tokenizer.eos_id] for words in sentences]
    sampled = int(config.option("sampled"))  # words of the softmax in training; held-out losses take all
    if sampled and network.output.adaptive:
        raise RecipeError("`objective.sampled` has no effect with `network.output.adaptive`: give one of them")
    drawn = 0 if preparation.held_out else sampled
    objective = Bidirectional(sentences, characters_of_words(network), network.vocab_size, drawn)
    return preparation.planned(MemoryStore({"words": Ragged(rows)}), objective, config.weight)
