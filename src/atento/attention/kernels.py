"""Scaled dot-product attention: the plain equation, PyTorch's fused kernels, and the one place that chooses."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from atento.attention.dropout import Randomness, dropout_mask, fresh
from atento.attention.masks import LoweredMask, Mask, lower
from atento.errors import nearest

AnyMask = Mask | Tensor | LoweredMask | None


def attention_weights(
    q: Tensor,
    k: Tensor,
    *,
    mask: AnyMask = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    rows: Tensor | slice | None = None,
) -> Tensor:
    """The weights alone: softmax(q kᵀ · scale + bias) over the keys that may be attended to (A3).

    q (B,H,T,K), k (B,Hkv,S,K) -> (B,H,T,S) in float32 (float64 if q is); `rows` keeps only those queries. `scale`
    is 1/√K unless given (`scale=1` is the plain dot product, A4). Rows sum to 1; a row that may attend to nothing is 0.
    """
    lowered = lower(mask, q.shape[-2], k.shape[-2], q.device)
    if rows is not None:
        q = q[..., rows, :]
        bias = _rows(bias, rows)
        lowered = LoweredMask(
            _rows(lowered.allowed, rows), _rows(lowered.bias, rows), False, _rows(lowered.empty, rows)
        )
    return _weights(q, _heads(k, q.shape[1]), lowered, bias, scale)


def _rows(x: Tensor | None, rows: Tensor | slice) -> Tensor | None:
    """Those rows of (B,H,T,.); where one row stands for all queries it stays."""
    return x if x is None or x.shape[-2] == 1 else x[..., rows, :]


def _heads(x: Tensor, n_heads: int) -> Tensor:
    """Keys or values repeated so that each query head has its own: (B,Hkv,S,K) -> (B,H,S,K)."""
    return x if x.shape[1] == n_heads else x.repeat_interleave(n_heads // x.shape[1], dim=1)


def _weights(q: Tensor, k: Tensor, mask: LoweredMask, bias: Tensor | None, scale: float | None) -> Tensor:
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = (q * scale) @ k.transpose(-2, -1)  # (B,H,T,S)
    if scores.dtype in (torch.bfloat16, torch.float16):
        scores = scores.float()  # the softmax is exact in float32, and on a CPU faster there
    if bias is not None:
        scores = scores + bias
    if mask.bias is not None:
        scores = scores + mask.bias.to(scores.dtype)
    if mask.empty is None:
        return torch.softmax(scores, dim=-1)
    # softmax of nothing is NaN, and so is its gradient: such a row attends evenly, then its weights become zero
    return torch.softmax(scores.masked_fill(mask.empty, 0.0), dim=-1).masked_fill(mask.empty, 0.0)


def plain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: LoweredMask,
    bias: Tensor | None,
    value_bias: Tensor | None,
    scale: float | None,
    dropout: float,
    random: Randomness | None,
) -> Tensor:
    """The equation as it is written: softmax(Q Kᵀ / √d_k) V (Vaswani et al. 2017, eq. 1)."""
    weights = _weights(q, k, mask, bias, scale)
    if dropout:
        weights = weights * dropout_mask(weights.shape, dropout, fresh(random).key(), weights)
    weights = weights.to(v.dtype)
    out = weights @ v  # (B,H,T,Kv)
    if value_bias is not None:
        pattern = "bhts,tsk->bhtk" if value_bias.dim() == 3 else "bhts,bhtsk->bhtk"
        out = out + torch.einsum(pattern, weights, value_bias.to(v.dtype))
    return out


def fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: LoweredMask,
    bias: Tensor | None,
    value_bias: Tensor | None,
    scale: float | None,
    dropout: float,
    random: Randomness | None,
) -> Tensor:
    """PyTorch's fused attention: the same result without keeping the (T,S) weights."""
    if value_bias is not None or dropout:
        raise ValueError("the fused kernel takes neither `value_bias` nor `dropout`; use kernel='plain'")
    joined = mask.bias
    if bias is not None:
        joined = bias if joined is None else bias + joined
    if joined is not None and mask.empty is not None:
        joined = joined.masked_fill(mask.empty, 0.0)  # keep NaN out of the gradients too
    is_causal = mask.is_causal and bias is None
    attn_mask = None if joined is None or is_causal else joined.to(q.dtype)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, is_causal=is_causal, scale=scale)
    return out if mask.empty is None else out.masked_fill(mask.empty, 0.0)


KERNELS: dict[str, Callable[..., Tensor]] = {"plain": plain, "fused": fused}
_SHORT = 64 * 64  # below this many scores a head, a CPU's fused kernel costs more in set-up than it saves


def choose(q: Tensor, k: Tensor, value_bias: Tensor | None, dropout: float) -> str:
    """The kernel for a call, by what it needs: the only place where this is decided."""
    if value_bias is not None or dropout:
        return "plain"
    if q.device.type == "cpu" and (q.shape[-2] * k.shape[-2] <= _SHORT or q.dtype == torch.bfloat16):
        return "plain"
    return "fused"


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: AnyMask = None,
    bias: Tensor | None = None,
    value_bias: Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    random: Randomness | None = None,
    kernel: str = "auto",
) -> Tensor:
    """Attention of queries over keys and values (A3, A6, A7, A9).

    Args:
        q: (B,H,T,K). k: (B,Hkv,S,K). v: (B,Hkv,S,Kv); Hkv divides H (grouped heads).
        mask: a Mask or a boolean tensor that broadcasts to (B,H,T,S), True = may attend; never float.
        bias: (B|1,H|1,T,S), added to the scores after scaling.
        value_bias: (T,S,Kv) or (B|1,H|1,T,S,Kv), weighted and added to the output (Shaw, B5).
        scale: 1/√K unless given.
        dropout: probability on the weights, drawn from `random` (from PyTorch's generator when None).
        kernel: "auto", or one of `KERNELS`.

    Returns:
        (B,H,T,Kv); a row that may attend to nothing gives 0. Query i stands at key S - T + i.

    Raises:
        TypeError: the mask is not boolean. ValueError: head counts or kernel name cannot be.
    """
    if q.shape[1] % k.shape[1] or k.shape[1] != v.shape[1]:
        raise ValueError(
            f"key and value heads must be equal and divide the query heads: "
            f"got {k.shape[1]}, {v.shape[1]} and {q.shape[1]}"
        )
    name = choose(q, k, value_bias, dropout) if kernel == "auto" else kernel
    if name not in KERNELS:
        raise ValueError(f"unknown kernel {name!r}{nearest(name, ['auto', *KERNELS])}")
    lowered = lower(mask, q.shape[-2], k.shape[-2], q.device)
    k, v = _heads(k, q.shape[1]), _heads(v, q.shape[1])
    return KERNELS[name](q, k, v, lowered, bias, value_bias, scale, dropout, random)
