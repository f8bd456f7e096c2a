"""Dropout as a function of (seed, step, slot, use): the same mask on any device, thread count or after a resume.

PyTorch's `F.dropout` takes no generator and is slow on a CPU. Here a 64-bit counter is hashed and each of its eight
bytes decides one element. The probability is therefore a multiple of 1/256, and kept elements are scaled by the inverse
of exactly that probability. On a GPU, weights of attention alone are dropped by PyTorch's kernel (`kernels.fused`).
"""

from dataclasses import dataclass
from functools import cache, lru_cache

import torch
from torch import Tensor

from atento.base.splitmix import INCREMENT, as_uniform, mix, mix_, signed

_ODD = signed(INCREMENT)

Key = int | Tensor  # of a mask: 64 bits; a tensor () in compiled code


@dataclass
class Randomness:
    """The randomness of dropout, passed down a forward pass. Equal values give equal masks in the same order."""

    seed: int  # the seed of the run
    step: int = 0  # the training step
    slot: int = 0  # the part of the global batch
    use: int = 0  # how many masks have been drawn
    # int64 (2,), the hash of seed, step and slot, and the number of masks drawn before, from which `use` counts. For
    # compiled code, which would be compiled anew for other Python numbers. None: code as it is
    traced: Tensor | None = None

    def key(self) -> Key:
        """A new 64-bit key for the next mask."""
        self.use += 1
        if self.traced is None:
            return signed(mix(self.seed, self.step, self.slot, self.use))
        return mix_(self.traced[0] + self.traced[1] + (self.use + _ODD))  # the last round of `mix`

    def as_tensor(self, device: torch.device) -> "Randomness":
        """The same randomness for compiled code, which draws the same masks."""
        numbers = [signed(mix(self.seed, self.step, self.slot)), self.use]
        return Randomness(0, traced=torch.tensor(numbers, dtype=torch.int64, device=device))


_counters: dict[torch.device, Tensor] = {}


def _counter(count: int, device: torch.device) -> Tensor:
    """0, 1, 2 ... times the increment, cached by device: it is the same for all calls."""
    if torch.compiler.is_compiling():
        return torch.arange(count, dtype=torch.int64, device=device) * _ODD  # in compiled code nothing can be kept
    cached = _counters.get(device)
    if cached is None or cached.numel() < count:
        size = 1 << max(16, (count - 1).bit_length())  # at least 65,536, then powers of two: seldom anew
        cached = torch.arange(size, dtype=torch.int64, device=device) * _ODD
        _counters[device] = cached
    return cached[:count]  # the first numbers of a longer counter are the same


