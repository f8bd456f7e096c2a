"""Dropout as a function of (seed, step, slot, use): the same numbers on any device, thread count or resume.

PyTorch's `F.dropout` takes no generator and is dear on a CPU. Here a 64-bit counter is hashed (the finaliser of
SplitMix64, Steele et al. 2014) and each of its eight bytes decides one element, so the probability is a multiple
of 1/256; survivors are scaled by exactly what was kept.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

_MASK = (1 << 64) - 1


def mix(*numbers: int) -> int:
    """One well-mixed signed 64-bit number out of several, in order."""
    value = 0
    for number in numbers:
        value = (value + (number & _MASK) + 0x9E3779B97F4A7C15) & _MASK
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
        value ^= value >> 31
    return value - (1 << 64) if value >> 63 else value


@dataclass
class Randomness:
    """The state dropout draws from, passed down a forward pass; `use` counts the draws made with it.

    `step` and `slot` (the part of the global batch) are set by whoever trains; a fresh value gives the same masks
    again in the same order.
    """

    seed: int
    step: int = 0
    slot: int = 0
    use: int = 0

    def key(self) -> int:
        """A new 64-bit key, different for every use."""
        self.use += 1
        return mix(self.seed, self.step, self.slot, self.use)


_counters: dict[torch.device, Tensor] = {}


def _counter(count: int, device: torch.device) -> Tensor:
    """0, 1, 2 ... times an odd constant, kept between calls: it depends on nothing."""
    known = _counters.get(device)
    if known is None or known.numel() < count:
        size = 1 << max(16, (count - 1).bit_length())
        known = torch.arange(size, dtype=torch.int64, device=device) * -7046029254386353131
        _counters[device] = known
    return known[:count]


def _shifted(x: Tensor, by: int) -> Tensor:
    """x >> by with zeros coming in: PyTorch's shift copies the sign, which would leave the top bit of all bytes 0."""
    return (x >> by).bitwise_and_((1 << (64 - by)) - 1)


def random_bytes(count: int, key: int, device: torch.device) -> Tensor:
    """`count` uniform bytes (uint8) that depend on `key` alone."""
    x = _counter((count + 7) // 8, device) + key
    x.bitwise_xor_(_shifted(x, 30)).mul_(-4658895280553007687)
    x.bitwise_xor_(_shifted(x, 27)).mul_(-7723592293110705685)
    x.bitwise_xor_(_shifted(x, 31))
    return x.view(torch.uint8)[:count]


# An integer as wide as each floating-point type: masks are made as integers, where a processor is quick, and only
# then read as numbers (comparing bytes and converting the answer costs four times as much).
_AS_WIDE = {
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}


def dropout_mask(shape: torch.Size, p: float, key: int, like: Tensor) -> Tensor:
    """A mask to multiply with, of `like`'s dtype and device: 0 with probability p (in 1/256), else 1 / (1 - p)."""
    dropped = min(255, max(1, round(p * 256)))
    integer = _AS_WIDE[like.dtype]
    kept_value = int(torch.tensor(256 / (256 - dropped), dtype=like.dtype).view(integer))
    below = random_bytes(shape.numel(), key, like.device).to(integer).sub_(dropped)  # negative where dropped
    sign = torch.iinfo(integer).bits - 1
    bits = (
        below.bitwise_right_shift_(sign).bitwise_not_().bitwise_and_(kept_value)
    )  # -1 dropped, 0 kept; then the value
    return bits.view(like.dtype).view(shape)


def fresh(random: Randomness | None) -> Randomness:
    """The randomness given, or one drawn from PyTorch's global generator, as users of `torch.nn` expect."""
    if random is not None:
        return random
    return Randomness(int(torch.randint(0, 1 << 62, (1,)).item()))


def dropout(x: Tensor, p: float, random: Randomness) -> Tensor:
    """x with elements dropped; same shape."""
    return x * dropout_mask(x.shape, p, random.key(), x)


def add_dropout(residual: Tensor, x: Tensor, p: float, random: Randomness) -> Tensor:
    """residual + dropout(x) in one pass; same shape."""
    return torch.addcmul(residual, x, dropout_mask(x.shape, p, random.key(), x))
