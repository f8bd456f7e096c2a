"""The notes' attention and position listings in their call shapes, on the library's own attention (K1, K2, K3)."""

from math import prod

import torch
from torch import Tensor, nn

from atento.attention import attend, attention_weights
from atento.attention.masks import Mask
from atento.attention.positions import sinusoids
from atento.errors import UsageError


def self_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Mask | Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """softmax(query keyᵀ / √d_k) value, and the weights (K1, A3).

    The notes' listing knows no mask, so a batch with padding comes out wrong there (spec error 17).

    Args:
        query: (...,T,K). key: (...,S,K). value: (...,S,Kv); the same leading sizes, none at all among them.
        mask: a Mask or a boolean tensor that broadcasts to (...,T,S), True = may attend.

    Returns:
        output (...,T,Kv) and weights (...,T,S); a row that may attend to nothing is 0.

    Raises:
        TypeError: the mask is not boolean.
    """
    lead, rows, keys = query.shape[:-2], query.shape[-2], key.shape[-2]
    q, k, v = (x.reshape(prod(lead), 1, *x.shape[-2:]) for x in (query, key, value))  # one head
    if isinstance(mask, Tensor):
        mask = mask.expand(*lead, rows, keys).reshape(prod(lead), 1, rows, keys)
    weights = attention_weights(q, k, mask=mask).to(value.dtype)
    output = attend(q, k, v, mask=mask)
    return output.reshape(*lead, rows, value.shape[-1]), weights.reshape(*lead, rows, keys)


def attention(Q: Tensor, K: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
    """The context vectors and the weights of queries over keys and values (K2); shapes as in `self_attention`."""
    return self_attention(Q, K, V)


class PositionalEncoding(nn.Module):
    """Adds the sinusoid of its position to each token (K3, B1).

    The notes' class forgets an import, fails where `d_model` is odd, and on batch-first input takes the batch's
    index for the position (spec error 56).
    """

    pe: Tensor

    def __init__(self, d_model: int, max_len: int = 5000, *, batch_first: bool = True) -> None:
        super().__init__()
        self.d_model, self.max_len, self.batch_first = d_model, max_len, batch_first
        self.register_buffer("pe", sinusoids(torch.arange(max_len), d_model), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """x (B,L,D), or (L,B,D) with `batch_first=False`, or one sequence (L,D) -> the same shape.

        Raises:
            UsageError: another width than `d_model`, or a sequence longer than `max_len`.
        """
        length = x.shape[1 if self.batch_first and x.dim() == 3 else 0]
        if x.dim() not in (2, 3) or x.shape[-1] != self.d_model:
            raise UsageError(f"`x` must be (B,L,D) or (L,D) with D = `d_model` {self.d_model}: got {tuple(x.shape)}")
        if length > self.max_len:
            raise UsageError(f"a sequence must not be longer than `max_len` {self.max_len}: got {length} positions")
        pe = self.pe[:length].to(x.dtype)  # (L,D)
        return x + (pe if self.batch_first or x.dim() == 2 else pe.unsqueeze(1))
