"""Scaled dot-product attention: the plain equation, PyTorch's fused kernels, and the one place that chooses."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from atento.attention.algebra import Mask, additive
from atento.attention.blocked import blocked
from atento.attention.dropout import Randomness, fresh, pair_dropout
from atento.attention.equation import Asked, weigh
from atento.attention.flex import flex
from atento.attention.lowering import LoweredMask, lower, nothing_allowed
from atento.attention.relative import Relations
from atento.attention.varlen import varlen
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
    relations: Relations | None = None,
) -> Tensor:
    """The weights alone: softmax(q kᵀ · scale + bias) over the keys that may be attended to (docs/notes.md#a3).

    q (B,H,T,K), k (B,Hkv,S,K) -> (B,H,T,S) in float32 (float64 if q is); `rows` keeps only those queries, and nothing
    is computed for the others. `scale` is 1/√K unless given (`scale=1` is the plain dot product); `relations` are
    relative position schemes. Rows sum to 1; a row that may attend to nothing is 0.

    Raises TypeError, ValueError: queries and keys that do not go together, or a mask that does not fit them.
    """
    _fit(q, k, k)
    lowered = lower(mask, q.shape[-2], k.shape[-2], q.device)
    _fit_mask(lowered, q, k)
    k = by_head(k, q.shape[1])
    if rows is not None and not isinstance(rows, Tensor | slice):
        raise TypeError(f"`rows` is a slice or a tensor of query numbers: got {type(rows).__name__}")
    if rows is None:
        return weigh(q, k, lowered.bias, lowered.empty, bias, relations, scale)
    allowed = lowered.strip(rows)
    return weigh(
        q[..., rows, :],
        k,
        None if allowed is None else additive(allowed),
        None if allowed is None else nothing_allowed(allowed),
        bias if bias is None or bias.shape[-2] == 1 else bias[..., rows, :],
        None if relations is None else relations.part(rows),
        scale,
    )


def by_head(x: Tensor, n_heads: int) -> Tensor:
    """Keys or values repeated so that each query head has its own: (B,Hkv,S,K) -> (B,H,S,K)."""
    return x if x.shape[1] == n_heads else x.repeat_interleave(n_heads // x.shape[1], dim=1)


def plain(q: Tensor, k: Tensor, v: Tensor, asked: Asked) -> Tensor:
    """The equation as it is written: softmax(Q Kᵀ / √d_k) V (Vaswani et al. 2017, eq. 1)."""
    mask, relations, value_bias = asked.mask, asked.relations, asked.value_bias
    weights = weigh(q, k, mask.bias, mask.empty, asked.bias, relations, asked.scale)
    if asked.dropout:
        weights = weights * pair_dropout(weights, asked.dropout, fresh(asked.random).key())
    weights = weights.to(v.dtype)
    out = weights @ v  # (B,H,T,Kv)
    if value_bias is not None:
        pattern = "bhts,tsk->bhtk" if value_bias.dim() == 3 else "bhts,bhtsk->bhtk"
        out = out + torch.einsum(pattern, weights, value_bias.to(v.dtype))
    added = None if relations is None else relations.values(weights)
    return out if added is None else out + added


def fused(q: Tensor, k: Tensor, v: Tensor, asked: Asked) -> Tensor:
    """PyTorch's fused attention: the same result without keeping the (T,S) weights."""
    if asked.value_bias is not None or asked.dropout or not asked.only_biases:
        raise ValueError("the fused kernel neither adds to values nor drops weights; use kernel='plain' or 'blocked'")
    mask, joined = asked.mask, asked.added(q)
    is_causal = mask.is_causal and joined is None
    if not is_causal and mask.bias is not None:
        joined = mask.bias if joined is None else joined + mask.bias.to(joined.dtype)
    empty = None if is_causal else mask.empty
    if joined is not None and empty is not None:
        joined = joined.masked_fill(empty, 0.0)  # keep NaN out of the gradients too
    attn_mask = None if joined is None else joined.to(q.dtype)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, is_causal=is_causal, scale=asked.scale)
    return out if empty is None else out.masked_fill(empty, 0.0)


Kernel = Callable[[Tensor, Tensor, Tensor, Asked], Tensor]
KERNELS: dict[str, Kernel] = {"plain": plain, "fused": fused, "blocked": blocked, "flex": flex, "varlen": varlen}
_SHORT = 64 * 64  # scores a head, up to which a fused kernel costs more in set-up than it saves
_LONG = 512 * 512  # scores a head, above which leaving out what a mask forbids saves more than strips cost
_FEW = 1 << 21  # scores of all heads, up to which a processor is quickest without strips; twice that in 16 bits


def choose(q: Tensor, k: Tensor, asked: Asked) -> str:
    """The kernel for a call, by what it needs: the only place where this is decided."""
    mask, relations, bias = asked.mask, asked.relations, asked.bias
    pairs, on_cpu = q.shape[-2] * k.shape[-2], q.device.type == "cpu"
    sixteen = on_cpu and q.dtype in (torch.bfloat16, torch.float16)
    few = q.shape[0] * q.shape[1] * pairs <= (2 * _FEW if sixteen else _FEW) if on_cpu else pairs <= _LONG
    if asked.value_bias is not None:
        return "plain"
    learned = (bias is not None and bias.requires_grad) or (relations is not None and bool(relations.parameters()))
    if asked.dropout or learned or not asked.only_biases:
        return "plain" if few else "blocked"
    if on_cpu and (pairs <= _SHORT or (sixteen and few)):
        return "plain"
    if pairs > _LONG and (relations is not None or not (mask.is_causal or mask.is_of_keys)):
        return "blocked"
    return "blocked" if sixteen and not mask.is_causal else "fused"


