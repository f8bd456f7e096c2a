"""The blocked kernel: attention in blocks of queries, recomputed in the backward pass (docs/notes.md#a19).

Each block is the plain equation on some queries, over the keys that its mask can reach and no others. A window, packed
documents or a block mask therefore cost what they allow. No (T,S) tensor is kept, so memory is linear in length: the
backward pass computes the weights of each block again (Rabe & Staats 2021; Dao et al. 2022), with the same dropout,
which is a function of the position of a pair.

A block is computed in parts, which hold some batch rows and some heads of it, so that the scores of a part fit into
the processor's cache.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from atento.attention.algebra import Context, KeyRange, TypedFunction, additive
from atento.attention.dropout import fresh, pair_dropout
from atento.attention.equation import normalise, widened
from atento.attention.prepared_mask import AttentionArgs, nothing_allowed, take
from atento.attention.query_blocks import Part, QueryBlock, QueryBlockCall, parts, query_blocks
from atento.attention.relative_terms import DistanceBias, RelativeTerms


def blocked(q: Tensor, k: Tensor, v: Tensor, args: AttentionArgs) -> Tensor:
    """The plain equation, block by block.

    float16 is computed in float32, as in the plain equation, and rounded at the end.

    Args:
        q: queries (B,H,T,K).
        k: keys (B,H,S,K).
        v: values (B,H,S,Kv).
        args: the other arguments of `attend`.

    Returns:
        (B,H,T,Kv).

    Raises ValueError: `value_bias` is given.
    """
    if args.value_bias is not None:
        raise ValueError("the blocked kernel does not support `value_bias`; use kernel='plain'")
    bias = args.bias
    while bias is not None and bias.dim() < 4:
        bias = bias.unsqueeze(0)  # up to (B|1,H|1,T|1,S)
    key = fresh(args.random).key() if args.dropout else 0  # 0: not read without dropout
    call = QueryBlockCall(args.mask, args.relative, args.scale, args.dropout, key, (q.shape[-2], k.shape[-2]))
    wide = (widened(x) for x in (q, k, v))  # (B,H,T,K), (B,H,S,K), (B,H,S,Kv)
    out: Tensor = _Blocked.apply(call, *wide, bias, *call.learned)
    return out.to(v.dtype)


class _BlockTerms:
    """The terms added to the scores of a block, computed once for all its parts, and the gradient of those terms."""

    def __init__(
        self, call: QueryBlockCall, block: QueryBlock, queries: Tensor, keys: Tensor, bias: Tensor | None, learns: bool
    ) -> None:
        relative = None if call.relative is None else call.relative.without_distance_bias
        self.relative = None if relative is None else relative.for_queries(block.queries, block.keys, block.row)
        self.queries, self.keys = (x.detach().requires_grad_(learns) for x in (queries, keys))
        self.scores = None
        if self.relative is not None:
            with torch.set_grad_enabled(learns):
                self.scores = self.relative.scores(self.queries, self.keys, call.scale)  # of all heads at once
        self.bias = None if bias is None else take(block.bias(bias), block.keys, dim=-1)  # (b|1,H|1,t|1,s)
        self.mask_bias = list(_mask_bias(call, block))
        # with a range of unmasked keys no row is empty, and the mask has other entries than one for all keys
        self.empty = None
        if len(self.mask_bias) == 1 and self.mask_bias[0][0] == slice(None):  # one range for all keys of the block
            self.empty = nothing_allowed(self.mask_bias[0][1] == 0)  # (b|1,H|1,t|1,1)
        self.gradient = None if self.scores is None or not learns else torch.zeros_like(self.scores)

    def add_to(self, scores: Tensor, part: Part) -> Tensor:
        """Add the terms to the scores of a part, in place."""
        for term in (self.scores, self.bias):
            if term is not None:
                scores += part.of(term.detach())
        for keys, mask_bias in self.mask_bias:
            scores[..., keys] += part.of(mask_bias)
        return scores


def _mask_bias(call: QueryBlockCall, block: QueryBlock) -> Iterator[tuple[slice, Tensor]]:
    """The additive mask of a block, as (keys of the block, values), only for keys that some query may not see."""
    if call.mask.mask is None:
        return
    ranges: Sequence[tuple[slice, KeyRange]] = [(slice(None), block.keys)]
    if not isinstance(block.keys, Tensor):
        first, last = block.keys
        low, high = call.mask.unmasked(block.queries.start, block.queries.stop, block.row)  # seen by all of them
        low, high = max(low, first), min(high, last)  # both ranges count from key 0 of the call
        if low < high:  # mask only the keys before and after the unmasked range
            ends = [(first, low), (high, last)]
            ranges = [(slice(start - first, stop - first), (start, stop)) for start, stop in ends if start < stop]
    for where, keys in ranges:
        allowed = call.mask.for_queries(block.queries, keys, block.row)
        assert allowed is not None
        yield where, additive(allowed)


def _scores(queries: Tensor, keys: Tensor) -> Tensor:
    """q kᵀ, at least in float32, in which the softmax is exact."""
    scores = _matmul(queries, keys, transpose="right")  # (b,h,t,s)
    return scores.float() if scores.dtype == torch.bfloat16 else scores


def _matmul(left: Tensor, right: Tensor, transpose: str = "") -> Tensor:
    """left (b,h,n,m) times right (b,h,m,l); `transpose` names the one that is given transposed, "left" or "right".

    It runs in three dimensions and transposes last: on a CPU, 16-bit products of a single head are slow otherwise.
    """
    a, b = left.flatten(0, 1), right.flatten(0, 1)  # (b·h,n,m) and (b·h,m,l)
    a, b = a.mT if transpose == "left" else a, b.mT if transpose == "right" else b
    return torch.bmm(a, b).view(*left.shape[:2], a.shape[-2], b.shape[-1])


def _add_at(total: Tensor, keys: KeyRange, gradient: Tensor, dim: int) -> None:
    gradient = gradient.to(total.dtype)
    if isinstance(keys, Tensor):
        total.index_add_(dim, keys.to(gradient.device), gradient)
    else:
        total.narrow(dim, keys[0], keys[1] - keys[0]).add_(gradient)  # a range is a view: no indices are made


def _dropout_mask(call: QueryBlockCall, block: QueryBlock, part: Part, weights: Tensor, n_heads: int) -> Tensor:
    """The dropout of a part, equal to that of the plain equation for the same pairs."""
    row, heads = (block.row or 0) + part.rows.start, (part.heads.start, n_heads)  # within the whole batch
    return pair_dropout(weights, call.dropout, call.key, block.queries, block.keys, row, call.lengths, heads)


class _Blocked(TypedFunction):
    """Forward block by block; backward block by block, with the weights computed again."""

    @staticmethod
    def forward(
        ctx: Context[QueryBlockCall],
        call: QueryBlockCall,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        *learned: Tensor,
    ) -> Tensor:
        ctx.call = call
        ctx.save_for_backward(q, k, v, bias)
        batch, n_heads = q.shape[:2]
        out = q.new_zeros(*q.shape[:-1], v.shape[-1])  # zeros: queries in no block reach no key
        # the queries are scaled once, here and in the backward pass, rather than the scores of every part
        q, k, v = (q * call.scale).contiguous(), k.contiguous(), v.contiguous()
        distance_bias = DistanceBias(call.relative, call.scale, call.lengths, learns=False)
        for block in query_blocks(call, batch, n_heads):
            queries = block.rows(q)[..., block.queries, :]  # (b,H,t,K)
            keys, values = (take(block.rows(x), block.keys, dim=-2) for x in (k, v))  # (b,H,s,K), (b,H,s,Kv)
            terms = _BlockTerms(call, block, queries, keys, bias, False)
            for part in parts(call, block, len(queries), n_heads):
                scores = terms.add_to(_scores(part.of(queries), part.of(keys)), part)
                distance_bias.add_to(scores, block.queries, block.keys, part.heads)
                weights = _normalised(scores, terms, part)  # (b,h,t,s): the only tensor of that size, and one of a part
                if call.dropout:
                    weights *= _dropout_mask(call, block, part, weights, n_heads)
                narrow = weights.to(v.dtype)
                context = _matmul(narrow, part.of(values))  # (b,h,t,Kv)
                added = None if terms.relative is None else terms.relative.values(narrow)
                context = context if added is None else context + added
                part.of(block.rows(out))[..., block.queries, :] = context
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Context[QueryBlockCall], grad: Tensor) -> tuple[Tensor | None, ...]:
        call, (q, k, v, bias) = ctx.call, ctx.saved_tensors
        batch, n_heads = q.shape[:2]
        grads = _Gradients(call, q, k, v, bias if ctx.needs_input_grad[4] else None)  # the fifth argument of `forward`
        distance_bias = DistanceBias(call.relative, call.scale, call.lengths, learns=True)
        q, k, v, grad = (q * call.scale).contiguous(), k.contiguous(), v.contiguous(), grad.contiguous()
        for block in query_blocks(call, batch, n_heads):
            queries, upstream = (block.rows(x)[..., block.queries, :] for x in (q, grad))  # (b,H,t,K), (b,H,t,Kv)
            keys, values = (take(block.rows(x), block.keys, dim=-2) for x in (k, v))
            terms = _BlockTerms(call, block, queries, keys, bias, call.relative is not None)
            for part in parts(call, block, len(queries), n_heads):
                # the forward pass of the part, again
                part_q, part_k, dout = part.of(queries), part.of(keys), part.of(upstream)
                scores = terms.add_to(_scores(part_q, part_k), part)
                distance_bias.add_to(scores, block.queries, block.keys, part.heads)
                weights = _normalised(scores, terms, part)
                dropout = _dropout_mask(call, block, part, weights, n_heads) if call.dropout else None
                dropped = (weights if dropout is None else weights * dropout).to(v.dtype)  # what multiplied the values
                # from the output to the weights, to the scores, to what made them
                ddropped = _matmul(dout, part.of(values), transpose="right").to(weights.dtype)  # (b,h,t,s)
                if terms.relative is not None and terms.relative.adds_values:
                    ddropped += grads.through_values(terms.relative, dropped, dout)
                # in place: from here on the gradient of the dropped weights is not needed
                dweights = ddropped if dropout is None else ddropped.mul_(dropout)
                dscores = grads.through_weights(terms, scores, weights, dweights)
                if terms.gradient is not None:
                    part.add(terms.gradient, dscores)
                distance_bias.accumulate_gradient(dscores, block.queries, block.keys, part.heads)
                if grads.bias is not None:
                    total = part.of(block.bias(grads.bias))
                    size = (*total.shape[:-1], dscores.shape[-1])  # (b|1,h|1,t|1,s)
                    _add_at(total, block.keys, dscores.sum_to_size(size), -1)
                narrow = dscores.to(q.dtype)
                # a query is in one block, so that its gradient is set; keys and values are in many, and it is added
                part.of(block.rows(grads.q))[..., block.queries, :] = _matmul(narrow, part_k)  # (b,h,t,K)
                _add_at(part.of(block.rows(grads.k)), block.keys, _matmul(narrow, part_q, transpose="left"), -2)
                _add_at(part.of(block.rows(grads.v)), block.keys, _matmul(dropped, dout, transpose="left"), -2)
            grads.through_scores(block, terms)
        if (table := distance_bias.table) is not None and table.requires_grad:
            grads.add_learned(torch.autograd.grad(table, call.learned, distance_bias.gradient, allow_unused=True))
        return None, *grads.results(ctx.saved_tensors)


def _normalised(scores: Tensor, terms: _BlockTerms, part: Part) -> Tensor:
    """The weights of scores (b,h,t,s), by softmax or by the sparsifier."""
    if terms.relative is not None and terms.relative.sparsifier is not None:
        return terms.relative.sparsifier.weigh(scores, terms.relative.positions)
    return normalise(scores, None if terms.empty is None else part.of(terms.empty))


class _Gradients:
    """The gradients, summed from block to block in at least float32: sums of many blocks lose digits in 16 bits."""

    def __init__(self, call: QueryBlockCall, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> None:
        self.scale, self.parameters = call.scale, call.learned
        self.q = torch.zeros_like(q, memory_format=torch.contiguous_format)  # each query is in one block alone
        self.k, self.v = _wide_zeros(k), _wide_zeros(v)
        self.bias = None if bias is None else _wide_zeros(bias)
        self.learned = [_wide_zeros(parameter) for parameter in self.parameters]

    def add_learned(self, gradients: Sequence[Tensor | None]) -> None:
        """Add the gradients of the parameters of the schemes."""
        for total, gradient in zip(self.learned, gradients, strict=True):
            if gradient is not None:
                total += gradient

    def through_values(self, relative: RelativeTerms, weights: Tensor, dout: Tensor) -> Tensor:
        """The gradient of the weights through the terms that relative schemes add to the output, by autograd."""
        with torch.enable_grad():
            weights = weights.detach().requires_grad_()
            added = relative.values(weights)
        assert added is not None
        first, *learned = torch.autograd.grad(added, [weights, *self.parameters], dout, allow_unused=True)
        self.add_learned(learned)
        return first

    def through_weights(self, terms: _BlockTerms, scores: Tensor, weights: Tensor, dweights: Tensor) -> Tensor:
        """The gradient of the scores: p (dp - Σ p dp) for softmax, else by autograd through the sparsifier."""
        if terms.relative is None or terms.relative.sparsifier is None:
            return dweights.sub_((dweights * weights).sum(dim=-1, keepdim=True)).mul_(weights)
        with torch.enable_grad():
            scores = scores.detach().requires_grad_()
            weights = terms.relative.sparsifier.weigh(scores, terms.relative.positions)
        first, *learned = torch.autograd.grad(weights, [scores, *self.parameters], dweights, allow_unused=True)
        self.add_learned(learned)
        return first

    def through_scores(self, block: QueryBlock, terms: _BlockTerms) -> None:
        """Finish the block: the gradients of the relative schemes and of the queries and keys that they read, then the
        scale."""
        dq = block.rows(self.q)[..., block.queries, :]
        if terms.gradient is not None and terms.scores is not None and terms.scores.requires_grad:
            inputs = [terms.queries, terms.keys, *self.parameters]
            queries, keys, *learned = torch.autograd.grad(terms.scores, inputs, terms.gradient, allow_unused=True)
            self.add_learned(learned)
            if queries is not None:  # None: no term reads the queries
                dq += queries
            if keys is not None:
                _add_at(block.rows(self.k), block.keys, keys, -2)
        dq *= self.scale  # of q, not of q · scale, which the blocks read

    def results(self, inputs: Sequence[Tensor | None]) -> Iterator[Tensor | None]:
        """The gradients of q, k, v, the bias and the parameters, each in the dtype of its input."""
        sums = (self.q, self.k, self.v, self.bias, *self.learned)
        for total, x in zip(sums, (*inputs, *self.parameters), strict=True):
            yield None if total is None or x is None else total.to(x.dtype)


def _wide_zeros(x: Tensor) -> Tensor:
    """Zeros of the shape of x in at least float32, contiguous."""
    dtype = torch.float32 if x.dtype in (torch.bfloat16, torch.float16) else x.dtype
    return torch.zeros(x.shape, dtype=dtype, device=x.device)
