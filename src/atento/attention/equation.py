"""The attention weights as an equation: softmax(Q Kᵀ · scale + ...) over the allowed keys (docs/notes.md#a3)."""

import math

import torch
from torch import Tensor

from atento.attention.relative_terms import RelativeTerms


def widened(x: Tensor) -> Tensor:
    """float16 as float32, other types unchanged: scores in float16 overflow above 65,504."""
    return x.float() if x.dtype == torch.float16 else x


def weigh(
    q: Tensor,
    k: Tensor,
    mask_bias: Tensor | None,
    empty: Tensor | None,
    bias: Tensor | None,
    relative: RelativeTerms | None,
    scale: float | None,
) -> Tensor:
    """Attention weights in float32 (float64 if q is).

    Scores of bfloat16 are rounded to it once; those of float16 are computed in float32, so that they do not overflow.

    Args:
        q: (B,H,T,K).
        k: (B,H,S,K).
        mask_bias: the additive mask, -inf for masked keys; broadcasts to (B,H,T,S).
        empty: True for the rows that may attend to nothing, whose weights are 0.
        bias: added to the scores after scaling.
        relative: relative position schemes, added after scaling; a sparsifier among them replaces softmax.
        scale: 1/√K if not given.

    Returns:
        (B,H,T,S).
    """
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    q, k = widened(q) * scale, widened(k)  # the queries are scaled: fewer numbers than the scores
    scores = q @ k.transpose(-2, -1)  # (B,H,T,S)
    scores = scores.float() if scores.dtype == torch.bfloat16 else scores  # exact in float32, and faster on a CPU
    added = None if relative is None else relative.scores(q, k, scale)
    scores = scores if added is None else scores + added
    scores = scores if bias is None else scores + bias
    scores = scores if mask_bias is None else scores + mask_bias.to(scores.dtype)
    if relative is not None and relative.sparsifier is not None:
        return relative.sparsifier.weigh(scores, relative.positions)
    return normalise(scores, empty)


def normalise(scores: Tensor, empty: Tensor | None) -> Tensor:
    """softmax over the keys; rows marked `empty` become 0. Same shape."""
    if empty is None:
        return torch.softmax(scores, dim=-1)
    # softmax of nothing is NaN, and so is its gradient: such a row attends uniformly, then its weights become zero
    return torch.softmax(scores.masked_fill(empty, 0.0), dim=-1).masked_fill(empty, 0.0)