def _fit(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raises TypeError, ValueError: queries, keys and values that do not go together."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise TypeError(f"`{name}` must be a tensor (B,H,L,K): got {type(x).__name__}")
        if x.dim() != 4:
            raise ValueError(f"`{name}` must have four dimensions (B,H,L,K): got {tuple(x.shape)}")
    if len(k) != len(v) or (len(q) != len(k) and 1 not in (len(q), len(k))):
        raise ValueError(f"batch rows of q, k and v must agree, or be 1: got {len(q)}, {len(k)} and {len(v)}")
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError(f"q, k and v must be of one type: got {q.dtype}, {k.dtype} and {v.dtype}")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1] or k.shape[1] != v.shape[1]:
        raise ValueError(
            f"key and value heads must be equal and divide the query heads: "
            f"got {k.shape[1]}, {v.shape[1]} and {q.shape[1]}"
        )
    if q.shape[-1] != k.shape[-1] or q.shape[-1] == 0:
        raise ValueError(f"queries and keys must be equally wide, 1 or more: got {q.shape[-1]} and {k.shape[-1]}")
    if k.shape[-2] != v.shape[-2]:
        raise ValueError(f"there must be a value for each key: got {k.shape[-2]} keys and {v.shape[-2]} values")


def _fit_mask(lowered: LoweredMask, q: Tensor, k: Tensor) -> None:
    """Raises ValueError: a mask made for other batch rows or heads than those of q and k (B or 1,H,L,K)."""
    mask, rows = lowered.mask, max(len(q), len(k))
    if isinstance(mask, Mask):
        for what, own, got in (("batch rows", mask.batch, rows), ("heads", mask.heads, q.shape[1])):
            if own not in (1, got):
                raise ValueError(f"the mask {mask.name} is for {own} {what}: got {got}")
    elif mask is not None:
        _fit_scores("mask", mask.shape, (rows, *q.shape[1:3], lowered.key_len))


def _fit_scores(name: str, shape: torch.Size, scores: tuple[int, ...]) -> None:
    """Raises ValueError: that shape does not broadcast to (B,H,T,S)."""
    if len(shape) > 4 or any(own not in (1, full) for own, full in zip(reversed(shape), reversed(scores))):
        raise ValueError(f"`{name}` must broadcast to {scores}, (B,H,T,S): got {tuple(shape)}")


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
    relations: Relations | None = None,
    kernel: str = "auto",
) -> Tensor:
    """Attention of queries over keys and values (docs/notes.md#a3, #a6, #a7, #a9).

    Args:
        q: (B,H,T,K). k: (B,Hkv,S,K). v: (B,Hkv,S,Kv); Hkv divides H (grouped heads). B may be 1 in q, or in k and v.
        mask: a Mask or a boolean tensor that broadcasts to (B,H,T,S), True = may attend; never float.
        bias: (B|1,H|1,T,S), added to the scores after scaling.
        value_bias: (T,S,Kv) or (B|1,H|1,T,S,Kv), weighted and added to the output (Shaw; docs/notes.md#b5).
        scale: 1/√K unless given.
        dropout: probability on the weights, drawn from `random` (from PyTorch's generator when None).
        relations: relative position schemes, which add to scores and values.
        kernel: "auto", or one of `KERNELS`.

    Returns:
        (B,H,T,Kv); a row that may attend to nothing gives 0. Query i stands at key S - T + i.

    Raises:
        TypeError: the mask is not boolean, or q, k and v are not tensors of one type. ValueError: their sizes, the
            dropout or the kernel's name cannot be.
    """
    _fit(q, k, v)
    if not 0.0 <= dropout <= 1.0:
        raise ValueError(f"`dropout` must lie in [0, 1]: got {dropout}")
    lowered = lower(mask, q.shape[-2], k.shape[-2], q.device)
    _fit_mask(lowered, q, k)
    if len(q) != len(k):  # one row of queries for many of keys, or the other way round
        q, k, v = (x.expand(max(len(q), len(k)), *x.shape[1:]) for x in (q, k, v))
    if bias is not None:
        _fit_scores("bias", bias.shape, (*q.shape[:3], k.shape[-2]))
        bias = bias.view((1,) * (4 - bias.dim()) + bias.shape)
        bias = bias.expand(*bias.shape[:3], k.shape[-2])
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    if not math.isfinite(scale):
        raise ValueError(f"`scale` must be finite: got {scale}")
    if scale == 0.0 and relations is None:  # all scores 0; PyTorch's kernel gives NaN for it
        q, scale = q * 0.0, 1.0
    elif scale == 0.0 and kernel in ("auto", "fused"):
        kernel = "blocked"
    asked = Asked(lowered, bias, value_bias, relations, scale, dropout, random)
    name = choose(q, k, asked) if kernel == "auto" else kernel
    if name not in KERNELS:
        raise ValueError(f"unknown kernel {name!r}{nearest(str(name), ['auto', *KERNELS])}")
    return KERNELS[name](q, by_head(k, q.shape[1]), by_head(v, q.shape[1]), asked)
