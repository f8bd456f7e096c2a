"""The weights of attention as an equation: softmax(Q Kᵀ · scale + ...) over the keys that may be seen.

See docs/notes.md#a3.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from atento.attention.dropout import Randomness
from atento.attention.lowering import LoweredMask
from atento.attention.relative import Relations


@dataclass(frozen=True)
class Asked:
    """What every kernel is told besides queries, keys and values; as the arguments of `attend`."""

    mask: LoweredMask
    bias: Tensor | None
    value_bias: Tensor | None
    relations: Relations | None
    scale: float
    dropout: float
    random: Randomness | None

    @property
    def only_biases(self) -> bool:
        """True if all that depends on places is added to the scores, which any kernel knows how to do."""
        relations = self.relations
        return relations is None or (not relations.adds_values and relations.sparsifier is None)

    def added(self, q: Tensor) -> Tensor | None:
        """All that is added to the scores of queries (B,H,T,K), as one square (B|1,H|1,T|1,S)."""
        scores = None if self.relations is None else self.relations.scores(q * self.scale, self.scale)
        if self.bias is None or scores is None:
            return self.bias if scores is None else scores
        return self.bias + scores


def widened(x: Tensor) -> Tensor:
    """float16 as float32, other types as they are: scores in float16 overflow above 65,504."""
    return x.float() if x.dtype == torch.float16 else x


def weigh(
    q: Tensor,
    k: Tensor,
    hidden: Tensor | None,
    empty: Tensor | None,
    bias: Tensor | None,
    relations: Relations | None,
    scale: float | None,
) -> Tensor:
    """q (B,H,T,K), k (B,H,S,K) -> weights (B,H,T,S) in float32 (float64 if q is).

    Scores of bfloat16 are rounded to it once; those of float16 are made in float32, so that they do not overflow.
    `hidden` is the additive mask, -inf where a key may not be seen; `empty` marks the rows that see nothing, whose
    weights are 0; `bias` and what the relative schemes give are added to the scores after scaling. Where `relations`
    have a sparsifier, it stands in the place of softmax.
    """
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    q, k = widened(q) * scale, widened(k)
    scores = q @ k.transpose(-2, -1)  # (B,H,T,S)
    if scores.dtype == torch.bfloat16:
        scores = scores.float()  # the softmax is exact in float32, and on a CPU faster there
    added = None if relations is None else relations.scores(q, scale)
    if added is not None:
        scores = scores + added
    if bias is not None:
        scores = scores + bias
    if hidden is not None:
        scores = scores + hidden.to(scores.dtype)
    if relations is not None and relations.sparsifier is not None:
        return relations.sparsifier.weigh(scores, relations.places)
    return normalise(scores, empty)


def normalise(scores: Tensor, empty: Tensor | None) -> Tensor:
    """softmax over the keys; rows marked `empty` become 0. Same shape."""
    if empty is None:
        return torch.softmax(scores, dim=-1)
    # softmax of nothing is NaN, and so is its gradient: such a row attends evenly, then its weights become zero
    return torch.softmax(scores.masked_fill(empty, 0.0), dim=-1).masked_fill(empty, 0.0)
