"""The attention listings of the notes, with the attention of the library (docs/notes.md#k1, #k2)."""

from math import prod

from torch import Tensor

from atento.attention import attend, attention_weights
from atento.attention.algebra import Mask


def self_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Mask | Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return softmax(query keyᵀ / √d_k) value, and the weights (K1, A3).

    The notes' listing has no mask, so it is wrong for a batch with padding (error 17).

    Args:
        query: (...,T,K).
        key: (...,S,K).
        value: (...,S,Kv); the leading dimensions are the same and may be absent.
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
    """Return the context vectors and the weights of queries over keys and values (K2).

    Shapes as in `self_attention`.
    """
    return self_attention(Q, K, V)
