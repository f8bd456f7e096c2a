"""Attention in strips of queries, computed again in the backward pass: memory linear in length for anything (A19).

Each strip is the plain equation on a few rows, over the keys that its mask can reach and no others, so a window, packed
documents or kept squares cost what they allow. Nothing of size (T,S) is kept: the backward pass makes each strip's
weights anew (Rabe & Staats 2021; Dao et al. 2022), with the same dropout, which is a function of the pair's place.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from atento.attention.dropout import Randomness, fresh, pair_dropout
from atento.attention.equation import weigh
from atento.attention.lowering import LoweredMask, nothing_allowed, take
from atento.attention.masks import Span, additive
from atento.attention.relative import Relations

_STRIP = 1 << 20  # scores in a strip: some megabytes, which stay in a processor's cache


@dataclass(frozen=True)
class _Call:
    """What does not change from strip to strip."""

    mask: LoweredMask
    relations: Relations | None
    scale: float
    dropout: float
    key: int
    lengths: tuple[int, int]

    @property
    def learned(self) -> list[Tensor]:
        """What the relative schemes learn."""
        return [] if self.relations is None else self.relations.parameters()


@dataclass(frozen=True)
class _Strip:
    """Queries first ... last - 1 of batch row `row` (None: of all), and the keys they may see."""

    queries: slice
    keys: Span
    row: int | None

    def rows(self, x: Tensor) -> Tensor:
        """The batch row's part of x, whose first size may be 1."""
        return x if self.row is None or x.shape[0] == 1 else x[self.row : self.row + 1]


def blocked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: LoweredMask,
    bias: Tensor | None,
    value_bias: Tensor | None,
    relations: Relations | None,
    scale: float,
    dropout: float,
    random: Randomness | None,
) -> Tensor:
    """The plain equation, strip by strip; q (B,H,T,K), k (B,H,S,K), v (B,H,S,Kv) -> (B,H,T,Kv)."""
    if value_bias is not None:
        raise ValueError("the blocked kernel takes no `value_bias`, which is a square itself; use kernel='plain'")
    while bias is not None and bias.dim() < 4:
        bias = bias.unsqueeze(0)
    call = _Call(mask, relations, scale, dropout, fresh(random).key() if dropout else 0, (q.shape[-2], k.shape[-2]))
    out: Tensor = _Blocked.apply(call, q, k, v, bias, *call.learned)  # type: ignore[no-untyped-call]
    return out


