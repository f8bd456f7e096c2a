"""Attention of a recurrent decoder: additive, bilinear and dot scores, and the context they make (docs/notes.md#a5)."""

from typing import Protocol

import torch
from torch import Tensor, nn

from atento.attention.algebra import Mask
from atento.attention.equation import normalise
from atento.attention.lowering import LoweredMask, lower


class Score(Protocol):
    """How well queries (B,T,Dq) fit keys (B,S,Dk), in two steps, so that keys are made ready once for all queries."""

    def ready(self, keys: Tensor) -> Tensor:
        """The keys' part, which does not depend on the query."""
        ...

    def __call__(self, queries: Tensor, ready: Tensor) -> Tensor:
        """queries (B,T,Dq) and what `ready` made -> scores (B,T,S)."""
        ...


class AdditiveScore(nn.Module):
    """e_ij = vᵀ tanh(W s_i + U h_j): a small perceptron (Bahdanau et al. 2015, A.1.2; docs/notes.md#a5)."""

    def __init__(self, d_query: int, d_key: int, d_hidden: int) -> None:
        super().__init__()
        self.query = nn.Linear(d_query, d_hidden, bias=False)
        self.key = nn.Linear(d_key, d_hidden)
        self.weigh = nn.Linear(d_hidden, 1, bias=False)

    def ready(self, keys: Tensor) -> Tensor:
        """U h_j: (B,S,Dk) -> (B,S,hidden)."""
        out: Tensor = self.key(keys)
        return out

    def forward(self, queries: Tensor, ready: Tensor) -> Tensor:
        """(B,T,Dq), (B,S,hidden) -> (B,T,S); a (B,T,S,hidden) tensor is made on the way."""
        hidden = torch.tanh(self.query(queries).unsqueeze(2) + ready.unsqueeze(1))  # (B,T,S,hidden)
        out: Tensor = self.weigh(hidden).squeeze(-1)
        return out


class BilinearScore(nn.Module):
    """e_ij = s_iᵀ W h_j (Luong et al. 2015, "general"; docs/notes.md#a5)."""

    def __init__(self, d_query: int, d_key: int) -> None:
        super().__init__()
        self.key = nn.Linear(d_key, d_query, bias=False)

    def ready(self, keys: Tensor) -> Tensor:
        """W h_j: (B,S,Dk) -> (B,S,Dq)."""
        out: Tensor = self.key(keys)
        return out

    def forward(self, queries: Tensor, ready: Tensor) -> Tensor:
        """(B,T,Dq), (B,S,Dq) -> (B,T,S)."""
        return queries @ ready.transpose(-2, -1)


class DotScore(nn.Module):
    """e_ij = s_iᵀ h_j, both equally wide (Luong et al. 2015, "dot"; docs/notes.md#a4, #a5); `scale` 1 as there."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale

    def ready(self, keys: Tensor) -> Tensor:
        """The keys as they are."""
        return keys

    def forward(self, queries: Tensor, ready: Tensor) -> Tensor:
        """(B,T,D), (B,S,D) -> (B,T,S)."""
        return (queries * self.scale) @ ready.transpose(-2, -1)


def attend_scored(
    scores: Tensor, values: Tensor, mask: Mask | Tensor | LoweredMask | None = None
) -> tuple[Tensor, Tensor]:
    """Any scores made into weights and a context: c_i = Σ_j α_ij v_j with α = softmax(scores) (docs/notes.md#a5, #a10).

    scores (B,T,S), values (B,S,Dv), mask a Mask or a boolean tensor that broadcasts to (B,T,S), True = may attend ->
    context (B,T,Dv), weights (B,T,S). Masked positions get exactly 0; a row that may attend to nothing is 0.
    """
    if isinstance(mask, Tensor) and mask.dim() == 3:
        mask = mask.unsqueeze(1)
    lowered = lower(mask, scores.shape[-2], scores.shape[-1], scores.device)
    scores = scores.unsqueeze(1)  # one head: (B,1,T,S)
    if lowered.bias is not None:
        scores = scores + lowered.bias.to(scores.dtype)
    weights = normalise(scores, lowered.empty).squeeze(1)
    return weights @ values, weights
