"""SplitMix64 (Steele, Lea and Flood 2014): pseudo-random numbers as a function of a key and a place, without a state.

A 64-bit number is hashed by a fixed mixing. So the number at any place of a stream is known without those before it,
and is the same on every device and after a resume.
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


def uniform(hashed: Tensor) -> Tensor:
    """Hashes int64 as numbers in [0, 1), by their upper 53 bits, which are exact in a float64."""
    return shifted(hashed, 11).to(torch.float64) * 2.0**-53
