"""Sentences as words, for what learns words and not pieces: both neighbours of each (ELMo), windows (CBOW)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atento.data.batches import PlannedBatches, Ragged
from atento.data.windows import WindowBatch, Windows
from atento.text.characters import character_batch


@dataclass(frozen=True)
class WordBatch:
    """Sentences between their two marks: ids as the network reads them, (B,L,C) characters or (B,L) words; words
    (B,L) by id, 0 at padding; token_mask (B,L)."""

    ids: Tensor
    words: Tensor
    token_mask: Tensor

    @property
    def targets(self) -> int:
        """Real targets: each pair of neighbours once in each direction."""
        return 2 * int((self.token_mask[:, 1:] & self.token_mask[:, :-1]).sum())

    def examples(self) -> Iterator[dict[str, list[int]]]:
        """Each sentence by itself, padding left out, for people to look at."""
        for words, real in zip(self.words, self.token_mask):
            yield {"words": words[real].tolist()}

    def to(self, device: torch.device | str) -> "WordBatch":
        """The batch on another device."""
        return WordBatch(*(getattr(self, part.name).to(device) for part in fields(self)))


class WordBatches(PlannedBatches[WordBatch]):
    """Sentences of words in seekable batches."""

    def __init__(
        self,
        sentences: Sequence[Sequence[str]],
        words: Sequence[Sequence[int]],
        *,
        budget: int,
        seed: int,
        max_characters: int | None,
    ) -> None:
        """`sentences` without marks, `words` their ids with them; `max_characters` None: the network reads the ids."""
        self.sentences, self.words = sentences, Ragged([list(row) for row in words])
        self.max_characters = max_characters
        targets = 2 * int((self.words.lengths - 1).sum())
        super().__init__(len(self.words), targets, budget=budget, seed=seed, tokens=int(self.words.lengths.sum()))

    def lengths(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The same in every epoch."""
        return self.words.lengths, self.words.lengths

    def batch(self, rows: NDArray[np.int64], epoch: int = 0) -> WordBatch:
        """Those sentences as tensors."""
        words = self.words.padded(rows, 0)
        real = torch.from_numpy(np.arange(words.shape[1]) < self.words.lengths[rows][:, None])
        if self.max_characters is None:
            return WordBatch(words, words, real)
        chosen = [self.sentences[row] for row in rows.tolist()]
        characters, _ = character_batch(chosen, max_characters=self.max_characters)
        return WordBatch(torch.from_numpy(characters), words, real)


class WindowBatches:
    """Windows over text in seekable batches; every epoch draws which frequent words are left out, and what is wrong."""

    def __init__(self, windows: Windows, *, budget: int) -> None:
        self.windows = windows
        self.updates_per_epoch = max(1, round(len(windows.flat) / budget))

    def __len__(self) -> int:
        return int(self.windows.sentence[-1]) + 1

    def parts(self, update: int, micro_batches: int = 1) -> Iterator[WindowBatch]:
        """The update's batch part by part; one window where the epoch has fewer windows than updates."""
        epoch, index = divmod(update, self.updates_per_epoch)
        empty = True
        for slot in range(micro_batches):
            part = self.windows.part(epoch, index * micro_batches + slot, self.updates_per_epoch * micro_batches)
            if len(part.centre):
                empty = False
                yield part
        if empty:
            yield self.windows.part(epoch, index, self.updates_per_epoch, at_least=1)
