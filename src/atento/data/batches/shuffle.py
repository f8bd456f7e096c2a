"""Shuffling as a function of (seed, epoch, index): there is no generator state, so resuming is exact and cheap."""

import numpy as np
from numpy.typing import NDArray

from atento.splitmix import BITS, INCREMENT, mixed

_GOLDEN = np.uint64(INCREMENT)
_ROUNDS, _FEISTEL_KEY = 6, 31


def hashes(count: int, *key: int) -> NDArray[np.uint64]:
    """Return `count` pseudo-random 64-bit numbers; number i is a function of `key` and i alone (SplitMix64)."""
    return hashes_of(np.arange(count, dtype=np.uint64), *key)


def hashes_of(numbers: NDArray[np.uint64], *key: int) -> NDArray[np.uint64]:
    """Return a pseudo-random 64-bit number for each number, a function of it and `key` alone."""
    with np.errstate(over="ignore"):
        x = numbers * _GOLDEN
        for number in key:
            x = _mixed(x, np.uint64(number & BITS))
    return x


def grid_hashes(rows: NDArray[np.int64], count: int, *key: int, after: tuple[int, ...] = ()) -> NDArray[np.uint64]:
    """Return pseudo-random 64-bit numbers (rows, count); each is a function of `key`, the row's number and the column.

    Args:
        rows: (rows,) numbers of the rows, not negative.
        count: columns.
        key: numbers that keep these hashes apart from others.
        after: numbers of the key that come after that of the row: row r is `hashes(count, *key, r, *after)`.
    """
    with np.errstate(over="ignore"):
        x = _mixed(hashes(count, *key)[np.newaxis], rows.astype(np.uint64)[:, np.newaxis])
        for number in after:
            x = _mixed(x, np.uint64(number & BITS))
        return x


def uniform(drawn: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return hashes as numbers in [0, 1), by their upper 53 bits, which are exact in a float64. Same shape."""
    return (drawn >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(x: NDArray[np.uint64], number: NDArray[np.uint64] | np.uint64) -> NDArray[np.uint64]:
    """Mix a number into hashes; arithmetic is modulo 2**64 by design."""
    return mixed((x ^ number) + _GOLDEN)


def permutation(count: int, *key: int) -> NDArray[np.int64]:
    """Return a shuffle of 0 ... count - 1, the same on every machine for the same key."""
    return np.argsort(hashes(count, *key), kind="stable").astype(np.int64)


def random_partitions(
    totals: NDArray[np.int64], counts: NDArray[np.int64], rows: NDArray[np.int64], *key: int, after: tuple[int, ...]
) -> NDArray[np.int64]:
    """Return in row i of (B, most) `counts[i]` numbers of at least 1 with the sum `totals[i]`, and 0 behind them.

    All such lists are equally probable. `key`, `rows` and `after` are those of `grid_hashes`.
    """
    most, cuts = int(totals.max(initial=1)) - 1, int(counts.max(initial=1)) - 1
    drawn = grid_hashes(rows, most, *key, after=after)
    order = np.where(np.arange(most) < (totals - 1)[:, np.newaxis], drawn, np.uint64(2**64 - 1))  # others last
    first = np.argsort(order, axis=1, kind="stable")[:, :cuts] + 1  # distinct places of cuts, 1 ... total - 1
    ends = totals[:, np.newaxis]
    inner = np.sort(np.where(np.arange(cuts) < (counts - 1)[:, np.newaxis], first, ends), axis=1)
    return np.diff(np.concatenate([np.zeros_like(ends), inner, ends], axis=1), axis=1)  # sizes between the cuts


def log_uniform(count: int, below: int, *key: int) -> NDArray[np.int64]:
    """Return `count` numbers k in [0, below) with probability log((k + 2) / (k + 1)) / log(below + 1) each.

    They are about as frequent as the words of a text, if k is the rank of a word by frequency (Zipf's law).
    """
    numbers: NDArray[np.int64] = np.expm1(uniform(hashes(count, *key)) * np.log1p(below)).astype(np.int64)
    return np.minimum(numbers, below - 1)


def permuted(positions: NDArray[np.int64], count: int, *key: int) -> NDArray[np.int64]:
    """Return the elements at some positions of a shuffle of 0 ... count - 1, in memory for those positions alone.

    It is a Feistel network of six rounds (Luby & Rackoff 1988) on the least even number of bits that holds `count`
    numbers. A result outside the range goes through the network again, which takes fewer than four rounds on average.

    Args:
        positions: in [0, count).
        count: numbers to shuffle, at least 1.
        key: seed and epoch.
    """
    bits = np.uint64(max(1, (int(count - 1).bit_length() + 1) // 2))
    low = (np.uint64(1) << bits) - np.uint64(1)
    x = positions.astype(np.uint64)
    open_ = np.ones(len(x), dtype=np.bool_)  # whose value is still outside the range
    while open_.any():
        left, right = x[open_] >> bits, x[open_] & low
        for number in range(_ROUNDS):
            left, right = right, left ^ (hashes_of(right, *key, _FEISTEL_KEY, number) & low)
        x[open_] = (left << bits) | right
        open_[open_] = x[open_] >= np.uint64(count)  # walk the cycle until the value is in the range
    return x.astype(np.int64)
