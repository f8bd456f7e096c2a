"""Windows of neighbouring words of the text together, for CBOW and skip-gram at high speed.

A block is 32 neighbouring words of an epoch's text, with the words of their windows on both sides. Its windows overlap,
so each vector is read once a block and not once a window, and the words of a block share their negatives (Ji et al.
2016, Parallelizing Word2Vec in Shared and Distributed Memory).
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor

from atento.data.batches.windows import ORDER, Windows
from atento.splitmix import permutation

BLOCK = 32  # words of a block that are in the middle of a window


@dataclass(frozen=True)
class BlockBatch:
    """Blocks of N words with C words on each side.

    Attributes:
        ids: (B,N+2C), the words of the text in order; any id beyond the text.
        neighbours: boolean (B,N,2C+1): whether the word at j of the window around word i, ids[:, i + j], is a neighbour
            of it; not where j is C, the word itself.
        negatives: (B,K), the negative words of all targets of a block.
    """

    ids: Tensor
    neighbours: Tensor
    negatives: Tensor

    def context(self) -> Tensor:
        """Return the neighbours of each word (B,N,2C), nearest to the left edge first; -1 for none."""
        width = self.neighbours.shape[-1]
        windows = self.ids.unfold(1, width, 1).masked_fill(~self.neighbours, -1)  # (B,N,2C+1)
        middle = width // 2
        return torch.cat([windows[:, :, :middle], windows[:, :, middle + 1 :]], dim=-1)

    def centre(self) -> Tensor:
        """Return the words in the middle of the windows (B,N); -1 for a word without neighbours."""
        width = self.neighbours.shape[-1]
        words = self.ids[:, width // 2 : self.ids.shape[1] - width // 2]
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
        middle = around[:, :, width // 2, None]
        neighbours = (around == middle) & (middle >= 0)
        neighbours[:, :, width // 2] = False
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
            order = permutation(-(-len(ids) // BLOCK), self.windows.seed, epoch, ORDER)
            self._cached = epoch, self._blocks(ids, 0), self._blocks(sentences, -1), order
        return self._cached[1:]

    def _blocks(self, values: NDArray[np.int64], beyond: int) -> NDArray[np.int32]:
        """A value for each word -> the values of each block with its sides, a view (blocks,N+2C)."""
        side = self.windows.config.window
        padded = np.full(-(-len(values) // BLOCK) * BLOCK + 2 * side, beyond, dtype=np.int32)
        padded[side : side + len(values)] = values
        return sliding_window_view(padded, BLOCK + 2 * side)[::BLOCK]
