"""Position schemes: objects that say how order enters a network. Today: the sinusoids of the Transformer (B1)."""

import math

import torch
from torch import Tensor, nn


def sinusoids(positions: Tensor, d_model: int, base: float = 10000.0) -> Tensor:
    """sin on even, cos on odd dimensions: angle of pair i is position / base^(2i/d) (Vaswani et al. 2017, 3.5; B1).

    positions (...,) integers or floats -> (..., d_model) float32. The angles are made in float64, so that far
    positions are exact. An odd `d_model` has one sine more than cosines.
    """
    pairs = torch.arange(0, d_model, 2, dtype=torch.float64, device=positions.device)
    rates = torch.exp(pairs * (-math.log(base) / d_model))
    angles = positions.to(torch.float64).unsqueeze(-1) * rates  # (..., ceil(D/2))
    table = torch.zeros(*positions.shape, d_model, dtype=torch.float64, device=positions.device)
    table[..., 0::2] = torch.sin(angles)
    table[..., 1::2] = torch.cos(angles[..., : d_model // 2])
    return table.to(torch.float32)


class Sinusoidal(nn.Module):
    """Adds the sinusoid of its position to each token; has no parameters and any length."""

    def __init__(self, d_model: int, base: float = 10000.0) -> None:
        super().__init__()
        self.d_model, self.base = d_model, base
        self.table: Tensor
        self.reset_buffers()

    def reset_buffers(self) -> None:
        """Make the table anew: it is not stored, so a network built on the meta device needs it after loading."""
        self.register_buffer("table", sinusoids(torch.arange(256), self.d_model, self.base), persistent=False)

    def forward(self, x: Tensor, offset: int = 0, position_ids: Tensor | None = None) -> Tensor:
        """x (B,L,D) -> (B,L,D); the first token stands at `offset`, or where `position_ids` (B,L) say."""
        if position_ids is not None:
            return x + sinusoids(position_ids, self.d_model, self.base).to(x.dtype)
        end = offset + x.shape[1]
        if end > self.table.shape[0]:
            grown = torch.arange(max(end, 2 * self.table.shape[0]), device=self.table.device)
            self.table = sinusoids(grown, self.d_model, self.base).to(self.table.dtype)
        return x + self.table[offset:end].to(x.dtype)
