"""Position schemes: sinusoidal and learned positions, and rotary positions (docs/notes.md#b1, #b2, #b7, #b11).

`Sinusoidal` and `Learned` add a vector to each token. `Rotary` rotates queries and keys. The relative schemes, which
add to scores and values, are in `relative.py`.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atento.attention.relative import ALiBi, RelativeMatrix, Shaw, T5Bias
from atento.attention.relative_disentangled import Disentangled
from atento.attention.rope_scaling import Stretch
from atento.base.errors import UsageError

__all__ = [
    "ALiBi",
    "Disentangled",
    "Learned",
    "RelativeMatrix",
    "Rotary",
    "Rotation",
    "Shaw",
    "Sinusoidal",
    "Stretch",
    "T5Bias",
    "sinusoids",
]

_MOST_ROWS = 8192  # of a table that grows for given positions


def sinusoids(
    positions: Tensor,
    d_model: int,
    base: float = 10000.0,
    *,
    interleaved: bool = True,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Sinusoidal position vectors (Vaswani et al. 2017, section 3.5; docs/notes.md#b1).

    Even dimensions are sines and odd dimensions cosines; the angle of pair i is position / base^(2i/d). The angles are
    computed in float64 and the result is rounded once, so that far positions are exact.

    Args:
        positions: (...), integers or floats.
        d_model: width D of the vectors; if it is odd, there is one sine more than cosines.
        base: the base of the angles.
        interleaved: False puts all sines first, then all cosines, as Marian and the code of the paper do.
        dtype: dtype of the result.

    Returns:
        (...,D).
    """
    angles = positions.double().unsqueeze(-1) * _rates(d_model, base, positions.device)  # (..., ceil(D/2))
    table = torch.zeros(*positions.shape, d_model, dtype=torch.float64, device=positions.device)
    sines, cosines = (slice(0, None, 2), slice(1, None, 2))
    if not interleaved:
        sines, cosines = slice(0, angles.shape[-1]), slice(angles.shape[-1], None)
    table[..., sines] = torch.sin(angles)
    table[..., cosines] = torch.cos(angles[..., : d_model // 2])  # one fewer where D is odd
    return table.to(dtype)


def _rates(width: int, base: float, device: torch.device) -> Tensor:
    """The angle of each pair per position: base^(-2i/width), (⌈width/2⌉,) float64."""
    pairs = torch.arange(0, width, 2, dtype=torch.float64, device=device)  # 2i for each pair i
    return torch.exp(pairs * (-math.log(base) / width))  # base^(-2i/width), in float64


@lru_cache(maxsize=8)
def _table(rows: int, d_model: int, base: float, interleaved: bool, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The sinusoids of the first positions, made on the CPU, also for the device meta; it may serve in training."""
    with torch.inference_mode(False):
        positions = torch.arange(rows, device="cpu")
        return sinusoids(positions, d_model, base, interleaved=interleaved, dtype=dtype).to(device)


class Sinusoidal(nn.Module):
    """Adds sinusoidal position vectors to the input; it has no parameters and no maximum length.

    They are rounded once, to the dtype of the input, so `.double()` is exact.

    Args:
        d_model: width D.
        base: the base of the angles.
        interleaved: as in `sinusoids`.
        shift: the position that the first token has (fairseq's models count from 2).
    """

    def __init__(self, d_model: int, base: float = 10000.0, *, interleaved: bool = True, shift: int = 0) -> None:
        super().__init__()
        self.d_model, self.base, self.interleaved, self.shift = d_model, base, interleaved, shift

    def vectors(
        self, length: int, offset: int = 0, position_ids: Tensor | None = None, like: Tensor | None = None
    ) -> Tensor:
        """The vectors to add: (L,D) for positions from `offset` on, or (B,L,D) for `position_ids` (B,L).

        `like` is a tensor with the dtype and the device of the result; None: the usual ones.
        """
        like = torch.empty(0) if like is None else like
        first, end = offset + self.shift, offset + self.shift + length
        if position_ids is not None:
            position_ids = position_ids + self.shift
            on_cpu = position_ids.device.type == "cpu" and not position_ids.is_floating_point()
            first, end = (int(end) for end in position_ids.aminmax()) if on_cpu and position_ids.numel() else (-1, 0)
            if first < 0 or end >= _MOST_ROWS:  # on a CPU, a table is many times faster, where it has the positions
                return sinusoids(position_ids, self.d_model, self.base, interleaved=self.interleaved, dtype=like.dtype)
        rows = max(256, 1 << end.bit_length())  # few tables
        table = _table(rows, self.d_model, self.base, self.interleaved, like.dtype, like.device)
        return table[first:end] if position_ids is None else F.embedding(position_ids.long(), table)

    def forward(self, x: Tensor, offset: int = 0, position_ids: Tensor | None = None) -> Tensor:
        """x (B,L,D) -> (B,L,D); the first token is at position `offset`, or positions are `position_ids` (B,L)."""
        return x + self.vectors(x.shape[1], offset, position_ids, x)


class Learned(nn.Module):
    """Adds a learned vector for each position (Gehring et al. 2017; BERT, GPT; docs/notes.md#b2).

    Args:
        max_len: number of positions.
        d_model: width D.
        shift: unused rows of the table before position 0, as in RoBERTa.
    """

    def __init__(self, max_len: int, d_model: int, shift: int = 0) -> None:
        super().__init__()
        if max_len < 1:
            raise ValueError(f"`max_len` must be at least 1: got {max_len}")
        if shift < 0:
            raise ValueError(f"`shift` must not be negative: got {shift}")
        self.shift = shift
        self.weight = nn.Parameter(nn.init.normal_(torch.empty(max_len + shift, d_model), std=0.02))  # as BERT begins

    @property
    def max_len(self) -> int:
        """Number of positions."""
        return self.weight.shape[0] - self.shift

    def vectors(
        self, length: int, offset: int = 0, position_ids: Tensor | None = None, like: Tensor | None = None
    ) -> Tensor:
        """As `Sinusoidal.vectors`.

        Raises:
            UsageError: a position is beyond the end of the table.
        """
        end = offset + length  # one past the last position
        if position_ids is not None:
            end = int(position_ids.max()) + 1 if position_ids.numel() else 0
        if end > self.max_len:
            raise UsageError(
                f"the table of learned positions holds {self.max_len}: got a text of {end} tokens; "
                "cut it, or make the table longer with `grown` or `interpolated`"
            )
        rows = slice(self.shift + offset, self.shift + end)
        table = self.weight[rows] if position_ids is None else F.embedding(position_ids + self.shift, self.weight)
        return table if like is None else table.to(like.dtype)

    def forward(self, x: Tensor, offset: int = 0, position_ids: Tensor | None = None) -> Tensor:
        """x (B,L,D) -> (B,L,D); the first token is at position `offset`, or positions are `position_ids` (B,L)."""
        return x + self.vectors(x.shape[1], offset, position_ids, x)

    @torch.no_grad()
    def grown(self, max_len: int) -> "Learned":
        """A copy with `max_len` positions: old positions are copied, new ones are initialised at random."""
        longer = Learned(max_len, self.weight.shape[1], self.shift).to(self.weight)
        n_copied = min(len(self.weight), len(longer.weight))
        longer.weight[:n_copied] = self.weight[:n_copied]
        return longer

    @torch.no_grad()
    def interpolated(self, max_len: int) -> "Learned":
        """A copy with `max_len` positions, interpolated linearly; the first and the last position are unchanged."""
        longer = Learned(max_len, self.weight.shape[1], self.shift).to(self.weight)
        rows = self.weight[self.shift :].T.unsqueeze(0)  # (1,D,L)
        wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
        interpolated = F.interpolate(wide, size=max_len, mode="linear", align_corners=True)  # ends stay
        longer.weight[: self.shift] = self.weight[: self.shift]  # unused rows before position 0
        longer.weight[self.shift :] = interpolated[0].T.to(longer.weight.dtype)
        return longer


@dataclass(frozen=True)
class Rotation:
    """The rotation of queries or keys at given positions.

    Attributes:
        cos: (L,R/2) or (B,1,L,R/2), for the R rotated dimensions of a head.
        sin: as `cos`.
        interleaved: whether the two dimensions of a pair are neighbours; else one is in each half.
        heads: boolean (H,1,1), the heads that are rotated; None for all.
        scale: factor of the rotated vectors, which is in `cos` and `sin`.
    """

    cos: Tensor
    sin: Tensor
    interleaved: bool
    heads: Tensor | None = None
    scale: float = 1.0

    def __call__(self, x: Tensor) -> Tensor:
        """Rotate each pair of dimensions of x (B,H,L,K) by its angle. Same shape."""
        cos, sin = self.cos.to(x.dtype), self.sin.to(x.dtype)  # the angles were computed wide and are rounded here
        width = 2 * cos.shape[-1]
        rotated, unrotated = x[..., :width], x[..., width:]  # a part of the width may keep no position
        if self.interleaved:
            a, b = rotated[..., 0::2], rotated[..., 1::2]
            out = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)  # neighbours again
        else:
            a, b = rotated.chunk(2, dim=-1)
            out = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
        out = out if unrotated.shape[-1] == 0 else torch.cat([out, unrotated], dim=-1)
        return out if self.heads is None else torch.where(self.heads, out, x)

    def inverse(self) -> "Rotation":
        """The inverse rotation."""
        square = self.scale * self.scale  # `scale` was multiplied in once, and once more by this
        return replace(self, cos=self.cos / square, sin=-self.sin / square, scale=1 / self.scale)


class Rotary(nn.Module):
    """Rotary positions: rotate pairs of dimensions of queries and keys by an angle proportional to the position.

    q·k then depends on positions through their distance alone (Su et al. 2021).

    Args:
        d_head: width of a head.
        base: the base of the angles.
        interleaved: whether the two dimensions of a pair are neighbours (the paper); else one is in each half (Llama).
        fraction: the share of the width that is rotated.
        stretch: scaling of the angles for longer texts.

    Raises:
        ValueError: fewer than 2 dimensions are rotated, or the stretch has not a number for each pair.
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
        self.width = int(d_head * fraction) // 2 * 2  # an even number, rounded down
        if self.width < 2:
            raise ValueError(f"rotary positions need a head at least 2 wide: got {d_head} and fraction {fraction}")
        self.base, self.interleaved, self.stretch = base, interleaved, stretch
        for divisors in () if stretch is None else (stretch.short, stretch.long):
            if divisors is not None and len(divisors) != self.width // 2:
                raise ValueError(f"a stretch needs {self.width // 2} divisors, one a pair: got {len(divisors)}")

    @property
    def scale(self) -> float:
        """Factor of rotated queries and keys."""
        return 1.0 if self.stretch is None else self.stretch.scale

    def rates(self, device: torch.device | str = "cpu") -> Tensor:
        """The angle of each pair per position, (R/2,) float64, before it is stretched."""
        return _rates(self.width, self.base, torch.device(device))

    def at(self, positions: Tensor, heads: Tensor | None = None, dtype: torch.dtype = torch.float32) -> Rotation:
        """The rotation at the given positions, computed once for all layers.

        It is computed in float64 and rounded once, to `dtype` or float32, whichever is wider.

        Args:
            positions: (L,) or (B,L).
            heads: boolean (H,1,1), the heads that are rotated; all if not given.
            dtype: dtype of the queries and keys.
        """
        rates = self.rates(positions.device)
        rates = rates if self.stretch is None else self.stretch.for_length(rates, positions)
        angles = positions.double().unsqueeze(-1) * rates  # (L,R/2) or (B,L,R/2)
        angles = angles if positions.dim() == 1 else angles.unsqueeze(1)  # (B,1,L,R/2)
        wide = torch.promote_types(dtype, torch.float32)  # at least float32: far positions need its digits
        scale = self.scale
        cos, sin = (angles.cos() * scale).to(wide), (angles.sin() * scale).to(wide)
        return Rotation(cos, sin, self.interleaved, heads, scale)

    def forward(self, x: Tensor, offset: int = 0, position_ids: Tensor | None = None) -> Tensor:
        """Rotate queries or keys (B,H,L,K) at positions from `offset` on, or at `position_ids`. Same shape."""
        if position_ids is None:
            position_ids = torch.arange(offset, offset + x.shape[-2], device=x.device)
        return self.at(position_ids, dtype=x.dtype)(x)
