"""The small parts a block is made of: residual wiring, feed-forward network, token embedding."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atento.attention.dropout import Randomness, add_dropout, dropout, fresh

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu}


class FeedForward(nn.Module):
    """max(0, x W1 + b1) W2 + b2 at every position alike (Vaswani et al. 2017, 3.3; C2); GELU as an option."""

    def __init__(self, d_model: int, d_ff: int, *, activation: str = "relu", dropout: float = 0.0) -> None:
        super().__init__()
        self.inner = nn.Linear(d_model, d_ff)
        self.outer = nn.Linear(d_ff, d_model)
        self.activation = ACTIVATIONS[activation]
        self.dropout = dropout

    def forward(self, x: Tensor, random: Randomness | None = None) -> Tensor:
        """(B,L,D) -> (B,L,D)."""
        x = self.activation(self.inner(x))  # (B,L,D) -> (B,L,F)
        if self.training and self.dropout:
            x = dropout(x, self.dropout, fresh(random))
        out: Tensor = self.outer(x)
        return out


class Residual(nn.Module):
    """Wires a sublayer into the stream (C1): post-norm, norm(x + f(x)), as in the paper; pre-norm, x + f(norm(x))."""

    def __init__(self, d_model: int, *, place: str, eps: float, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d_model, eps=eps)
        self.place, self.dropout = place, dropout

    def before(self, x: Tensor) -> Tensor:
        """What the sublayer reads, (B,L,D)."""
        normed: Tensor = self.norm(x) if self.place == "pre" else x
        return normed

    def after(self, x: Tensor, fx: Tensor, random: Randomness | None) -> Tensor:
        """What goes on, (B,L,D), from the stream `x` and the sublayer's output `fx`."""
        if self.training and self.dropout:
            out = add_dropout(x, fx, self.dropout, fresh(random))
        else:
            out = x + fx
        normed: Tensor = self.norm(out) if self.place == "post" else out
        return normed


class TokenEmbedding(nn.Module):
    """ids -> vectors, times √D where the paper scales them; its weight may also be the output matrix (C4, C5)."""

    def __init__(self, vocab_size: int, d_model: int, *, scale: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, d_model))
        self.scale = d_model**0.5 if scale else 1.0

    def forward(self, ids: Tensor) -> Tensor:
        """(B,L) -> (B,L,D)."""
        x = F.embedding(ids, self.weight)
        return x * self.scale if self.scale != 1.0 else x