def _strips(call: _Call, batch: int, n_heads: int) -> Iterator[_Strip]:
    """The strips of a call, leaving out those that see nothing."""
    query_len = call.lengths[0]
    for row in range(batch) if call.mask.by_row and batch > 1 else (None,):
        together = n_heads * (batch if row is None else 1)
        middle = call.mask.reach(query_len // 2, min(query_len // 2 + 64, query_len), row)
        size = max(16, min(512, _STRIP // max(1, together * _count(middle))))
        first = 0
        while first < query_len:
            last = min(first + size, query_len)
            keys = call.mask.reach(first, last, row)
            while last - first > 16 and together * (last - first) * _count(keys) > 4 * _STRIP:
                last = first + max(16, (last - first) // 2)  # these see more than those in the middle do
                keys = call.mask.reach(first, last, row)
            if _count(keys):
                yield _Strip(slice(first, last), keys, row)
            first = last


def _count(keys: Span) -> int:
    """How many keys those are."""
    return len(keys) if isinstance(keys, Tensor) else keys[1] - keys[0]


def _weights(call: _Call, strip: _Strip, q: Tensor, k: Tensor, bias: Tensor | None) -> Tensor:
    """The weights of a strip: q (B,H,t,K), k (B,H,s,K) -> (B,H,t,s)."""
    allowed = call.mask.strip(strip.queries, strip.keys, strip.row)
    return weigh(
        q,
        k,
        None if allowed is None else additive(allowed),
        None if allowed is None else nothing_allowed(allowed),
        bias,
        None if call.relations is None else call.relations.part(strip.queries, strip.keys, strip.row),
        call.scale,
    )


def _kept(call: _Call, strip: _Strip, weights: Tensor) -> Tensor:
    """The dropout of a strip, as the plain equation has it for those pairs."""
    return pair_dropout(weights, call.dropout, call.key, strip.queries, strip.keys, strip.row, call.lengths)


def _bias(strip: _Strip, bias: Tensor | None) -> Tensor | None:
    """The strip's part of a bias (B|1,H|1,T|1,S)."""
    if bias is None:
        return None
    part = strip.rows(bias)
    return take(part if part.shape[-2] == 1 else part[..., strip.queries, :], strip.keys, dim=-1)


def _add(total: Tensor, strip: _Strip, part: Tensor) -> None:
    """Add to the strip's keys of a gradient (B,H,S,.)."""
    total, part = strip.rows(total), part.to(total.dtype)
    if isinstance(strip.keys, Tensor):
        total.index_add_(-2, strip.keys.to(part.device), part)
    else:
        total[..., slice(*strip.keys), :] += part


class _Blocked(torch.autograd.Function):
    """Forward strip by strip; backward strip by strip, weights made anew."""

    @staticmethod
    def forward(
        ctx: Any, call: _Call, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, *learned: Tensor
    ) -> Tensor:
        ctx.call = call
        ctx.save_for_backward(q, k, v, bias)
        out = q.new_zeros(*q.shape[:-1], v.shape[-1])
        for strip in _strips(call, *q.shape[:2]):
            keys, values = (take(strip.rows(x), strip.keys, dim=-2) for x in (k, v))
            weights = _weights(call, strip, strip.rows(q)[..., strip.queries, :], keys, _bias(strip, bias))
            if call.dropout:
                weights = weights * _kept(call, strip, weights)
            weights = weights.to(v.dtype)
            read = weights @ values
            if call.relations is not None and call.relations.adds_values:
                read = read + _added(call, strip, weights)
            strip.rows(out)[..., strip.queries, :] = read
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        call: _Call = ctx.call
        q, k, v, bias = ctx.saved_tensors
        needs_bias = bias is not None and ctx.needs_input_grad[4]
        learned = call.learned
        dq, dk, dv = torch.zeros_like(q), _sum_like(k), _sum_like(v)
        dbias, dlearned = _sum_like(bias) if needs_bias else None, [_sum_like(parameter) for parameter in learned]
        for strip in _strips(call, *q.shape[:2]):
            keys, values = (take(strip.rows(x), strip.keys, dim=-2) for x in (k, v))
            upstream = strip.rows(grad)[..., strip.queries, :]
            part = _bias(strip, bias)
            with torch.enable_grad():
                queries = strip.rows(q)[..., strip.queries, :].detach().requires_grad_()
                keys = keys.detach().requires_grad_()
                part = None if part is None else part.detach().requires_grad_(needs_bias)
                weights = _weights(call, strip, queries, keys, part)
                kept = _kept(call, strip, weights.detach()) if call.dropout else None
                used = weights if kept is None else weights * kept
                extra = _added(call, strip, used.to(v.dtype)) if call.relations and call.relations.adds_values else None
            _add(dv, strip, used.detach().to(v.dtype).transpose(-2, -1) @ upstream)
            dweights = (upstream @ values.transpose(-2, -1)).to(weights.dtype)
            into = [queries, keys, *learned, *([part] if needs_bias and part is not None else [])]
            found = torch.autograd.grad(
                [weights] if extra is None else [weights, extra],
                into,
                [dweights if kept is None else dweights * kept] + ([] if extra is None else [upstream]),
                allow_unused=True,
            )
            strip.rows(dq)[..., strip.queries, :] = found[0]
            _add(dk, strip, found[1])
            for total, more in zip(dlearned, found[2:]):
                if more is not None:
                    total += more
            if dbias is not None:
                _add_bias(dbias, strip, found[-1])
        sums = zip((dk, dv, dbias, *dlearned), (k, v, bias, *learned))
        return None, dq, *(None if total is None else total.to(x.dtype) for total, x in sums)


def _sum_like(x: Tensor) -> Tensor:
    """Zeros to add the strips' parts of x's gradient to: many strips in sixteen bits would lose what they add."""
    return torch.zeros_like(x, dtype=torch.float32 if x.dtype in (torch.bfloat16, torch.float16) else x.dtype)


def _added(call: _Call, strip: _Strip, weights: Tensor) -> Tensor:
    """What the relative schemes add to the strip's output."""
    assert call.relations is not None
    added = call.relations.part(strip.queries, strip.keys, strip.row).values(weights)
    assert added is not None
    return added


def _add_bias(total: Tensor, strip: _Strip, part: Tensor) -> None:
    """Add to the strip's part of a bias's gradient."""
    total = strip.rows(total)
    total, part = total if total.shape[-2] == 1 else total[..., strip.queries, :], part.to(total.dtype)
    if isinstance(strip.keys, Tensor):
        total.index_add_(-1, strip.keys.to(part.device), part)
    else:
        total[..., slice(*strip.keys)] += part
