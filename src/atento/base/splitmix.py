"""SplitMix64 (Steele, Lea and Flood 2014): pseudo-random numbers as a function of a key and a place, without a state.

A 64-bit number is hashed by a fixed mixing. So the number at any place of a stream is known without those before it,
and is the same on every device and after a resume; shuffles are functions of such hashes.
"""

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BITS = (1 << 64) - 1
INCREMENT = 0x9E3779B97F4A7C15  # 2 ** 64 over the golden ratio
_AT_ONCE = 1 << 15  # numbers that are hashed at once on a CPU, so that they stay in its cache: three times as fast
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_GOLDEN = np.uint64(INCREMENT)
_ROUNDS, _FEISTEL_KEY = 6, 31


def signed(value: int) -> int:
    """The lowest 64 bits as a signed number, as PyTorch has them."""
    value &= BITS
    return value - (1 << 64) if value >> 63 else value


def mix(*numbers: int) -> int:
    """Hash several integers, in order, to one of 64 bits."""
    value = 0
    for number in numbers:
        value = (value + number + INCREMENT) & BITS
        value = (value ^ value >> 30) * _FIRST & BITS
        value = (value ^ value >> 27) * _SECOND & BITS
        value ^= value >> 31
    return value


def mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser, for an array of any shape; arithmetic is modulo 2**64 by design."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_FIRST)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_SECOND)
    return x ^ (x >> np.uint64(31))


def mix_(x: Tensor) -> Tensor:
    """The finaliser for a tensor int64 of any shape: in place on a CPU, in one kernel on a GPU."""
    if x.is_cuda and not torch.compiler.is_compiling():
        hashed: Tensor = _gpu_kernel()(x)
        return hashed
    whole = torch.compiler.is_compiling() or not x.is_contiguous()
    for part in (x,) if whole else x.view(-1).split(_AT_ONCE):
        part.bitwise_xor_(shifted(part, 30)).mul_(_SIGNED_FIRST)
        part.bitwise_xor_(shifted(part, 27)).mul_(_SIGNED_SECOND)
        part.bitwise_xor_(shifted(part, 31))
    return x


@cache
def _gpu_kernel() -> Callable[[Tensor], Tensor]:
    """`mix_` as one kernel, which PyTorch compiles at its first use; operation by operation it is a dozen."""
    return torch.cuda.jiterator._create_jit_fn(_GPU_CODE)


_GPU_CODE = f"""template <typename T> T splitmix(T place) {{
    unsigned long long x = static_cast<unsigned long long>(place);
    x = (x ^ (x >> 30)) * {_FIRST}ULL;
    x = (x ^ (x >> 27)) * {_SECOND}ULL;
    return static_cast<T>(x ^ (x >> 31));
}}"""
_SIGNED_FIRST, _SIGNED_SECOND = signed(_FIRST), signed(_SECOND)


def shifted(x: Tensor, by: int) -> Tensor:
    """Logical right shift. PyTorch's copies the sign bit, so the bits that it fills in are cleared."""
    return (x >> by).bitwise_and_((1 << (64 - by)) - 1)


def as_uniform(hashed: Tensor) -> Tensor:
    """Hashes int64 as numbers in [0, 1), by their upper 53 bits, which are exact in a float64."""
    return shifted(hashed, 11).to(torch.float64) * 2.0**-53


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
        x = _mixed(hashes(count, *key)[np.newaxis], rows.astype(np.uint64)[:, np.newaxis])  # (rows,count)
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
    bits = np.uint64(max(1, (int(count - 1).bit_length() + 1) // 2))  # bits of a half: 4**bits >= count
    low = (np.uint64(1) << bits) - np.uint64(1)
    x = positions.astype(np.uint64)
    open_ = np.ones(len(x), dtype=np.bool_)  # whose value is still outside the range
    while open_.any():
        left, right = x[open_] >> bits, x[open_] & low  # two halves of each value
        for number in range(_ROUNDS):
            left, right = right, left ^ (hashes_of(right, *key, _FEISTEL_KEY, number) & low)  # a Feistel round
        x[open_] = (left << bits) | right
        open_[open_] = x[open_] >= np.uint64(count)  # walk the cycle until the value is in the range
    return x.astype(np.int64)
