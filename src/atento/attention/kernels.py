"""Scaled dot-product attention: `attend`, `attention_weights`, the kernels, and the choice between them."""

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from atento.attention.algebra import Context, Mask, TypedFunction, additive
from atento.attention.blocked import blocked
from atento.attention.cuda_kernels import RowMask, flex, seeded, varlen
from atento.attention.dropout import Key, Randomness, fresh, keep_prob, pair_dropout
from atento.attention.equation import weigh
from atento.attention.prepared_mask import AttentionArgs, PreparedMask, nothing_allowed, prepare_mask
from atento.attention.relative_terms import RelativeTerms
from atento.base.errors import nearest

AnyMask = Mask | Tensor | PreparedMask | None


class BlockRouting(Protocol):
    """Chooses the blocks of keys that each block of queries attends to (see `block_router.BlockRouter`)."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, mask: AnyMask = None, scale: float | None = None) -> Tensor:
        """Attention over the chosen blocks: q (B,H,T,K), k (B,H,S,K), v (B,H,S,Kv) -> (B,H,T,Kv)."""

    def allowed(self, q: Tensor, k: Tensor, mask: AnyMask = None) -> Tensor:
        """The pairs that are both chosen and allowed by `mask`, boolean (B,H,T,S)."""


def attention_weights(
    q: Tensor,
    k: Tensor,
    *,
    mask: AnyMask = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    rows: Tensor | slice | None = None,
    relative: RelativeTerms | None = None,
) -> Tensor:
    """Attention weights: softmax(q kᵀ · scale + bias) over the allowed keys (docs/notes.md#a3).

    Args:
        q: queries (B,H,T,K).
        k: keys (B,Hkv,S,K); Hkv divides H.
        mask: a Mask, or a boolean tensor that broadcasts to (B,H,T,S), True = may attend.
        bias: (B|1,H|1,T|1,S), added to the scores after scaling.
        scale: 1/√K if not given; 1 gives the plain dot product.
        rows: the queries to compute weights for, as a slice or a tensor of indices; all if not given.
        relative: relative position schemes, which add to the scores.

    Returns:
        (B,H,T,S) in float32 (float64 if q is). Each row sums to 1; a row that may attend to nothing is 0.

    Raises:
        TypeError: an argument has the wrong type, or the mask is not boolean.
        ValueError: the shapes do not fit each other.
    """
    _check_shapes(q, k, k)
    prepared = prepare_mask(mask, q.shape[-2], k.shape[-2], q.device)
    _check_mask(prepared, q, k)
    k = repeat_kv(k, q.shape[1])  # (B,H,S,K)
    if rows is not None and not isinstance(rows, Tensor | slice):
        raise TypeError(f"`rows` must be a slice or a tensor of query indices: got {type(rows).__name__}")
    if rows is None:
        return weigh(q, k, prepared.bias, prepared.empty, bias, relative, scale)
    allowed = prepared.for_queries(rows)  # of these queries alone
    return weigh(
        q[..., rows, :],
        k,
        None if allowed is None else additive(allowed),
        None if allowed is None else nothing_allowed(allowed),
        bias if bias is None or bias.shape[-2] == 1 else bias[..., rows, :],
        None if relative is None else relative.for_queries(rows),
        scale,
    )


def repeat_kv(x: Tensor, n_heads: int) -> Tensor:
    """Repeat grouped keys or values for each query head: (B,Hkv,S,K) -> (B,H,S,K)."""
    return x if x.shape[1] == n_heads else x.repeat_interleave(n_heads // x.shape[1], dim=1)


def plain(q: Tensor, k: Tensor, v: Tensor, args: AttentionArgs) -> Tensor:
    """The equation as written: softmax(Q Kᵀ / √d_k) V (Vaswani et al. 2017, eq. 1)."""
    mask, relative, value_bias = args.mask, args.relative, args.value_bias
    weights = weigh(q, k, mask.bias, mask.empty, args.bias, relative, args.scale)  # (B,H,T,S), at least in float32
    if args.dropout:
        weights = weights * pair_dropout(weights, args.dropout, fresh(args.random).key())
    weights = weights.to(v.dtype)  # as narrow as the values, for the product
    out = weights @ v  # (B,H,T,Kv)
    if value_bias is not None:
        pattern = "bhts,tsk->bhtk" if value_bias.dim() == 3 else "bhts,bhtsk->bhtk"
        out = out + torch.einsum(pattern, weights, value_bias.to(v.dtype))
    added = None if relative is None else relative.values(weights)
    return out if added is None else out + added


def sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    grouped: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """PyTorch's fused attention; on a GPU any of its kernels but cuDNN's.

    In 16 bits PyTorch prefers cuDNN's on recent cards. It is compiled for each new shape, and batches of text have a
    new one each: on an H100, 8.8 ms a call forward and 7.2 ms backward, 0.9 of the time of an update.

    Args:
        q: queries, (B,H,T,K).
        k: keys, (B,Hkv,S,K); H heads unless `grouped`.
        v: values, (B,Hkv,S,Kv).
        mask: as `attn_mask` of PyTorch.
        causal: as `is_causal` of PyTorch.
        scale: of the scores.
        grouped: several heads of queries share one of keys.
        dropout: probability with which a weight is dropped, by the numbers of the device's generator.

    Returns:
        (B,H,T,Kv).
    """
    options: dict[str, Any] = {"is_causal": causal, "scale": scale, "enable_gqa": grouped, "dropout_p": dropout}
    attend = partial(F.scaled_dot_product_attention, q, k, v, attn_mask=mask, **options)
    if q.device.type == "cpu":
        return attend()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        return attend()


def fused(q: Tensor, k: Tensor, v: Tensor, args: AttentionArgs) -> Tensor:
    """PyTorch's fused attention: the same result, without the (T,S) weights in memory.

    On a GPU it drops weights too: a function of the key of dropout, as in the other kernels, but other weights.
    """
    if args.value_bias is not None or not args.only_biases or (args.dropout and not q.is_cuda):
        raise ValueError(
            "the fused kernel adds nothing to values, and drops weights on a GPU alone; use kernel='plain' or 'blocked'"
        )
    mask, bias = args.mask, args.score_bias(q, k)
    is_causal = mask.is_causal and bias is None
    if not is_causal and mask.bias is not None:  # one tensor, as PyTorch takes it
        bias = mask.bias if bias is None else bias + mask.bias.to(bias.dtype)
    empty = None if is_causal else mask.empty
    if bias is not None and empty is not None:
        bias = bias.masked_fill(empty, 0.0)  # a row of -inf would give NaN, also in the gradients
    attn_mask = None if bias is None else bias.to(q.dtype)
    compute = partial(sdpa, q, k, v, attn_mask, causal=is_causal, scale=args.scale, dropout=args.dropout)
    out = seeded(q.device, fresh(args.random).key(), compute) if args.dropout else compute()
    return out if empty is None else out.masked_fill(empty, 0.0)


def narrow(q: Tensor, k: Tensor, v: Tensor, args: AttentionArgs) -> Tensor:
    """softmax(q kᵀ · scale) v for q (B,H,T,K), k (B,H,S,K) and v (B,H,S,Kv) in bfloat16 -> (B,H,T,Kv), for training."""
    if args.bias is not None or args.value_bias is not None or args.relative is not None:
        raise ValueError("the narrow kernel adds nothing to scores and values; use kernel='plain' or 'blocked'")
    return cast(Tensor, _Narrow.apply((args, fresh(args.random).key() if args.dropout else 0), q, k, v))


class _Narrow(TypedFunction):
    """Weights in bfloat16, whose softmax is computed in float32; the call is the arguments and the key of dropout.

    A weight is never negative, so the sign of its number is free: the bits of a weight that dropout drops are inverted.
    So two bytes a pair are kept. Autograd would keep weights and mask in float32 and their product: ten.
    """

    @staticmethod
    def forward(
        ctx: Context[tuple[AttentionArgs, Key]], call: tuple[AttentionArgs, Key], q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        ctx.call, (args, key), planes = call, call, q.shape[:2]
        q, k, v = (q * args.scale).flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)  # (B·H,L,K)
        scores = torch.bmm(q, k.mT).unflatten(0, planes)  # (B,H,T,S)
        bias, empty = args.mask.bias, args.mask.empty
        if bias is not None:
            scores += bias.to(scores.dtype)  # 0 or -inf, which are exact
        if empty is not None:
            scores.masked_fill_(empty, 0.0)  # finite scores, for a softmax without NaN
        weights = kept = torch.softmax(scores, dim=-1)  # `kept`: what dropout leaves
        if empty is not None:
            weights.masked_fill_(empty, 0.0)
        if args.dropout:
            bits = weights.view(torch.int16)  # a view: what is written here is written in `weights`
            mask = pair_dropout(weights, args.dropout, key).view(torch.int16)
            inverts = mask.sub_(1).bitwise_right_shift_(15)  # all ones if dropped, else 0
            bits ^= inverts  # the sign bit marks what was dropped
            kept = inverts.bitwise_not_().bitwise_and_(bits).view(weights.dtype)  # 0 where dropped
        ctx.save_for_backward(q, k, v, weights)
        return cast(Tensor, (torch.bmm(kept.flatten(0, 1), v) / keep_prob(args.dropout)).unflatten(0, planes))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Context[tuple[AttentionArgs, Key]], grad: Tensor) -> tuple[Tensor | None, ...]:
        (args, _), (q, k, v, weights) = ctx.call, ctx.saved_tensors
        planes, weights = grad.shape[:2], weights.flatten(0, 1)  # (B·H,T,S)
        kept, grad = weights, (grad / keep_prob(args.dropout)).flatten(0, 1)
        dweights = torch.bmm(grad, v.mT)  # (B·H,T,S)
        if args.dropout:  # the sign of a weight tells whether it was dropped
            bits = weights.view(torch.int16)
            inverts = bits.bitwise_right_shift(15)  # all ones if dropped, else 0
            weights = (bits ^ inverts).view(weights.dtype)  # the weights before dropout
            selects = inverts.bitwise_not_()
            dweights.view(torch.int16).bitwise_and_(selects)  # no gradient where dropped
            kept = selects.bitwise_and_(bits).view(weights.dtype)
        dv = torch.bmm(kept.mT, grad)  # (B·H,S,Kv)
        dscores = torch._softmax_backward_data(dweights, weights, -1, weights.dtype)
        dq, dk = torch.bmm(dscores, k) * args.scale, torch.bmm(dscores.mT, q)  # q is saved with its scale
        return None, *(x.unflatten(0, planes) for x in (dq, dk, dv))


Kernel = Callable[[Tensor, Tensor, Tensor, AttentionArgs], Tensor]
KERNELS: dict[str, Kernel] = {kernel.__name__: kernel for kernel in (plain, fused, blocked, narrow, flex, varlen)}
_SHORT = 64 * 64  # pairs (T·S): up to here the set-up of a fused kernel costs more than it saves
_LONG = 512 * 512  # pairs (T·S): above this, skipping masked keys saves more than the blocks cost
_FEW = 1 << 21  # scores of all heads (B·H·T·S): up to here a CPU is fastest without blocks; twice as many in 16 bits
_NARROW = 64  # keys: the softmax of shorter rows is faster in float32
_MOST_NARROW = 1 << 24  # of all heads (B·H·T·S): 32 MiB are kept


def choose(q: Tensor, k: Tensor, args: AttentionArgs) -> str:
    """The name of the kernel for a call. All callers choose here, by size, device, mask and position terms."""
    mask, relative, bias = args.mask, args.relative, args.bias
    pairs, on_cpu = q.shape[-2] * k.shape[-2], q.device.type == "cpu"
    half = on_cpu and q.dtype in (torch.bfloat16, torch.float16)  # types of 16 bits
    scores, adds = q.shape[0] * q.shape[1] * pairs, bias is not None or relative is not None
    few = scores <= (2 * _FEW if half else _FEW) if on_cpu else pairs <= _LONG
    if isinstance(mask, RowMask):
        return "varlen"
    if args.value_bias is not None:
        return "plain"  # no other kernel supports it
    learns = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad) and not torch.compiler.is_compiling()
    fits = on_cpu and pairs <= _LONG and k.shape[-2] >= _NARROW and scores <= _MOST_NARROW
    if fits and q.dtype == torch.bfloat16 and learns and not adds:
        return "narrow"
    learned = (bias is not None and bias.requires_grad) or (relative is not None and bool(relative.parameters()))
    if args.dropout and q.is_cuda and not adds and not torch.compiler.is_compiling():
        return "fused"
    if args.dropout or learned or not args.only_biases:
        return "plain" if few else "blocked"  # fused kernels lack this dropout and the terms on values
    if on_cpu and (pairs <= _SHORT or (half and few)):
        return "plain"
    if pairs > _LONG and (relative is not None or not (mask.is_causal or mask.is_per_key)):
        return "blocked"  # it skips masked keys and never makes a (T,S) bias
    return "blocked" if half and not mask.is_causal else "fused"


@cache
def has_tiles() -> bool:
    """Whether the processor has AMX, whose products PyTorch's fused attention computes with."""
    has_amx = bool(getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)())
    return has_amx and torch.backends.cpu.get_cpu_capability() == "AVX512"  # a variable may limit it


