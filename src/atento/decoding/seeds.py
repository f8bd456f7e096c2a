"""Random numbers as a function of (seed, sample, position), without a generator whose order of use would matter.

SplitMix64 (Steele, Lea and Flood 2014) hashes a counter by a fixed mixing of 64 bits. So the number at any position of
a stream can be computed without those before it, and a row's draws do not depend on the rest of the batch.
"""

import torch
from torch import Tensor

_BITS = (1 << 64) - 1
_ODD = 0x9E3779B97F4A7C15  # the increment of SplitMix64: 2 ** 64 over the golden ratio
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_ROWS, _STREAMS = 1, 2  # the purpose of a hash: a seed of a row is never the key of a stream too


def row_seed(seed: int, row: int) -> int:
    """The seed of a row, from one for all: `generate(seed=s)` gives row i `row_seed(s, i)`.

    With `row_seed(seed, N)` for line N, a file gives the same outputs whatever the batches. Seeds are whole numbers;
    those that agree in their lowest 64 bits are the same. Different rows get different seeds.
    """
    return _hash(_ROWS, seed, row)


def stream_key(seed: int, sample: int, *use: int) -> int:
    """The start of the stream of one sample of a row, as a signed 64-bit number; each further use has its own."""
    return _signed(_hash(_STREAMS, seed, sample, *use))


def uniform(keys: Tensor, position: int | Tensor) -> Tensor:
    """The number at `position` of each stream: keys (R,) int64 -> (R,) in [0, 1), multiples of 2 ** -53, float64.

    `position` is one number for all streams, or (R,) int64.
    """
    if isinstance(position, int):
        x = keys + _signed((position + 1) * _ODD & _BITS)
    else:
        x = keys + (position + 1) * _signed(_ODD)  # modulo 2 ** 64, as above
    x = (x ^ _shifted(x, 30)) * _signed(_FIRST)
    x = (x ^ _shifted(x, 27)) * _signed(_SECOND)
    x = x ^ _shifted(x, 31)
    return _shifted(x, 11).to(torch.float64) * 2.0**-53


def _shifted(x: Tensor, by: int) -> Tensor:
    """Logical shift to the right; that of PyTorch copies the sign."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def _hash(*numbers: int) -> int:
    """One 64-bit number from several, in order."""
    value = 0
    for number in numbers:
        value = (value + number + _ODD) & _BITS
        value = (value ^ value >> 30) * _FIRST & _BITS
        value = (value ^ value >> 27) * _SECOND & _BITS
        value ^= value >> 31
    return value


def _signed(value: int) -> int:
    """The same 64 bits as a signed number, as PyTorch has them."""
    return value - (1 << 64) if value >> 63 else value
