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


_ODD = -7046029254386353131  # what SplitMix64 counts up by
_counters: dict[torch.device, Tensor] = {}


def _counter(count: int, device: torch.device) -> Tensor:
    """0, 1, 2 ... times an odd constant, kept between calls: it depends on nothing."""
    known = _counters.get(device)
    if known is None or known.numel() < count:
        size = 1 << max(16, (count - 1).bit_length())
        known = torch.arange(size, dtype=torch.int64, device=device) * _ODD
        _counters[device] = known
    return known[:count]


def _shifted(x: Tensor, by: int) -> Tensor:
    """x >> by with zeros coming in: PyTorch's shift copies the sign, which would leave the top bit of all bytes 0."""
    return (x >> by).bitwise_and_((1 << (64 - by)) - 1)


def random_bytes(count: int, key: int, device: torch.device) -> Tensor:
    """`count` uniform bytes (uint8) that depend on `key` alone."""
    return _hashed(_counter((count + 7) // 8, device) + key).view(torch.uint8)[:count]


def _hashed(x: Tensor) -> Tensor:
    """The finaliser of SplitMix64, in place: int64 of any shape."""
    x.bitwise_xor_(_shifted(x, 30)).mul_(-4658895280553007687)
    x.bitwise_xor_(_shifted(x, 27)).mul_(-7723592293110705685)
    return x.bitwise_xor_(_shifted(x, 31))


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
    return _as_mask(random_bytes(shape.numel(), key, like.device), p, like).view(shape)


def _as_mask(drawn: Tensor, p: float, like: Tensor) -> Tensor:
    """Bytes to a mask of `like`'s dtype, same shape as the bytes."""
    dropped = min(255, max(1, round(p * 256)))
    integer = _AS_WIDE[like.dtype]
    kept_value = int(torch.tensor(256 / (256 - dropped), dtype=like.dtype).view(integer))
    below = drawn.to(integer).sub_(dropped)  # negative where dropped
    sign = torch.iinfo(integer).bits - 1
    bits = (
        below.bitwise_right_shift_(sign).bitwise_not_().bitwise_and_(kept_value)
    )  # -1 dropped, 0 kept; then the value
    return bits.view(like.dtype)


def pair_dropout(
    weights: Tensor,
    p: float,
    key: int,
    queries: slice | None = None,
    keys: "tuple[int, int] | Tensor | None" = None,
    row: int | None = None,
    lengths: tuple[int, int] | None = None,
    heads: tuple[int, int] | None = None,
) -> Tensor:
    """The mask for attention weights (B,H,t,s): each pair's bit depends on its place (row, head, query, key) alone.

    So any part of the (T,S) = `lengths` square is dropped as it is in the whole: kernels may go strip by strip.
    `queries` and `keys` say which part, `row` the first batch row, `heads` the first head and how many there are in
    all; all of it by default.
    """
    n_rows, n_heads, t, s = weights.shape
    query_len, key_len = (t, s) if lengths is None else lengths
    device = weights.device
    if isinstance(keys, Tensor):
        words, place = torch.unique(keys.to(device) // 8, return_inverse=True)  # eight keys share one hashed number
    else:
        low, high = (0, key_len) if keys is None else keys
        words = torch.arange(low // 8, (high + 7) // 8, device=device)
    first_query = 0 if queries is None else queries.start
    first_head, all_heads = (0, n_heads) if heads is None else heads
    lines = (torch.arange(n_rows, device=device) + (row or 0)).view(-1, 1) * all_heads + first_head
    lines = (lines + torch.arange(n_heads, device=device)).view(-1, 1) * query_len + torch.arange(
        first_query, first_query + t, device=device
    )
    index = lines.unsqueeze(-1) * ((key_len + 7) // 8) + words  # (B*H,t,words)
    found = _hashed(index.mul_(_ODD).add_(key)).view(torch.uint8).view(n_rows, n_heads, t, 8 * len(words))
    if isinstance(keys, Tensor):
        found = found.index_select(-1, place * 8 + keys.to(device) % 8)
    else:
        found = found[..., low % 8 : low % 8 + high - low]
    return _as_mask(found, p, weights)


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