def choose_for_reading(length: int, mask: PreparedMask, relative: RelativeTerms | None) -> str:
    """The name of the kernel for rows of `length` that are read without gradients in a process that never trains them.

    With AMX, PyTorch's fused one takes 0.3 to 0.9 of the others' time at any size; its backward pass in bfloat16 takes
    several times as long. In a network it would make the last digits depend on whether gradients are wanted.
    """
    skips = length * length > _LONG and not (mask.is_causal or mask.is_per_key)
    return "fused" if has_tiles() and relative is None and not skips else "auto"


def _check_shapes(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raises TypeError or ValueError if q, k and v do not fit each other."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise TypeError(f"`{name}` must be a tensor (B,H,L,K): got {type(x).__name__}")
        if x.dim() != 4:
            raise ValueError(f"`{name}` must have four dimensions (B,H,L,K): got {tuple(x.shape)}")
    if len(k) != len(v) or (len(q) != len(k) and 1 not in (len(q), len(k))):
        raise ValueError(f"batch rows of q, k and v must agree, or be 1: got {len(q)}, {len(k)} and {len(v)}")
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError(f"q, k and v must have the same dtype: got {q.dtype}, {k.dtype} and {v.dtype}")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1] or k.shape[1] != v.shape[1]:
        raise ValueError(
            f"key and value heads must be equal and divide the query heads: "
            f"got {k.shape[1]}, {v.shape[1]} and {q.shape[1]}"
        )
    if q.shape[-1] != k.shape[-1] or q.shape[-1] == 0:
        raise ValueError(f"queries and keys must have the same width, 1 or more: got {q.shape[-1]} and {k.shape[-1]}")
    if k.shape[-2] != v.shape[-2]:
        raise ValueError(f"there must be a value for each key: got {k.shape[-2]} keys and {v.shape[-2]} values")


