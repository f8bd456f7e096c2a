"""Batches of a store of token ids that is larger than memory: one window of shuffled blocks at a time."""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from atento.base.splitmix import permuted
from atento.data.batches.batch import EVERY, Batch, Batches, Part, PartSize
from atento.data.batches.planning import PlannedBatches
from atento.data.store.token_store import TokenStore

WINDOW_TOKENS = 1 << 22  # tokens in memory, about
_UPDATES = 8  # of a window at least
_BLOCK_KEY = 32  # part of the key of these hashes
Make = Callable[[list[NDArray[np.generic]]], Batches]


def stored_batches(store: TokenStore, make: Make, *, budget: int, seed: int) -> Batches:
    """Return batches of the texts of a store; a small store is read at once, in the order of its texts.

    Args:
        store: the token ids.
        make: makes batches of the ids of some texts, for the objective.
        budget: real targets of an update.
        seed: seed of order and random choices.
    """
    windows = min(store.n_blocks, round(store.tokens / max(WINDOW_TOKENS, _UPDATES * budget)))
    if windows <= 1:
        batches = make(store.rows(range(store.n_blocks)))
        store.release()
        return batches
    return StoredBatches(store, make, windows, budget=budget, seed=seed)


class StoredBatches:
    """Batches of a large store; memory for one window of texts, whatever the size of the store.

    An epoch shuffles the blocks of the store (neighbouring texts of about 16,384 tokens) by a permutation that needs
    no memory, and reads them in windows of about 4 million tokens. The examples of a window are made, shuffled and
    sorted by length as those of a small data set are. Each window has its share of the updates of an epoch, so that
    the number of an update gives its window, and training can resume at any update at the cost of one window.
    """

    def __init__(self, store: TokenStore, make: Make, windows: int, *, budget: int, seed: int) -> None:
        """Read the first window, by which the updates of an epoch are counted."""
        self.store, self.make, self.windows, self.seed = store, make, windows, seed
        self._size: PartSize | None = None
        self._cached: tuple[int, PlannedBatches] | None = None
        self._tokens = 0  # of the cached window
        first = self._window(0)
        share = store.tokens / max(1, self._tokens)  # windows of the store
        self.updates_per_epoch = max(windows, round(first.targets * share / budget))
        self.count, self.targets = round(len(first) * share), round(first.targets * share)

    def __len__(self) -> int:
        return self.count

    def _window(self, number: int) -> PlannedBatches:
        """Return the examples of a window, counted over all epochs; the last one is cached."""
        if self._cached is None or self._cached[0] != number:
            self._cached = None  # before the next one is read
            epoch, index = divmod(number, self.windows)
            low, high = (side * self.store.n_blocks // self.windows for side in (index, index + 1))
            blocks = permuted(np.arange(low, high), self.store.n_blocks, self.seed, epoch, _BLOCK_KEY)
            rows = self.store.rows(blocks.tolist())
            self.store.release()
            self._tokens = sum(map(len, rows))
            batches = self.make(rows)
            assert isinstance(batches, PlannedBatches)
            if self._size is not None:
                batches.resize(self._size)
            self._cached = number, batches
        return self._cached[1]

    def parts(self, update: int, micro_batches: int = 1, ours: Iterator[bool] = EVERY) -> Iterator[Part]:
        """Yield the parts of an update, each cut into `micro_batches` to save memory; the loss is the same."""
        epoch, index = divmod(update, self.updates_per_epoch)
        place = -(-(index + 1) * self.windows // self.updates_per_epoch) - 1  # of its window: ceil, minus 1
        first, last = (side * self.updates_per_epoch // self.windows for side in (place, place + 1))  # of the window
        number = epoch * self.windows + place  # counted over all epochs
        window = self._window(number)
        window.divide(last - first)
        # the window is an epoch of its own: what is drawn at random differs from one to the next
        update = number * window.updates_per_epoch + min(index - first, window.updates_per_epoch - 1)
        return window.parts(update, micro_batches, ours)

    def resize(self, size: PartSize) -> None:
        """As `Batches.resize`."""
        self._size = size
        if self._cached is not None:
            self._cached[1].resize(size)

    def in_order(self, budget: int) -> Iterator[Batch]:
        """Yield every example of the store once."""
        for number in range(self.windows):
            yield from self._window(number).in_order(budget)
