"""Scaled rotary angles, for texts longer than those of training (docs/notes.md#b11)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Stretch:
    """Scaled rotary angles, so that a network reads longer texts than it was trained on.

    Without `trained_len` all angles are divided by `factor` (position interpolation, Chen et al. 2023). With it, only
    angles with fewer than `low` full turns in `trained_len` positions are; those with `low` to `high` turns are scaled
    in part: in proportion to their turns (Llama 3.1) or, with `yarn`, to their place among the pairs (Peng et al.
    2024). YaRN also multiplies queries and keys by `attention_factor`, 0.1 ln(factor) + 1 if it is None.

    Two kinds go by the length of the text, its last position in a call plus 1, and leave keys in a cache as they were:
    `dynamic` raises the base where it is above `trained_len`; `short` and `long` divide each angle by a number of its
    own, up to `trained_len` and above (LongRoPE, Ding et al. 2024).
    """

    factor: float
    trained_len: int | None = None
    low: float = 1.0
    high: float = 4.0
    yarn: bool = False
    attention_factor: float | None = None
    dynamic: bool = False
    short: tuple[float, ...] | None = None
    long: tuple[float, ...] | None = None

    @property
    def scale(self) -> float:
        """Factor of rotated queries and keys."""
        if self.attention_factor is not None:
            return self.attention_factor
        return 0.1 * math.log(self.factor) + 1.0 if self.yarn else 1.0

    def for_length(self, rates: Tensor, positions: Tensor) -> Tensor:
        """Scale angles per position (R/2,) for a text with those positions (L,) or (B,L): (R/2,), (1,R/2) or
        (B,1,R/2)."""
        if not (self.dynamic or self.long) or not positions.shape[-1]:
            return self.scaled(rates)
        length = positions.amax(dim=-1, keepdim=True).unsqueeze(-1) + 1  # (1,1) or (B,1,1)
        return self._by_length(rates, length if positions.dim() > 1 else length[0])

    def _by_length(self, rates: Tensor, length: Tensor) -> Tensor:
        assert self.trained_len is not None
        if self.long is not None and self.short is not None:
            short, long = (rates.new_tensor(part) for part in (self.short, self.long))
            return rates / torch.where(length > self.trained_len, long, short)
        ratio = self.factor * length.clamp(min=self.trained_len).to(rates.dtype) / self.trained_len - (self.factor - 1)
        place = torch.arange(len(rates), device=rates.device)
        # dynamic NTK: as if the base were multiplied by ratio ** (d / (d - 2))
        return rates * ratio ** (-2 * place / max(2 * len(rates) - 2, 1))

    def scaled(self, rates: Tensor) -> Tensor:
        """Scale angles per position (R/2,), the largest first, of a text up to `trained_len`. Same shape."""
        if self.dynamic or self.long:
            return self._by_length(rates, torch.ones(1, dtype=torch.long, device=rates.device))
        if self.trained_len is None:
            return rates / self.factor
        if self.yarn:
            # the pairs with about `high` and `low` turns, between which angles are scaled in part
            logarithms = rates.log()
            step = float(logarithms[0] - logarithms[-1]) / max(1, len(rates) - 1) or 1.0  # between neighbours
            turns = (self.high, self.low)
            begin, end = (math.log(self.trained_len / (turn * 2 * math.pi)) / step for turn in turns)
            first, last = max(math.floor(begin), 0), min(math.ceil(end), 2 * len(rates) - 1)  # rounded outwards
            place = (torch.arange(len(rates), device=rates.device) - first) / max(last - first, 1e-3)
            unscaled = 1.0 - place.clamp(0.0, 1.0)  # share that keeps its angle
        else:
            n_turns = self.trained_len * rates / (2 * math.pi)  # full turns in `trained_len` positions
            unscaled = ((n_turns - self.low) / (self.high - self.low)).clamp(0.0, 1.0)  # share that keeps its angle
        return rates * (unscaled + (1.0 - unscaled) / self.factor)