def _check_mask(prepared: PreparedMask, q: Tensor, k: Tensor) -> None:
    """Raises ValueError if the mask was made for another number of batch rows or heads than q and k have."""
    mask, rows = prepared.mask, max(len(q), len(k))
    if isinstance(mask, Mask):
        for dimension, expected, actual in (("batch rows", mask.batch, rows), ("heads", mask.heads, q.shape[1])):
            if expected not in (1, actual):  # 1: for all
                raise ValueError(f"the mask {mask.name} is for {expected} {dimension}: got {actual}")
    elif mask is not None:
        _check_broadcast("mask", mask.shape, (rows, *q.shape[1:3], prepared.key_len))


def _check_broadcast(name: str, shape: torch.Size, scores: tuple[int, ...]) -> None:
    """Raises ValueError if `shape` does not broadcast to `scores`, (B,H,T,S)."""
    if len(shape) > 4 or any(size not in (1, full) for size, full in zip(reversed(shape), reversed(scores))):
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
    relative: RelativeTerms | None = None,
    kernel: str = "auto",
) -> Tensor:
    """Scaled dot-product attention (docs/notes.md#a3, #a6, #a7, #a9).

    With T queries and S keys, query i is at key position S - T + i, as in a cached step.

    Args:
        q: queries (B,H,T,K).
        k: keys (B,Hkv,S,K); Hkv divides H (grouped-query attention). B may be 1 in q, or in k and v.
        v: values (B,Hkv,S,Kv).
        mask: a Mask, or a boolean tensor that broadcasts to (B,H,T,S), True = may attend; never float.
        bias: (B|1,H|1,T,S), added to the scores after scaling.
        value_bias: (T,S,Kv) or (B|1,H|1,T,S,Kv), weighted and added to the output (Shaw; docs/notes.md#b5).
        scale: 1/√K if not given.
        dropout: dropout probability of the weights.
        random: the randomness of dropout; PyTorch's global generator if not given.
        relative: relative position schemes, which add to scores and values.
        kernel: "auto", or a name in `KERNELS`.

    Returns:
        (B,H,T,Kv); a row that may attend to nothing gives 0.

    Raises:
        TypeError: the mask is not boolean, or q, k and v are not tensors of one dtype.
        ValueError: the shapes do not fit each other, or `dropout`, `scale` or `kernel` is not valid.
    """
    _check_shapes(q, k, v)
    if not 0.0 <= dropout <= 1.0:
        raise ValueError(f"`dropout` must lie in [0, 1]: got {dropout}")
    prepared = prepare_mask(mask, q.shape[-2], k.shape[-2], q.device)
    _check_mask(prepared, q, k)
    if len(q) != len(k):  # one batch row of queries for many of keys, or the reverse
        q, k, v = (x.expand(max(len(q), len(k)), *x.shape[1:]) for x in (q, k, v))
    if bias is not None:
        _check_broadcast("bias", bias.shape, (*q.shape[:3], k.shape[-2]))
        bias = bias.view((1,) * (4 - bias.dim()) + bias.shape)  # to four dimensions, (B|1,H|1,T|1,S)
        bias = bias.expand(*bias.shape[:3], k.shape[-2])  # kernels index its keys
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    if not math.isfinite(scale):
        raise ValueError(f"`scale` must be finite: got {scale}")
    if scale == 0.0 and relative is None:  # all scores are 0; PyTorch's kernel gives NaN for scale 0
        q, scale = q * 0.0, 1.0
    elif scale == 0.0 and kernel in ("auto", "fused"):
        kernel = "blocked"
    args = AttentionArgs(prepared, bias, value_bias, relative, scale, dropout, random)
    name = choose(q, k, args) if kernel == "auto" else kernel
    if name not in KERNELS:
        raise ValueError(f"unknown kernel {name!r}{nearest(str(name), ['auto', *KERNELS])}")
    return KERNELS[name](q, repeat_kv(k, q.shape[1]), repeat_kv(v, q.shape[1]), args)
