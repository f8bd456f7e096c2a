"""Attention in strips of queries, computed again in the backward pass: memory linear in length for anything.

See docs/notes.md#a19.

Each strip is the plain equation on a few rows, over the keys that its mask can reach and no others, so a window, packed
documents or kept squares cost what they allow. Nothing of size (T,S) is kept: the backward pass makes each strip's
weights anew (Rabe & Staats 2021; Dao et al. 2022), with the same dropout, which is a function of the pair's place.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from atento.attention.algebra import additive
from atento.attention.distance_bias import Diagonals
from atento.attention.dropout import fresh, pair_dropout
from atento.attention.equation import Asked, normalise, widened
from atento.attention.key_ranges import Span, count
from atento.attention.lowering import LoweredMask, nothing_allowed, take
from atento.attention.relative import Relations

_STRIP = 1 << 20  # scores computed at once on a processor: some megabytes, which stay in its cache
_WIDER = 64  # times as many on a GPU, which wants much to do at once
_ROWS = 128  # queries in a strip: fewer make thin products, which are slow; more see past what their mask allows


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

    @property
    def budget(self) -> int:
        """How many scores are computed at once."""
        return _STRIP if self.mask.device.type == "cpu" else _WIDER * _STRIP

    @property
    def whole(self) -> bool:
        """True if something is made for all heads of a strip at once."""
        return self.relations is not None and self.relations.beside_diagonals is not None

    @property
    def undivided(self) -> bool:
        """True if something needs the weights of all heads at once."""
        return self.relations is not None and (self.relations.adds_values or self.relations.sparsifier is not None)


@dataclass(frozen=True)
class _Strip:
    """Queries first ... last - 1 of batch row `row` (None: of all), and the keys they may see."""

    queries: slice
    keys: Span
    row: int | None

    def rows(self, x: Tensor) -> Tensor:
        """The batch row's part of x, whose first size may be 1."""
        return x if self.row is None or x.shape[0] == 1 else x[self.row : self.row + 1]

    def bias(self, x: Tensor) -> Tensor:
        """The strip's part of a bias (B|1,H|1,T|1,S), all keys."""
        x = self.rows(x)
        return x if x.shape[-2] == 1 else x[..., self.queries, :]


@dataclass(frozen=True)
class _Part:
    """Some heads of some batch rows of a strip: as much as is computed at once."""

    rows: slice
    heads: slice

    def of(self, x: Tensor) -> Tensor:
        """The part of x (b|1,H|1,...)."""
        x = x if x.shape[0] == 1 else x[self.rows]
        return x if x.shape[1] == 1 else x[:, self.heads]

    def add(self, total: Tensor, more: Tensor) -> None:
        """Add to the part of `total` (b|1,H|1,...) what it stands for, summed where it stands for several."""
        total = self.of(total)
        total += more.sum_to_size(total.shape)


def blocked(q: Tensor, k: Tensor, v: Tensor, asked: Asked) -> Tensor:
    """The plain equation, strip by strip; q (B,H,T,K), k (B,H,S,K), v (B,H,S,Kv) -> (B,H,T,Kv).

    float16 is computed in float32, as the plain equation does for its scores, and rounded at the end.
    """
    if asked.value_bias is not None:
        raise ValueError("the blocked kernel takes no `value_bias`, which is a square itself; use kernel='plain'")
    bias = asked.bias
    while bias is not None and bias.dim() < 4:
        bias = bias.unsqueeze(0)
    key = fresh(asked.random).key() if asked.dropout else 0
    call = _Call(asked.mask, asked.relations, asked.scale, asked.dropout, key, (q.shape[-2], k.shape[-2]))
    wide = (widened(x) for x in (q, k, v))
    out: Tensor = _Blocked.apply(call, *wide, bias, *call.learned)  # type: ignore[no-untyped-call]
    return out.to(v.dtype)


