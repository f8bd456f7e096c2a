"""Attention of recurrent decoders: additive, bilinear and dot-product scores, and their context (docs/notes.md#a5)."""

from typing import cast

import torch
from torch import Tensor, nn

from atento.attention.algebra import Mask
from atento.attention.equation import normalise
from atento.attention.prepared_mask import PreparedMask, prepare_mask


class AdditiveScore(nn.Module):
    """Additive score: e_ij = vᵀ tanh(W s_i + U h_j) (Bahdanau et al. 2015, A.1.2; docs/notes.md#a5)."""

    def __init__(self, d_query: int, d_key: int, d_hidden: int) -> None:
        super().__init__()
        self.query = nn.Linear(d_query, d_hidden, bias=False)  # W of the paper; the bias of U serves both
        self.key = nn.Linear(d_key, d_hidden)  # U
        self.weigh = nn.Linear(d_hidden, 1, bias=False)  # v

    def project(self, keys: Tensor) -> Tensor:
        """U h_j: (B,S,Dk) -> (B,S,hidden)."""
        return cast(Tensor, self.key(keys))

    def forward(self, queries: Tensor, projected: Tensor) -> Tensor:
        """(B,T,Dq), (B,S,hidden) -> (B,T,S), through a (B,T,S,hidden) tensor."""
        hidden = torch.tanh(self.query(queries).unsqueeze(2) + projected.unsqueeze(1))  # (B,T,S,hidden)
        return cast(Tensor, self.weigh(hidden).squeeze(-1))  # (B,T,S)


class BilinearScore(nn.Module):
    """Bilinear score: e_ij = s_iᵀ W h_j (Luong et al. 2015, "general"; docs/notes.md#a5)."""

    def __init__(self, d_query: int, d_key: int) -> None:
        super().__init__()
        self.key = nn.Linear(d_key, d_query, bias=False)

    def project(self, keys: Tensor) -> Tensor:
        """W h_j: (B,S,Dk) -> (B,S,Dq)."""
        return cast(Tensor, self.key(keys))

    def forward(self, queries: Tensor, projected: Tensor) -> Tensor:
        """(B,T,Dq), (B,S,Dq) -> (B,T,S)."""
        return queries @ projected.transpose(-2, -1)  # (B,T,Dq) by (B,Dq,S)


class DotScore(nn.Module):
    """Dot-product score: e_ij = scale · s_iᵀ h_j (Luong et al. 2015, "dot"; docs/notes.md#a4, #a5)."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale

    def project(self, keys: Tensor) -> Tensor:
        """Returns the keys unchanged."""
        return keys

    def forward(self, queries: Tensor, projected: Tensor) -> Tensor:
        """(B,T,D), (B,S,D) -> (B,T,S)."""
        return (queries * self.scale) @ projected.transpose(-2, -1)


def attend_scored(
    scores: Tensor, values: Tensor, mask: Mask | Tensor | PreparedMask | None = None
) -> tuple[Tensor, Tensor]:
    """Weights and context of given scores: c_i = Σ_j α_ij v_j with α = softmax(scores) (docs/notes.md#a5, #a10).

    Args:
        scores: (B,T,S).
        values: (B,S,Dv).
        mask: a Mask, or a boolean tensor that broadcasts to (B,T,S), True = may attend.

    Returns:
        The context (B,T,Dv) and the weights (B,T,S). Masked positions get exactly 0, and a row that may attend to
        nothing is 0.
    """
    mask = mask.unsqueeze(1) if isinstance(mask, Tensor) and mask.dim() == 3 else mask  # (B,1,T,S): for all heads
    prepared = prepare_mask(mask, scores.shape[-2], scores.shape[-1], scores.device)
    scores = scores.unsqueeze(1)  # one head: (B,1,T,S)
    scores = scores if prepared.bias is None else scores + prepared.bias.to(scores.dtype)  # -inf where masked
    weights = normalise(scores, prepared.empty).squeeze(1)
    return weights @ values, weights  # (B,T,S) by (B,S,Dv)