def random_bytes(count: int, key: Key, device: torch.device) -> Tensor:
    """`count` uniformly distributed bytes (uint8), a function of `key` alone."""
    return mix_(_counter((count + 7) // 8, device) + key).view(torch.uint8)[:count]  # eight bytes a word of 64 bits


def uniform(count: int, key: Key, device: torch.device) -> Tensor:
    """`count` uniformly distributed numbers in [0, 1) (float64), a function of `key` alone."""
    return as_uniform(mix_(_counter(count, device) + key))


# The integer type of each floating-point type's width. Masks are computed as integers and then viewed as floats; to
# compare bytes and convert the result takes four times as long on a CPU.
_INTEGER_TYPES = {torch.bfloat16: torch.int16, torch.float16: torch.int16}
_INTEGER_TYPES |= {torch.float32: torch.int32, torch.float64: torch.int64}


def dropout_mask(shape: torch.Size, p: float, key: Key, like: Tensor) -> Tensor:
    """A mask to multiply with: 0 with probability p, rounded to 1/256, else 1 / (1 - p).

    Args:
        shape: shape of the mask.
        p: dropout probability.
        key: from `Randomness.key`.
        like: the mask gets its dtype and device.
    """
    return _as_mask(random_bytes(shape.numel(), key, like.device), p, like).view(shape)


def _dropped(p: float) -> int:
    """How many of the 256 bytes drop their element: those below this number."""
    return min(255, max(1, round(p * 256))) if p else 0  # at least one byte, so that a small p is not 0


def keep_prob(p: float) -> float:
    """The probability with which dropout keeps an element."""
    return (256 - _dropped(p)) / 256


def _as_mask(random: Tensor, p: float, like: Tensor) -> Tensor:
    """Random bytes as a mask of `like`'s dtype. Same shape."""
    dropped = _dropped(p)
    if torch.compiler.is_compiling():  # fused with what it is multiplied with
        return (random >= dropped).to(like.dtype) * (256 / (256 - dropped))
    if random.is_cuda:  # two kernels, where each operation is one
        kept, zero = _two_values(256 / (256 - dropped), like.dtype, like.device)
        return torch.where(random >= dropped, kept, zero)
    integer = _INTEGER_TYPES[like.dtype]
    kept_value = int(torch.tensor(256 / (256 - dropped), dtype=like.dtype).view(integer))  # its bits
    below = random.to(integer).sub_(dropped)  # negative if dropped
    sign = torch.iinfo(integer).bits - 1  # the shift that leaves the sign alone
    # the shift gives all ones if dropped, else 0; inverted, it selects 0 or the bits of the kept value
    bits = below.bitwise_right_shift_(sign).bitwise_not_().bitwise_and_(kept_value)
    return bits.view(like.dtype)


@cache
def _two_values(kept: float, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """What a mask consists of, as numbers on the device."""
    return torch.tensor(kept, dtype=dtype, device=device), torch.zeros((), dtype=dtype, device=device)


_REPEATED = 1 << 21  # words up to which the counter of a call is kept for the next layer, 16 MiB


@lru_cache(maxsize=2)
def _pair_counter(
    rows: tuple[int, int],
    heads: tuple[int, int, int],
    queries: tuple[int, int, int],
    all_words: int,
    words: range | Tensor,
    device: torch.device,
) -> Tensor:
    """The number of each (row, head, query) and then of each word of eight keys, times the increment.

    Args:
        rows: the first batch row, and how many.
        heads: the first head, how many, and how many there are in all.
        queries: the first query, how many, and how many there are in all.
        all_words: the words of all keys.
        words: those of the part.

    Returns:
        int64, (rows x heads x queries x words,).
    """
    (row, n_rows), (head, n_heads, all_heads), (query, t, query_len) = rows, heads, queries
    lines = torch.arange(row, row + n_rows, device=device).view(-1, 1) * all_heads + head
    lines = (lines + torch.arange(n_heads, device=device)).view(-1, 1) * query_len
    lines = lines + torch.arange(query, query + t, device=device)
    words = torch.arange(words.start, words.stop, device=device) if isinstance(words, range) else words
    return (lines.unsqueeze(-1) * all_words + words).mul_(_ODD).flatten()  # (rows·heads,t,words), then flat


def pair_dropout(
    weights: Tensor,
    p: float,
    key: Key,
    queries: slice | None = None,
    keys: "tuple[int, int] | Tensor | None" = None,
    row: int | None = None,
    lengths: tuple[int, int] | None = None,
    heads: tuple[int, int] | None = None,
) -> Tensor:
    """A dropout mask for attention weights, in which each pair depends on its (row, head, query, key) alone.

    A kernel that computes blocks therefore drops the same pairs as one that computes all weights at once.

    Args:
        weights: (B,H,t,s), a part of all weights.
        p: dropout probability.
        key: from `Randomness.key`.
        queries: the queries of the part; all if not given.
        keys: the keys of the part, a range or indices; all if not given.
        row: the first batch row of the part.
        lengths: T and S of all weights; t and s if not given.
        heads: the first head of the part, and the number of heads of all weights.

    Returns:
        The mask, (B,H,t,s).
    """
    n_rows, n_heads, t, s = weights.shape
    query_len, key_len = (t, s) if lengths is None else lengths
    device = weights.device
    if isinstance(keys, Tensor):
        words, word_index = torch.unique(keys.to(device) // 8, return_inverse=True)  # eight keys share one hash
    else:
        low, high = (0, key_len) if keys is None else keys
        words = range(low // 8, (high + 7) // 8)  # the words that hold low ... high - 1
    first_query = 0 if queries is None else queries.start
    first_head, all_heads = (0, n_heads) if heads is None else heads
    place = ((row or 0, n_rows), (first_head, n_heads, all_heads), (first_query, t, query_len), (key_len + 7) // 8)
    few = isinstance(words, range) and n_rows * n_heads * t * len(words) <= _REPEATED
    if few and not torch.compiler.is_compiling():
        counter = _pair_counter(*place, words, device) + key  # a new tensor: the cached one must not change
    else:
        counter = _pair_counter.__wrapped__(*place, words, device).add_(key)  # `__wrapped__`: without the cache
    random = mix_(counter).view(torch.uint8).view(n_rows, n_heads, t, 8 * len(words))  # (B,H,t,8·words)
    if isinstance(keys, Tensor):
        random = random.index_select(-1, word_index * 8 + keys.to(device) % 8)
    else:
        random = random[..., low % 8 : low % 8 + high - low]  # the first word may begin before `low`
    return _as_mask(random, p, weights)


def fresh(random: Randomness | None) -> Randomness:
    """The given randomness, or a new one seeded from PyTorch's global generator."""
    return Randomness(int(torch.randint(0, 1 << 62, (1,)).item())) if random is None else random  # positive as int64


def dropout(x: Tensor, p: float, random: Randomness | None) -> Tensor:
    """Dropout of x by a new mask; x itself for p = 0. Same shape."""
    return x * dropout_mask(x.shape, p, fresh(random).key(), x) if p else x


def add_dropout(residual: Tensor, x: Tensor, p: float, random: Randomness | None) -> Tensor:
    """residual + dropout(x) in one pass. Same shape."""
    return torch.addcmul(residual, x, dropout_mask(x.shape, p, fresh(random).key(), x)) if p else residual + x
