"""The order of data as a function of (seed, epoch, index): no stream to replay, so resuming is exact and cheap."""

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def hashes(count: int, *key: int) -> NDArray[np.uint64]:
    """`count` well-mixed 64-bit numbers that depend on `key` and their index alone (SplitMix64)."""
    with np.errstate(over="ignore"):
        x = np.arange(count, dtype=np.uint64) * _GOLDEN
        for number in key:
            x = (x ^ np.uint64(number & 0xFFFFFFFFFFFFFFFF)) + _GOLDEN
            x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            x = x ^ (x >> np.uint64(31))
    return x


def permutation(count: int, *key: int) -> NDArray[np.int64]:
    """A shuffle of 0 ... count - 1 that is the same on every machine for the same key."""
    return np.argsort(hashes(count, *key), kind="stable").astype(np.int64)
