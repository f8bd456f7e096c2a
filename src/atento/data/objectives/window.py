"""Objectives of whole words: CBOW, skip-gram (Mikolov et al. 2013), and language modelling in both directions (ELMo).

CBOW: ids are the neighbours, the label is the word. Skip-gram: ids are the word, the labels its
neighbours (docs/notes.md#c15, #e9)
ELMo: words "<s> o gato </s>"   labels, forward "o gato </s> -", backward "- <s> o gato" (docs/notes.md#e9)
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atento.base.errors import DataError, RecipeError
from atento.base.splitmix import log_uniform
from atento.config.sections.recurrent import CBOWConfig
from atento.config.tables.objective import ObjectiveConfig
from atento.data.batches.batch import EVERY, Batch, Draw, MemoryStore, Part, PartSize, Ragged, Rows, Store
from atento.data.batches.planning import PlannedBatches
from atento.data.batches.whole_words import characters_of_words, word_ids, words_of
from atento.data.batches.windows import WindowBatch, WindowBlocks, Windows
from atento.data.objectives.preparation import Preparation
from atento.text.characters import character_batch

HEAD, BOTH_WAYS = "window", "bidirectional"
_SAMPLED_KEY = 18  # keeps these hashes apart from hashes for other purposes
_PART_WORDS = 1 << 12  # words of the text in a part of an update that is made of blocks


def window_batch(windows: WindowBatch) -> Batch:
    """Return windows as a batch; the negatives, if any, are extras of the loss."""
    extras = {} if windows.negatives is None else {"negatives": windows.negatives}
    if windows.skip_gram:
        return Batch({"ids": windows.centre.unsqueeze(1)}, {HEAD: windows.context}, extras=extras)
    real = windows.context >= 0  # (B,2C)
    inputs = {"ids": windows.context.clamp(min=0), "token_mask": real}  # -1 is no id: the mask hides it
    return Batch(inputs, {HEAD: windows.centre}, extras=extras)  # labels (B,)


class WindowBatches:
    """Batches of windows; each epoch subsamples frequent words and draws negatives again.

    With shared negatives, the windows are in blocks of neighbouring words, and an update has parts of about 4,096 words
    of the text.
    """

    def __init__(self, windows: Windows, *, budget: int, weight: float = 1.0) -> None:
        self.windows, self.weight = windows, weight
        self.blocks = WindowBlocks(windows) if windows.config.shared_negatives else None
        self.targets = len(windows.flat)
        self.updates_per_epoch = max(1, round(self.targets / budget))
        self._parts = 1 if self.blocks is None else max(1, round(budget / _PART_WORDS))  # of an update

    def __len__(self) -> int:
        return int(self.windows.sentence[-1]) + 1

    def parts(self, update: int, micro_batches: int = 1, ours: Iterator[bool] = EVERY) -> Iterator[Part]:
        """Yield the parts of an update; at least one window, if the epoch has fewer windows than updates."""
        epoch, index = divmod(update, self.updates_per_epoch)
        weights = {} if self.weight == 1.0 else {HEAD: self.weight}
        empty, count = True, self._parts * micro_batches
        for slot in range(count):
            batch = self._batch(epoch, index * count + slot, self.updates_per_epoch * count)
            if len(batch.inputs["ids"]):
                empty = False
                if next(ours):
                    yield Part(batch, weights)
        if empty and next(ours):
            yield Part(self._batch(epoch, index, self.updates_per_epoch, at_least=1), weights)

    def _batch(self, epoch: int, index: int, count: int, at_least: int = 0) -> Batch:
        if self.blocks is None:
            return window_batch(self.windows.part(epoch, index, count, at_least))
        blocks = self.blocks.part(epoch, index, count, at_least)
        labels = blocks.context() if self.windows.config.mode == "skip-gram" else blocks.centre()  # (B,N,2C) or (B,N)
        extras = {"neighbours": blocks.neighbours, "negatives": blocks.negatives}
        return Batch({"ids": blocks.ids}, {HEAD: labels}, extras=extras)  # (B,N+2C)

    def resize(self, size: PartSize) -> None:
        """As `Batches.resize`: parts are counted in words."""

    def in_order(self, budget: int) -> Iterator[Batch]:
        """Yield the windows of epoch 0 in the batches of training; `budget` is ignored."""
        return (part.batch for update in range(self.updates_per_epoch) for part in self.parts(update))


def window(preparation: Preparation, config: ObjectiveConfig) -> WindowBatches:
    """Return batches of windows over the words of each text, unknown words included.

    Raises:
        DataError: no text has two words, or subsampling leaves fewer than two words an epoch on average.
    """
    tokenizer, recipe = preparation.tokenizer, preparation.recipe
    rows = [word_ids(tokenizer, words) for words in words_of(tokenizer, preparation.split["text"])]
    options = preparation.network.cbow or CBOWConfig()
    windows = Windows(rows, preparation.network.vocab_size, options, seed=recipe.training.seed)
    if not preparation.held_out and windows.expected() < 2:
        raise DataError(
            f"too little text for word vectors: `network.cbow.subsample` {options.subsample:g} leaves "
            f"{windows.expected():.1f} of its {len(windows.flat)} words an epoch on average, and a window needs 2; "
            "give more text, or network.cbow.subsample=0"
        )
    return WindowBatches(windows, budget=recipe.training.batch_tokens, weight=config.weight)


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
    return Batch(
        {"ids": ids, "token_mask": real}, {BOTH_WAYS: labels}, extras={"words": words}, lengths={"ids": lengths}
    )


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
