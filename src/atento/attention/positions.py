"""Position schemes, parts that add up: what is added to the input, how queries and keys are turned, what pairs get.

`Sinusoidal` and `Learned` add a vector to each token, `Rotary` turns queries and keys, and the relative schemes
(`relative`) add to scores and values. See docs/notes.md#b1, #b2, #b7, #b11.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atento.attention.relative import ALiBi, RelativeMatrix, Shaw, T5Bias
from atento.errors import UsageError

__all__ = [
    "ALiBi",
    "Learned",
    "RelativeMatrix",
    "Rotary",
    "Shaw",
    "Sinusoidal",
    "Stretch",
    "T5Bias",
    "Turn",
    "sinusoids",
]


def sinusoids(
    positions: Tensor,
    d_model: int,
    base: float = 10000.0,
    *,
    interleaved: bool = True,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """sin on even, cos on odd dimensions: angle of pair i is position / base^(2i/d) (Vaswani et al. 2017, 3.5).

    See docs/notes.md#b1.

    Not `interleaved`: all sines first, then all cosines, as the paper's own code and Marian have it.

    positions (...,) integers or floats -> (..., d_model) of type `dtype`. All is computed in float64 and rounded once,
    so that far positions are exact. An odd `d_model` has one sine more than cosines.
    """
    angles = positions.double().unsqueeze(-1) * _rates(d_model, base, positions.device)  # (..., ceil(D/2))
    table = torch.zeros(*positions.shape, d_model, dtype=torch.float64, device=positions.device)
    sines, cosines = (slice(0, None, 2), slice(1, None, 2))
    if not interleaved:
        sines, cosines = slice(0, angles.shape[-1]), slice(angles.shape[-1], None)
    table[..., sines] = torch.sin(angles)
    table[..., cosines] = torch.cos(angles[..., : d_model // 2])
    return table.to(dtype)


def _rates(width: int, base: float, device: torch.device) -> Tensor:
    """The angle that each pair gains from one position to the next: base^(-2i/width), (⌈width/2⌉,) float64."""
    pairs = torch.arange(0, width, 2, dtype=torch.float64, device=device)
    return torch.exp(pairs * (-math.log(base) / width))


class Sinusoidal(nn.Module):
    """Adds the sinusoid of its position to each token; has no parameters and any length.

    The table has the type of the module and is computed anew when that changes: `.double()` gives float64 throughout.
    """

    def __init__(self, d_model: int, base: float = 10000.0, *, interleaved: bool = True) -> None:
        super().__init__()
        self.d_model, self.base, self.interleaved = d_model, base, interleaved
        self.table: Tensor
        self.reset_buffers()

    def reset_buffers(self) -> None:
        """Make the table anew: it is not stored, so a network built on the meta device needs it after loading."""
        # made on the CPU even for a network on the meta device, where these few numbers would import PyTorch's compiler
        own = "cpu" if torch.get_default_device().type == "meta" else None
        rows = self._rows(torch.arange(256, device=own), torch.get_default_dtype())
        self.register_buffer("table", rows, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Sinusoidal":
        """As of any module; a table of another type is computed anew, not rounded from the one before."""
        before = self.table.dtype
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.table.dtype != before and not self.table.is_meta:
            rows = self._rows(torch.arange(self.table.shape[0], device="cpu"), self.table.dtype)
            self.table = rows.to(self.table.device)
        return self

    def vectors(
        self,
        length: int,
        offset: int = 0,
        position_ids: Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """What is added: (L,D) for positions `offset` on, or (B,L,D) for `position_ids` (B,L).

        They are of the table's type, or of `dtype` where that is float64.
        """
        table = self.table  # one look: another thread may put a longer one there
        exact = dtype if dtype == torch.float64 else table.dtype
        if position_ids is not None:
            return self._rows(position_ids, exact)
        end = offset + length
        if exact != table.dtype:
            return self._rows(torch.arange(offset, end, device=table.device), exact)
        if end > table.shape[0]:
            grown = torch.arange(max(end, 2 * table.shape[0]), device=table.device)
            self.table = table = self._rows(grown, table.dtype)
        return table[offset:end]

    def _rows(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        return sinusoids(positions, self.d_model, self.base, interleaved=self.interleaved, dtype=dtype)

    def forward(self, x: Tensor, offset: int = 0, position_ids: Tensor | None = None) -> Tensor:
        """x (B,L,D) -> (B,L,D); the first token stands at `offset`, or where `position_ids` (B,L) say."""
        return x + self.vectors(x.shape[1], offset, position_ids, x.dtype).to(x.dtype)


class Learned(nn.Module):
    """Adds a learned vector for each position, of which there are `max_len` (Gehring et al. 2017; BERT, GPT).

    See docs/notes.md#b2.

    `shift` leaves that many rows free before position 0, as RoBERTa's table does.
    """

    def __init__(self, max_len: int, d_model: int, shift: int = 0) -> None:
        super().__init__()
        if max_len < 1:
            raise ValueError(f"`max_len` must be at least 1: got {max_len}")
        if shift < 0:
            raise ValueError(f"`shift` must not be negative: got {shift}")
        self.shift = shift
        self.weight = nn.Parameter(torch.empty(max_len + shift, d_model))
        nn.init.normal_(self.weight, std=0.02)

    @property
    def max_len(self) -> int:
        """How many positions the table has."""
        return self.weight.shape[0] - self.shift

    def vectors(self, length: int, offset: int = 0, position_ids: Tensor | None = None) -> Tensor:
        """What is added: (L,D) for positions `offset` on, or (B,L,D) for `position_ids` (B,L).

        Raises:
            UsageError: a position past the table's end.
        """
        end = offset + length if position_ids is None else int(position_ids.max()) + 1
        if end > self.max_len:
            raise UsageError(
                f"the table of learned positions holds {self.max_len}: got a text of {end} tokens; "
                "cut it, or make the table longer with `grown` or `interpolated`"
            )
        if position_ids is not None:
            return F.embedding(position_ids + self.shift, self.weight)
        return self.weight[self.shift + offset : self.shift + end]

    def forward(self, x: Tensor, offset: int = 0, position_ids: Tensor | None = None) -> Tensor:
        """x (B,L,D) -> (B,L,D); the first token stands at `offset`, or where `position_ids` (B,L) say."""
        return x + self.vectors(x.shape[1], offset, position_ids).to(x.dtype)

    @torch.no_grad()
    def grown(self, max_len: int) -> "Learned":
        """A table of `max_len` positions: the first as they are, the new ones random."""
        longer = Learned(max_len, self.weight.shape[1], self.shift).to(self.weight)
        kept = min(len(self.weight), len(longer.weight))
        longer.weight[:kept] = self.weight[:kept]
        return longer

    @torch.no_grad()
    def interpolated(self, max_len: int) -> "Learned":
        """A table of `max_len` positions drawn out of this one, linearly: its first and last stay first and last."""
        longer = Learned(max_len, self.weight.shape[1], self.shift).to(self.weight)
        own = self.weight[self.shift :].T.unsqueeze(0)  # (1,D,L)
        wide = own.to(torch.promote_types(own.dtype, torch.float32))
        drawn = F.interpolate(wide, size=max_len, mode="linear", align_corners=True)
        longer.weight[: self.shift] = self.weight[: self.shift]
        longer.weight[self.shift :] = drawn[0].T.to(longer.weight.dtype)
        return longer


@dataclass(frozen=True)
class Turn:
    """Rotations for given positions: cos and sin (L,R/2) or (B,1,L,R/2) of the R turned dimensions of a head."""

    cos: Tensor
    sin: Tensor
    interleaved: bool
    heads: Tensor | None = None  # boolean (H,1,1): which heads are turned; None: all

    def __call__(self, x: Tensor) -> Tensor:
        """x (B,H,L,K) -> the same shape, each pair of dimensions turned by its angle."""
        cos, sin = self.cos.to(x.dtype), self.sin.to(x.dtype)
        width = 2 * cos.shape[-1]
        turned, rest = x[..., :width], x[..., width:]
        if self.interleaved:
            one, two = turned[..., 0::2], turned[..., 1::2]
            out = torch.stack([one * cos - two * sin, two * cos + one * sin], dim=-1).flatten(-2)
        else:
            one, two = turned.chunk(2, dim=-1)
            out = torch.cat([one * cos - two * sin, two * cos + one * sin], dim=-1)
        out = out if rest.shape[-1] == 0 else torch.cat([out, rest], dim=-1)
        return out if self.heads is None else torch.where(self.heads, out, x)

    def back(self) -> "Turn":
        """The same rotations the other way."""
        return replace(self, sin=-self.sin)


@dataclass(frozen=True)
class Stretch:
    """Rotations slowed down, so that a network reads longer texts than those it was trained on.

    All are `factor` times slower (Chen et al. 2023, position interpolation); or, with `trained_len`, only those that
    turn fewer than `low` times in that many positions, and those between `low` and `high` times in part (Llama 3.1).
    """

    factor: float
    trained_len: int | None = None
    low: float = 1.0
    high: float = 4.0

    def slowed(self, rates: Tensor) -> Tensor:
        """Angles a position (R/2,) -> the same shape."""
        if self.trained_len is None:
            return rates / self.factor
        turns = self.trained_len * rates / (2 * math.pi)
        kept = ((turns - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
        return rates * (kept + (1.0 - kept) / self.factor)


class Rotary(nn.Module):
    """Turns each pair of dimensions of queries and keys by an angle that grows with the position (Su et al. 2021).

    So q·k depends on the distance alone. `interleaved`: pairs are neighbours (the paper) or, else, one of each half
    (Llama). `fraction` of the head's width is turned, the rest left as it is; `stretch` is for longer texts.
    """

    def __init__(
        self,
        d_head: int,
        base: float = 10000.0,
        *,
        interleaved: bool = False,
        fraction: float = 1.0,
        stretch: Stretch | None = None,
    ) -> None:
        super().__init__()
        self.width = int(d_head * fraction) // 2 * 2
        if self.width < 2:
            raise ValueError(f"rotary positions need a head at least 2 wide: got {d_head} and fraction {fraction}")
        self.base, self.interleaved, self.stretch = base, interleaved, stretch

    def at(self, positions: Tensor, heads: Tensor | None = None, dtype: torch.dtype = torch.float32) -> Turn:
        """The rotations for positions (L,) or (B,L); made once for all layers.

        They are computed in float64 and rounded once, to `dtype`, to float32 where that is a narrower type.
        """
        rates = _rates(self.width, self.base, positions.device)
        rates = rates if self.stretch is None else self.stretch.slowed(rates)
        angles = positions.double().unsqueeze(-1) * rates
        angles = angles if positions.dim() == 1 else angles.unsqueeze(1)  # (B,1,L,R/2)
        kept = torch.promote_types(dtype, torch.float32)
        return Turn(angles.cos().to(kept), angles.sin().to(kept), self.interleaved, heads)

    def forward(self, x: Tensor, offset: int = 0, position_ids: Tensor | None = None) -> Tensor:
        """Queries or keys (B,H,L,K) -> the same shape; the first stands at `offset`, or where `position_ids` say."""
        if position_ids is None:
            position_ids = torch.arange(offset, offset + x.shape[-2], device=x.device)
        return self.at(position_ids, dtype=x.dtype)(x)