def _strips(call: _Call, batch: int, n_heads: int) -> Iterator[_Strip]:
    """The strips of a call, leaving out those that see nothing."""
    query_len = call.lengths[0]
    for row in range(batch) if call.mask.by_row and batch > 1 else (None,):
        middle = call.mask.reach(query_len // 2, min(query_len // 2 + 64, query_len), row)
        together = n_heads * (batch if row is None else 1) if call.whole else call.mask.planes(row)
        width = max(1, count(middle)) * together
        wished = min(512, max(_ROWS, count(middle) // 8)) if call.mask.narrows else 512
        size = max(16, min(wished, call.budget // width))
        first = 0
        while first < query_len:
            last = min(first + size, query_len)
            keys = call.mask.reach(first, last, row)
            while last - first > 16 and together * (last - first) * count(keys) > 4 * call.budget:
                last = first + max(16, (last - first) // 2)  # these see more than those in the middle do
                keys = call.mask.reach(first, last, row)
            if count(keys):
                yield _Strip(slice(first, last), keys, row)
            first = last


def _parts(call: _Call, strip: _Strip, rows: int, n_heads: int) -> Iterator[_Part]:
    """The strip in parts of about the budget: several batch rows, one, or some heads of one."""
    pairs = (strip.queries.stop - strip.queries.start) * count(strip.keys)
    together = rows * n_heads if call.undivided else max(1, call.budget // pairs)
    if together >= n_heads:
        size = together // n_heads
        yield from (_Part(slice(i, min(i + size, rows)), slice(0, n_heads)) for i in range(0, rows, size))
    else:
        for row in range(rows):
            for first in range(0, n_heads, together):
                yield _Part(slice(row, row + 1), slice(first, min(first + together, n_heads)))


class _Added:
    """What a strip adds to its scores, made once for all its parts, and the gradient that comes back to it."""

    def __init__(self, call: _Call, strip: _Strip, queries: Tensor, bias: Tensor | None, learns: bool) -> None:
        others = None if call.relations is None else call.relations.beside_diagonals
        self.relations = None if others is None else others.part(strip.queries, strip.keys, strip.row)
        self.queries = queries.detach().requires_grad_(learns)
        self.scores = None
        if self.relations is not None:
            with torch.set_grad_enabled(learns):
                self.scores = self.relations.scores(self.queries, call.scale)
        self.bias = None if bias is None else take(strip.bias(bias), strip.keys, dim=-1)
        self.hidden = list(_hidden(call, strip))
        self.empty = None
        if len(self.hidden) == 1 and self.hidden[0][0] == slice(None):
            self.empty = nothing_allowed(self.hidden[0][1] == 0)
        self.gradient = None if self.scores is None or not learns else torch.zeros_like(self.scores)

    def to(self, scores: Tensor, part: _Part) -> Tensor:
        """Scores of a part, in place."""
        for added in (self.scores, self.bias):
            if added is not None:
                scores += part.of(added.detach())
        for keys, hidden in self.hidden:
            scores[..., keys] += part.of(hidden)
        return scores

    def none_for(self, part: _Part) -> Tensor | None:
        """The rows of a part that see nothing."""
        return None if self.empty is None else part.of(self.empty)


def _hidden(call: _Call, strip: _Strip) -> Iterator[tuple[slice, Tensor]]:
    """The additive mask of a strip, only for those of its keys that some query may not see."""
    if call.mask.mask is None:
        return
    spans: Sequence[tuple[slice, Span]] = [(slice(None), strip.keys)]
    if not isinstance(strip.keys, Tensor):
        first, last = strip.keys
        low, high = call.mask.clear(strip.queries.start, strip.queries.stop, strip.row)
        low, high = max(low, first), min(high, last)
        if low < high:
            ends = [(first, low), (high, last)]
            spans = [(slice(one - first, two - first), (one, two)) for one, two in ends if one < two]
    for where, keys in spans:
        allowed = call.mask.strip(strip.queries, keys, strip.row)
        assert allowed is not None
        yield where, additive(allowed)


def _scores(queries: Tensor, keys: Tensor) -> Tensor:
    """q kᵀ, at least in float32, where the softmax is exact."""
    scores = _product(queries, keys, turned="two")
    return scores.float() if scores.dtype == torch.bfloat16 else scores


def _product(one: Tensor, two: Tensor, turned: str = "") -> Tensor:
    """one (b,h,n,m) times two (b,h,m,l), the one that `turned` names given as (b,h,m,n) or (b,h,l,m).

    In three dimensions and turned last: on a CPU 16-bit products of a single head take a slow path otherwise.
    """
    left, right = one.flatten(0, 1), two.flatten(0, 1)
    left, right = left.mT if turned == "one" else left, right.mT if turned == "two" else right
    return torch.bmm(left, right).view(*one.shape[:2], left.shape[-2], right.shape[-1])


def _add(total: Tensor, keys: Span, part: Tensor, dim: int) -> None:
    """Add to those keys of a gradient."""
    part = part.to(total.dtype)
    if isinstance(keys, Tensor):
        total.index_add_(dim, keys.to(part.device), part)
    else:
        total.narrow(dim, keys[0], keys[1] - keys[0]).add_(part)


def _kept(call: _Call, strip: _Strip, part: _Part, weights: Tensor, n_heads: int) -> Tensor:
    """The dropout of a part, as the plain equation has it for those pairs."""
    row, heads = (strip.row or 0) + part.rows.start, (part.heads.start, n_heads)
    return pair_dropout(weights, call.dropout, call.key, strip.queries, strip.keys, row, call.lengths, heads)


class _Blocked(torch.autograd.Function):
    """Forward strip by strip; backward strip by strip, weights made anew."""

    @staticmethod
    def forward(
        ctx: Any, call: _Call, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, *learned: Tensor
    ) -> Tensor:
        ctx.call = call
        ctx.save_for_backward(q, k, v, bias)
        batch, n_heads = q.shape[:2]
        out = q.new_zeros(*q.shape[:-1], v.shape[-1])
        q, k, v = (q * call.scale).contiguous(), k.contiguous(), v.contiguous()
        diagonals = Diagonals(call.relations, call.scale, call.lengths, learns=False)
        for strip in _strips(call, batch, n_heads):
            queries = strip.rows(q)[..., strip.queries, :]
            keys, values = (take(strip.rows(x), strip.keys, dim=-2) for x in (k, v))
            added = _Added(call, strip, queries, bias, False)
            for part in _parts(call, strip, len(queries), n_heads):
                scores = added.to(_scores(part.of(queries), part.of(keys)), part)
                diagonals.add(scores, strip.queries, strip.keys, part.heads)
                weights = _normalised(scores, added, part)
                if call.dropout:
                    weights *= _kept(call, strip, part, weights, n_heads)
                used = weights.to(v.dtype)
                read = _product(used, part.of(values))
                extra = None if added.relations is None else added.relations.values(used)
                read = read if extra is None else read + extra
                part.of(strip.rows(out))[..., strip.queries, :] = read
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        call: _Call = ctx.call
        q, k, v, bias = ctx.saved_tensors
        batch, n_heads = q.shape[:2]
        sums = _Sums(call, q, k, v, bias if ctx.needs_input_grad[4] else None)
        diagonals = Diagonals(call.relations, call.scale, call.lengths, learns=True)
        q, k, v, grad = (q * call.scale).contiguous(), k.contiguous(), v.contiguous(), grad.contiguous()
        for strip in _strips(call, batch, n_heads):
            queries, upstream = (strip.rows(x)[..., strip.queries, :] for x in (q, grad))
            keys, values = (take(strip.rows(x), strip.keys, dim=-2) for x in (k, v))
            added = _Added(call, strip, queries, bias, call.relations is not None)
            for part in _parts(call, strip, len(queries), n_heads):
                own, other, gone = part.of(queries), part.of(keys), part.of(upstream)
                scores = added.to(_scores(own, other), part)
                diagonals.add(scores, strip.queries, strip.keys, part.heads)
                weights = _normalised(scores, added, part)
                kept = _kept(call, strip, part, weights, n_heads) if call.dropout else None
                used = (weights if kept is None else weights * kept).to(v.dtype)
                dused = _product(gone, part.of(values), turned="two").to(weights.dtype)
                if added.relations is not None and added.relations.adds_values:
                    dused += sums.through_values(added.relations, used, gone)
                dweights = dused if kept is None else dused.mul_(kept)
                dscores = sums.through_weights(added, scores, weights, dweights)
                if added.gradient is not None:
                    part.add(added.gradient, dscores)
                diagonals.take(dscores, strip.queries, strip.keys, part.heads)
                sums.bias(strip, part, dscores)
                narrow = dscores.to(q.dtype)
                part.of(strip.rows(sums.q))[..., strip.queries, :] = _product(narrow, other)
                _add(part.of(strip.rows(sums.k)), strip.keys, _product(narrow, own, turned="one"), -2)
                _add(part.of(strip.rows(sums.v)), strip.keys, _product(used, gone, turned="one"), -2)
            sums.through_scores(strip, added)
        sums.through_diagonals(diagonals)
        return None, *sums.all(ctx.saved_tensors)


def _normalised(scores: Tensor, added: _Added, part: _Part) -> Tensor:
    """Weights of scores (b,h,t,s)."""
    if added.relations is not None and added.relations.sparsifier is not None:
        return added.relations.sparsifier.weigh(scores, added.relations.places)
    return normalise(scores, added.none_for(part))


class _Sums:
    """The gradients as they add up from strip to strip; many strips in sixteen bits would lose what they add."""

    def __init__(self, call: _Call, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> None:
        self.scale, self.parameters = call.scale, call.learned
        self.q = torch.zeros_like(q, memory_format=torch.contiguous_format)
        self.k, self.v = _sum_like(k), _sum_like(v)
        self.of_bias = None if bias is None else _sum_like(bias)
        self.learned = [_sum_like(parameter) for parameter in self.parameters]

    def _learn(self, found: Sequence[Tensor | None]) -> None:
        for total, more in zip(self.learned, found, strict=True):
            if more is not None:
                total += more

    def through_values(self, relations: Relations, used: Tensor, upstream: Tensor) -> Tensor:
        """The gradient of the weights by what relative schemes add to values."""
        with torch.enable_grad():
            used = used.detach().requires_grad_()
            extra = relations.values(used)
        assert extra is not None
        first, *more = torch.autograd.grad(extra, [used, *self.parameters], upstream, allow_unused=True)
        self._learn(more)
        return first

    def through_weights(self, added: _Added, scores: Tensor, weights: Tensor, dweights: Tensor) -> Tensor:
        """The gradient of the scores: p (dp - Σ p dp) of a softmax, else by autograd."""
        if added.relations is None or added.relations.sparsifier is None:
            return dweights.sub_((dweights * weights).sum(dim=-1, keepdim=True)).mul_(weights)
        with torch.enable_grad():
            scores = scores.detach().requires_grad_()
            weights = added.relations.sparsifier.weigh(scores, added.relations.places)
        first, *more = torch.autograd.grad(weights, [scores, *self.parameters], dweights, allow_unused=True)
        self._learn(more)
        return first

    def bias(self, strip: _Strip, part: _Part, dscores: Tensor) -> None:
        """Add to the gradient of the bias."""
        if self.of_bias is not None:
            total = part.of(strip.bias(self.of_bias))
            size = (*total.shape[:-1], dscores.shape[-1])
            _add(total, strip.keys, dscores.sum_to_size(size), -1)

    def through_scores(self, strip: _Strip, added: _Added) -> None:
        """On to what the relative schemes learn, and to the queries they looked at."""
        own = strip.rows(self.q)[..., strip.queries, :]
        if added.gradient is not None and added.scores is not None and added.scores.requires_grad:
            into = [added.queries, *self.parameters]
            first, *more = torch.autograd.grad(added.scores, into, added.gradient, allow_unused=True)
            self._learn(more)
            if first is not None:
                own += first
        own *= self.scale

    def through_diagonals(self, diagonals: Diagonals) -> None:
        """On to what the schemes of distances learn."""
        if diagonals.found is not None and diagonals.found.requires_grad:
            found = torch.autograd.grad(diagonals.found, self.parameters, diagonals.gradient, allow_unused=True)
            self._learn(found)

    def all(self, given: Sequence[Tensor | None]) -> Iterator[Tensor | None]:
        """Of queries, keys, values, bias and what is learned, each as exact as what it belongs to."""
        sums = (self.q, self.k, self.v, self.of_bias, *self.learned)
        for total, x in zip(sums, (*given, *self.parameters), strict=True):
            yield None if total is None or x is None else total.to(x.dtype)


def _sum_like(x: Tensor) -> Tensor:
    """Zeros in at least float32, contiguous."""
    dtype = torch.float32 if x.dtype in (torch.bfloat16, torch.float16) else x.dtype
    return torch.zeros(x.shape, dtype=dtype, device=x.device)
