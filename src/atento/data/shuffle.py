"""Shuffling as a function of (seed, epoch, index): there is no generator state, so resuming is exact and cheap."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def hashes(count: int, *key: int) -> NDArray[np.uint64]:
    """Return `count` pseudo-random 64-bit numbers; number i is a function of `key` and i alone (SplitMix64)."""
    with np.errstate(over="ignore"):
        x = np.arange(count, dtype=np.uint64) * _GOLDEN
        for number in key:
            x = _mixed(x, np.uint64(number & 0xFFFFFFFFFFFFFFFF))
    return x


def grid_hashes(rows: NDArray[np.int64], count: int, *key: int) -> NDArray[np.uint64]:
    """Return pseudo-random 64-bit numbers (rows, count); each is a function of `key`, the row's number and the column.

    Args:
        rows: (rows,) numbers of the rows, not negative.
        count: columns.
        key: numbers that keep these hashes apart from others.
    """
    with np.errstate(over="ignore"):
        return _mixed(hashes(count, *key)[np.newaxis], rows.astype(np.uint64)[:, np.newaxis])


def _mixed(x: NDArray[np.uint64], number: NDArray[np.uint64] | np.uint64) -> NDArray[np.uint64]:
    """Mix a number into hashes; arithmetic is modulo 2**64 by design."""
    x = (x ^ number) + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def permutation(count: int, *key: int) -> NDArray[np.int64]:
    """Return a shuffle of 0 ... count - 1, the same on every machine for the same key."""
    return np.argsort(hashes(count, *key), kind="stable").astype(np.int64)


def random_partition(total: int, count: int, *key: int) -> list[int]:
    """Return `count` numbers of at least 1 with the sum `total`; all such lists are equally probable."""
    positions = np.argsort(hashes(total - 1, *key), kind="stable")[: count - 1]
    cuts = [0, *np.sort(positions + 1).tolist(), total]
    return [end - start for start, end in pairwise(cuts)]
