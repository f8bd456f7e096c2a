"""Sentences as windows of a fixed size, for CBOW and skip-gram: every epoch is a function of (seed, epoch).

See docs/notes.md#c15.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atento.config.sections.elmo_network import CBOWConfig
from atento.data.batches.store import Ragged
from atento.errors import DataError
from atento.splitmix import hashes, permutation, uniform

_SUBSAMPLED, ORDER, _NEGATIVES = 1, 2, 3  # what a hash is for


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

        Raises:
            DataError: an id out of range, or no sentence with two words.
        """
        self.config, self.seed, self.batch_size, self.words = config, seed, batch_size, tuple(words)
        if max(map(len, sentences), default=0) < 2:
            raise DataError("no sentence has two words, so there is no context to learn from")
        rows = Ragged([list(sentence) for sentence in sentences])
        self.flat = rows.flat.astype(np.int64)
        self.sentence = np.repeat(np.arange(len(rows)), rows.lengths)  # which sentence each word is in
        wrong = np.flatnonzero((self.flat < 0) | (self.flat >= vocab_size))[:1]
        for word in wrong.tolist():
            raise DataError(f"sentence {self.sentence[word]}: ids must lie in [0, {vocab_size}): got {self.flat[word]}")
        self.counts = np.bincount(self.flat, minlength=vocab_size)
        weights = np.where(self.counts > 0, self.counts.astype(np.float64) ** config.exponent, 0.0)
        summed = np.cumsum(weights)
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

        Raises:
            DataError: as the constructor, or no word appears `min_count` times.
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
        probability = np.sqrt(self.config.subsample / share)[self.flat]
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
        return float((self.counts * np.minimum(probabilities, 1.0)).sum())

    def part(self, epoch: int, index: int, count: int, at_least: int = 0) -> WindowBatch:
        """Return part `index` of an epoch that is split into `count` equal parts.

        A part with fewer than `at_least` windows also takes the first windows of the parts after it.
        """
        words, context, shuffled = self._layout(epoch)
        first, last = (len(shuffled) * (index + side) // count for side in (0, 1))
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
        return WindowBatch(
            torch.from_numpy(words[rows]),
            torch.from_numpy(context[rows]),
            self._negatives(context[rows].shape, epoch, batch),
            self.config.mode == "skip-gram",
        )

    def _negatives(self, context: tuple[int, ...], epoch: int, batch: int) -> Tensor | None:
        """Draw the negatives of a batch; `context` is the shape of its contexts."""
        if self.config.negatives == 0:
            return None
        targets = context if self.config.mode == "skip-gram" else context[:1]
        return torch.from_numpy(self.negatives((*targets, self.config.negatives), epoch, batch))

    def negatives(self, shape: tuple[int, ...], epoch: int, batch: int) -> NDArray[np.int64]:
        """Draw negative words, in proportion to count ** exponent; a function of (seed, epoch, batch)."""
        drawn = uniform(hashes(int(np.prod(shape)), self.seed, epoch, _NEGATIVES, batch))
        ids = np.searchsorted(self._cumulative, drawn, side="right")
        return ids.astype(np.int64).reshape(shape)


def _contexts(words: NDArray[np.int64], sentence: NDArray[np.int64], window: int) -> NDArray[np.int64]:
    """Return the `window` words on each side of every word, (n,2C), -1 beyond the sentence."""
    out = np.full((len(words), 2 * window), -1, dtype=np.int64)
    for column, offset in enumerate([*range(-window, 0), *range(1, window + 1)]):
        if abs(offset) >= len(words):
            continue
        centre = slice(max(0, -offset), len(words) - max(0, offset))  # words that have a neighbour at this offset
        neighbour = slice(max(0, offset), len(words) + min(0, offset))
        out[centre, column] = np.where(sentence[centre] == sentence[neighbour], words[neighbour], -1)
    return out
