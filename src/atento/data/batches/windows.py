"""Windows of words for CBOW and skip-gram, a function of (seed, epoch): of sentences, or of blocks of the whole text.

See docs/notes.md#c15. A block is 32 neighbouring words of an epoch's text, with the words of their windows on both
sides. Its windows overlap, so each vector is read once a block and not once a window, and the words of a block share
their negatives (Ji et al. 2016, Parallelizing Word2Vec in Shared and Distributed Memory).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor

from atento.base.errors import DataError
from atento.base.splitmix import hashes, permutation, uniform
from atento.config.sections.recurrent import CBOWConfig
from atento.data.batches.batch import Ragged

_SUBSAMPLED, ORDER, _NEGATIVES = 1, 2, 3  # what a hash is for
BLOCK = 32  # words of a block that are in the middle of a window


@dataclass(frozen=True)
class WindowBatch:
    """Words in their windows.

    centre (B,); context (B,2C), nearest to the left edge first, -1 where the sentence has no word; negatives (B,N) for
    CBOW, (B,2C,N) for skip-gram, None where there are none.
    """

    centre: Tensor
    context: Tensor
    negatives: Tensor | None
    skip_gram: bool = False


class Windows:
    """Text as ids and, for each epoch, its windows in batches.

    A word with a share f of the text above t is kept with probability √(t/f); windows skip the words that are not
    (Mikolov et al. 2013b, 2.3, for `subsample`); negatives follow count ** exponent (2.2). A window never leaves
    its sentence, and always has its full width (the published program draws a width for each word). An epoch in which
    no window would be left keeps every word.
    """

    def __init__(
        self,
        sentences: Sequence[Sequence[int]],
        vocab_size: int,
        config: CBOWConfig,
        *,
        seed: int,
        batch_size: int = 256,
        words: Sequence[str] = (),
    ) -> None:
        """`sentences` are ids below `vocab_size`; `words` their strings.
        Raises DataError: an id out of range, or no sentence with two words.
        """
        self.config, self.seed, self.batch_size, self.words = config, seed, batch_size, tuple(words)
        if max(map(len, sentences), default=0) < 2:  # of the longest sentence
            raise DataError("no sentence has two words, so there is no context to learn from")
        rows = Ragged([list(sentence) for sentence in sentences])
        self.flat = rows.flat.astype(np.int64)
        self.sentence = np.repeat(np.arange(len(rows)), rows.lengths)  # which sentence each word is in
        wrong = np.flatnonzero((self.flat < 0) | (self.flat >= vocab_size))[:1]
        for word in wrong.tolist():
            raise DataError(f"sentence {self.sentence[word]}: ids must lie in [0, {vocab_size}): got {self.flat[word]}")
        self.counts = np.bincount(self.flat, minlength=vocab_size)  # (V,)
        weights = np.where(self.counts > 0, self.counts.astype(np.float64) ** config.exponent, 0.0)
        summed = np.cumsum(weights)  # a draw is below its word's sum
        self._cumulative = summed / summed[-1]  # ends in exactly 1, above every draw
        self._cached_layout: tuple[int, NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]] | None = None

    @classmethod
    def from_words(
        cls,
        sentences: Sequence[Sequence[str]],
        config: CBOWConfig,
        *,
        seed: int,
        batch_size: int = 256,
        min_count: int = 1,
    ) -> "Windows":
        """Build windows from words. Ids are ordered by falling count, then alphabetically; rarer words are removed.
        Raises DataError: as the constructor, or no word appears `min_count` times.
        """
        counts = Counter(word for sentence in sentences for word in sentence)
        words = sorted((word for word, count in counts.items() if count >= min_count), key=lambda w: (-counts[w], w))
        if not words:
            raise DataError(f"no word appears {min_count} times: the text has {len(counts)} different words")
        ids = {word: number for number, word in enumerate(words)}
        rows = [[ids[word] for word in sentence if word in ids] for sentence in sentences]
        return cls(rows, len(words), config, seed=seed, batch_size=batch_size, words=words)

    def subsampled(self, epoch: int) -> NDArray[np.bool_]:
        """Return which words of the text subsampling keeps in an epoch, (words of the text,)."""
        if self.config.subsample == 0:
            return np.ones(len(self.flat), dtype=np.bool_)
        share = np.maximum(self.counts, 1) / len(self.flat)  # of each word
        probability = np.sqrt(self.config.subsample / share)[self.flat]  # √(t/f) of each word of the text
        return uniform(hashes(len(self.flat), self.seed, epoch, _SUBSAMPLED)) < probability

    def epoch(self, number: int) -> Iterator[WindowBatch]:
        """Yield the windows of an epoch in shuffled batches; a word without a neighbour has no window."""
        words, context, shuffled = self._layout(number)
        for batch, start in enumerate(range(0, len(shuffled), self.batch_size)):
            yield self._batch(words, context, shuffled[start : start + self.batch_size], number, batch)

    def expected(self) -> float:
        """Return the mean number of words that subsampling keeps in an epoch, including those without a neighbour."""
        if self.config.subsample == 0:
            return float(len(self.flat))
        probabilities = np.sqrt(self.config.subsample * len(self.flat) / np.maximum(self.counts, 1))
        return float((self.counts * np.minimum(probabilities, 1.0)).sum())  # a probability above 1 keeps all

    def part(self, epoch: int, index: int, count: int, at_least: int = 0) -> WindowBatch:
        """Return part `index` of an epoch that is split into `count` equal parts.

        A part with fewer than `at_least` windows also takes the first windows of the parts after it.
        """
        words, context, shuffled = self._layout(epoch)
        first, last = (len(shuffled) * (index + side) // count for side in (0, 1))  # parts of like sizes
        last = max(last, first + at_least)
        return self._batch(words, context, shuffled[first:last], epoch, index)

    def _layout(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the words of an epoch that have a window, their windows and their order; the last epoch is cached."""
        if self._cached_layout is None or self._cached_layout[0] != number:
            words, context = self._windows(self.subsampled(number))
            if not len(words):
                words, context = self._windows(np.ones(len(self.flat), dtype=np.bool_))
            self._cached_layout = number, words, context, permutation(len(words), self.seed, number, ORDER)
        return self._cached_layout[1:]

    def _windows(self, keep: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the kept words that have a neighbour, (n,), and their neighbours, (n,2C)."""
        words = self.flat[keep]
        context = _contexts(words, self.sentence[keep], self.config.window)
        has_neighbour = (context >= 0).any(axis=1)
        return words[has_neighbour], context[has_neighbour]

    def _batch(
        self, words: NDArray[np.int64], context: NDArray[np.int64], rows: NDArray[np.int64], epoch: int, batch: int
    ) -> WindowBatch:
        negatives, skip_gram = None, self.config.mode == "skip-gram"
        if self.config.negatives:
            targets = context[rows].shape if skip_gram else (len(rows),)  # (B,2C), or (B,)
            negatives = torch.from_numpy(self.negatives((*targets, self.config.negatives), epoch, batch))
        return WindowBatch(torch.from_numpy(words[rows]), torch.from_numpy(context[rows]), negatives, skip_gram)

    def negatives(self, shape: tuple[int, ...], epoch: int, batch: int) -> NDArray[np.int64]:
        """Draw negative words, in proportion to count ** exponent; a function of (seed, epoch, batch)."""
        drawn = uniform(hashes(int(np.prod(shape)), self.seed, epoch, _NEGATIVES, batch))
        ids = np.searchsorted(self._cumulative, drawn, side="right")  # the first word whose sum is above the draw
        return ids.astype(np.int64).reshape(shape)


def _contexts(words: NDArray[np.int64], sentence: NDArray[np.int64], window: int) -> NDArray[np.int64]:
    """Return the `window` words on each side of every word, (n,2C), -1 beyond the sentence."""
    out = np.full((len(words), 2 * window), -1, dtype=np.int64)
    for column, offset in enumerate([*range(-window, 0), *range(1, window + 1)]):
        if abs(offset) >= len(words):
            continue
        centre = slice(max(0, -offset), len(words) - max(0, offset))  # words that have a neighbour at this offset
        neighbour = slice(max(0, offset), len(words) + min(0, offset))  # the same words, `offset` further on
        out[centre, column] = np.where(sentence[centre] == sentence[neighbour], words[neighbour], -1)
    return out


@dataclass(frozen=True)
class BlockBatch:
    """Blocks of N words with C words on each side."""

    ids: Tensor  # (B,N+2C), the words of the text in order; any id beyond the text
    # boolean (B,N,2C+1): whether the word at j of the window around word i, ids[:, i + j], is a neighbour of it; not
    # where j is C, the word itself
    neighbours: Tensor
    negatives: Tensor  # (B,K), the negative words of all targets of a block

    def context(self) -> Tensor:
        """Return the neighbours of each word (B,N,2C), nearest to the left edge first; -1 for none."""
        width = self.neighbours.shape[-1]
        windows = self.ids.unfold(1, width, 1).masked_fill(~self.neighbours, -1)  # (B,N,2C+1)
        middle = width // 2
        return torch.cat([windows[:, :, :middle], windows[:, :, middle + 1 :]], dim=-1)  # without the word itself

    def centre(self) -> Tensor:
        """Return the words in the middle of the windows (B,N); -1 for a word without neighbours."""
        width = self.neighbours.shape[-1]
        words = self.ids[:, width // 2 : self.ids.shape[1] - width // 2]  # (B,N)
        return words.masked_fill(~self.neighbours.any(dim=-1), -1)


class WindowBlocks:
    """The windows of a text in blocks; each epoch subsamples, orders and draws negatives again, by (seed, epoch)."""

    def __init__(self, windows: Windows) -> None:
        self.windows = windows
        self._cached: tuple[int, NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]] | None = None

    def part(self, epoch: int, index: int, count: int, at_least: int = 0) -> BlockBatch:
        """Return part `index` of an epoch that is split into `count` equal parts.

        A part with fewer than `at_least` blocks also takes the first blocks of the parts after it.
        """
        ids, sentences, order = self._layout(epoch)
        first, last = (len(order) * (index + side) // count for side in (0, 1))
        rows = order[first : max(last, first + at_least)]
        width = 2 * self.windows.config.window + 1
        around = sliding_window_view(sentences[rows], width, axis=1)  # (B,N,2C+1)
        middle = around[:, :, width // 2, None]  # (B,N,1)
        neighbours = (around == middle) & (middle >= 0)  # the same sentence, and not beyond the text
        neighbours[:, :, width // 2] = False  # a word is no neighbour of itself
        shape = (len(rows), self.windows.config.shared_negatives)
        negatives = self.windows.negatives(shape, epoch, index).astype(np.int32)
        return BlockBatch(torch.from_numpy(ids[rows]), torch.from_numpy(neighbours), torch.from_numpy(negatives))

    def _layout(self, epoch: int) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]:
        """Return the words of all blocks of an epoch (blocks,N+2C), their sentences and the order of the blocks.

        Beyond the text, sentences are -1. An epoch in which no window would be left keeps every word.
        """
        if self._cached is None or self._cached[0] != epoch:
            keep = self.windows.subsampled(epoch)
            sentences = self.windows.sentence[keep]
            if not (sentences[1:] == sentences[:-1]).any():  # no word has a neighbour left: nothing could be learned
                keep = np.ones_like(keep)
            ids, sentences = self.windows.flat[keep], self.windows.sentence[keep]
            order = permutation(-(-len(ids) // BLOCK), self.windows.seed, epoch, ORDER)  # of the blocks
            self._cached = epoch, self._blocks(ids, 0), self._blocks(sentences, -1), order
        return self._cached[1:]

    def _blocks(self, values: NDArray[np.int64], beyond: int) -> NDArray[np.int32]:
        """A value for each word -> the values of each block with its sides, a view (blocks,N+2C)."""
        side = self.windows.config.window
        padded = np.full(-(-len(values) // BLOCK) * BLOCK + 2 * side, beyond, dtype=np.int32)  # with both sides
        padded[side : side + len(values)] = values
        return sliding_window_view(padded, BLOCK + 2 * side)[::BLOCK]  # every BLOCK-th window of all
