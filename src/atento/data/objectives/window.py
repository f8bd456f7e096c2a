"""CBOW predicts a word from its neighbours, skip-gram the neighbours from the word (Mikolov et al. 2013).

CBOW: ids are the neighbours, the label is the word. Skip-gram: ids are the word, the labels its
neighbours (docs/notes.md#c15, #e9)
"""

from collections.abc import Iterator

from atento.base.errors import DataError
from atento.config.sections.elmo_network import CBOWConfig
from atento.config.tables.objective import ObjectiveConfig
from atento.data.batches.batch import EVERY, Batch, Part, PartSize
from atento.data.batches.whole_words import word_ids, words_of
from atento.data.batches.windows import WindowBatch, WindowBlocks, Windows
from atento.data.objectives.preparation import Preparation

HEAD = "window"
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
