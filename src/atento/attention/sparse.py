"""Sparse attention that learns its links: α and spans by head, top-k, chosen blocks, and what was kept.

See docs/notes.md#a17, #a19.

Patterns that are not learned are masks, and masks add up: Longformer's is `window(256, 256) | global_tokens(1)`
(Beltagy et al. 2020), BigBird's adds random squares, `window(64, 64) | global_tokens(2) | blocks(drawn, 64)` (Zaheer
et al. 2020), and `causal() & (window(63, 0) | dilated(64))` is one of Child et al. 2019.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atento.attention.algebra import Mask
from atento.attention.entmax import AdaptiveSpan, Entmax, softmax, top_k
from atento.attention.equation import widened
from atento.attention.lowering import LoweredMask, lower
from atento.attention.relative import Places

_STRIP = 1 << 20  # scores in a strip, as in the blocked kernel
_ASKING = 256  # blocks of queries that choose at a time


class SparseAttention(nn.Module):
    """How a layer makes weights of scores: spans, then the k highest, then α-entmax; each only if given.

    See docs/notes.md#a17.

    A `Sparsifier`. With none of the three it is softmax; so it is with spans no less than the text, `top_k` no less
    than the keys, and α = 1. `span_cost` times the mean span is what the loss is asked to count.
    """

    def __init__(
        self,
        *,
        span: AdaptiveSpan | None = None,
        top_k: int | None = None,
        entmax: Entmax | None = None,
        span_cost: float = 0.0,
    ) -> None:
        super().__init__()
        if top_k is not None and top_k < 1:
            raise ValueError(f"`top_k` must be at least 1: got {top_k}")
        self.span, self.top_k, self.entmax, self.span_cost = span, top_k, entmax, span_cost

    def weigh(self, scores: Tensor, places: Places) -> Tensor:
        """scores (B,H,T,S), -inf where a key may not be seen -> weights (B,H,T,S)."""
        if self.span is not None:
            scores = self.span(scores, places)
        if self.top_k is not None:
            scores = top_k(scores, self.top_k)
        return softmax(scores) if self.entmax is None else self.entmax(scores)

    def cost(self) -> Tensor | None:
        """`span_cost` · mean span."""
        return None if self.span is None or self.span_cost == 0 else self.span_cost * self.span.mean()

    def learned(self) -> dict[str, Tensor]:
        """α and spans, (H,) each."""
        found = {} if self.entmax is None else {"alpha": self.entmax.alpha}
        if self.span is not None:
            found["behind"] = self.span.behind
            if self.span.ahead is not None:
                found["ahead"] = self.span.ahead
        return {name: value.detach() for name, value in found.items()}


@dataclass(frozen=True)
class KeptLinks:
    """Which links carry weight, by head: what `print` shows is the report of docs/notes.md#a17."""

    share: Tensor  # (H,) of the links that may be seen, those kept
    distance: Tensor  # (H,) mean |key - query| of the kept ones
    ahead: Tensor  # (H,) of the kept ones, those to later keys
    buckets: tuple[str, ...]  # distances, as text
    by_distance: Tensor  # (H, buckets): of the kept ones, those at such distances
    learned: dict[str, Tensor] = field(default_factory=dict)  # (H,) each: α, spans

    def __str__(self) -> str:
        """A line a head."""
        lines = [["head", "kept", "mean distance", "look ahead", *self.buckets, *self.learned]]
        for head in range(len(self.share)):
            shares = [self.share[head], self.ahead[head], *self.by_distance[head]]
            kept, ahead, *near = [f"{100 * float(share):.1f}%" for share in shares]
            values = [f"{float(value[head]):.3g}" for value in self.learned.values()]
            lines.append([str(head), kept, f"{float(self.distance[head]):.1f}", ahead, *near, *values])
        widths = [max(map(len, column)) for column in zip(*lines)]
        return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths)) for line in lines)


def kept_links(
    weights: Tensor,
    places: Places | None = None,
    *,
    allowed: Tensor | None = None,
    learned: dict[str, Tensor] | None = None,
) -> KeptLinks:
    """The report for weights (B,H,T,S): a link is kept if its weight is above 0.

    `places` says where queries and keys stand (query i at key S - T + i unless given), `allowed` (B|1,H|1,T|1,S) which
    links the mask left (all unless given), `learned` what a `Sparsifier` tells of itself.
    """
    places = Places.of(weights.shape[-2], weights.shape[-1], weights.device) if places is None else places
    apart = places.distances if places.distances.dim() == 2 else places.distances.unsqueeze(1)  # (T,S) or (B,1,T,S)
    bounds = [0, 1] + [1 << n for n in range(1, max(1, int(apart.abs().max())).bit_length() + 1)]
    names = [str(b) if a + 1 == b else f"{a + 1}-{b}" for a, b in zip([-1, *bounds], bounds)]
    bucket = torch.bucketize(apart.abs(), torch.tensor(bounds, device=weights.device))
    kept = weights > 0

    def count(links: Tensor) -> Tensor:
        return links.expand(weights.shape).sum(dim=(0, 2, 3), dtype=torch.float64)  # (H,)

    total = count(kept)
    near = torch.stack([count(kept & (bucket == number)) for number in range(len(bounds))], dim=-1)
    used = max(number for number in range(len(bounds)) if number == 0 or bool((near[:, number] > 0).any())) + 1
    some = total.clamp(min=1)
    return KeptLinks(
        total / count(torch.ones_like(kept) if allowed is None else allowed).clamp(min=1),
        count(kept * apart.abs()) / some,
        count(kept & (apart > 0)) / some,
        tuple(names[:used]),
        near[:, :used] / some.unsqueeze(-1),
        {} if learned is None else learned,
    )


@dataclass(frozen=True)
class Chosen:
    """The blocks of keys that each block of queries reads, and how much it wanted them."""

    blocks: Tensor  # (B,H,Tb,n) numbers of blocks of keys, ascending
    gates: Tensor  # (B,H,Tb,n) scores of that choice
    size: int

    def kept(self, key_len: int) -> Tensor:
        """As squares: boolean (B,H,Tb,Sb); `masks.blocks(kept[0], size)` where one choice serves the whole batch."""
        squares = self.blocks.new_zeros((*self.blocks.shape[:-1], -(-key_len // self.size)), dtype=torch.bool)
        return squares.scatter_(-1, self.blocks, True)

    def dense(self, query_len: int, key_len: int) -> Tensor:
        """As a mask of pairs, boolean (B,H,T,S): for looking at, since it is a whole square."""
        front = (key_len - query_len) % self.size
        pairs = self.kept(key_len).repeat_interleave(self.size, dim=-2).repeat_interleave(self.size, dim=-1)
        return pairs[..., front : front + query_len, :key_len]


def total_cost(network: nn.Module) -> Tensor | None:
    """What a network's learned sparsity asks the loss to count, nats a target; None where there is none.

    See docs/notes.md#a17.
    """
    asked = [part.cost() for part in network.modules() if isinstance(part, SparseAttention)]
    found = [cost for cost in asked if cost is not None]
    return torch.stack(found).sum() if found else None


class BlockChoice(nn.Module):
    """Each block of `size` queries reads the `n` blocks of keys it wants most, its own always among them.

    See docs/notes.md#a17, #a19.

    What it wants is q̄ W k̄ᵀ / √K, as in mixture of block attention (Lu et al. 2025): k̄ is the mean of a block's keys,
    q̄ that of its queries where all queries see the same keys, else its first query, since a mean would tell earlier
    queries of later ones. W is learned, one a head, from the identity on. Choosing has no gradient, so W learns from
    a straight-through one (Bengio et al. 2013): as if each gate had been added to its block's scores. Queries and keys
    get none from it, and with n no less than the number of blocks attention and gradients are the dense ones.
    """

    def __init__(self, n_heads: int, d_head: int, *, size: int = 64, n: int = 8) -> None:
        super().__init__()
        if size < 1 or n < 1:
            raise ValueError(f"`size` and `n` must be at least 1: got {size} and {n}")
        self.size, self.n = size, n
        self.gate = nn.Parameter(torch.eye(d_head).repeat(n_heads, 1, 1))

    def choose(self, q: Tensor, k: Tensor, mask: Mask | Tensor | LoweredMask | None = None) -> Chosen:
        """q (B,H,T,K), k (B,H,S,K) -> the choice; a block is seen if a corner of its square is allowed by `mask`."""
        q, k = q.detach().to(self.gate.dtype), k.detach().to(self.gate.dtype)
        (query_len, width), key_len, size = q.shape[-2:], k.shape[-2], self.size
        lowered = lower(mask, query_len, key_len, q.device)
        front = (key_len - query_len) % size  # of the first block, what lies before the first query
        own = (key_len - query_len) // size  # the block of the first query
        real = _seen_by_all(lowered)
        pooled = _means(k, size, 0, real)  # (B,H,Sb,K)
        first = (torch.arange(0, query_len + front, size, device=q.device) - front).clamp(min=0)
        if lowered.mask is None or real is not None:
            asked = _means(q, size, front, None if real is None else real[..., key_len - query_len :])
        else:
            asked = q[..., first, :]  # (B,H,Tb,K)
        asked = asked @ self.gate * width**-0.5
        found = []
        with torch.no_grad():
            for start in range(0, len(first), _ASKING):
                wanted = asked[:, :, start : start + _ASKING] @ pooled.transpose(-2, -1)  # (B,H,g,Sb)
                seen = _corners(lowered, first[start : start + _ASKING], size)
                wanted = wanted if seen is None else wanted.masked_fill(~seen, float("-inf"))
                lines = torch.arange(wanted.shape[2], device=q.device)
                wanted[:, :, lines, own + start + lines] = float("inf")
                found.append(wanted.topk(min(self.n, wanted.shape[-1]), dim=-1).indices.sort(dim=-1).values)
        blocks = torch.cat(found, dim=2)
        picked = pooled.gather(2, blocks.flatten(2).unsqueeze(-1).expand(-1, -1, -1, width))
        gates = (asked.unsqueeze(-2) * picked.unflatten(2, blocks.shape[2:])).sum(dim=-1)
        return Chosen(blocks, gates, size)


def _seen_by_all(lowered: LoweredMask) -> Tensor | None:
    """The keys that every query sees, (B|1,H|1,1,S), if the mask is the same for all queries (padding)."""
    mask = lowered.mask
    if mask is None or (mask.by_query if isinstance(mask, Mask) else mask.shape[-2] > 1):
        return None
    return lowered.allowed


def _means(x: Tensor, size: int, front: int, real: Tensor | None) -> Tensor:
    """x (B,H,L,K) -> the mean of each block, (B,H,⌈(front+L)/size⌉,K), of those that are `real` (B|1,H|1,1,L)."""
    counted = x.new_ones(1, 1, x.shape[-2], 1) if real is None else real.transpose(-2, -1).to(x.dtype)
    padded = (0, 0, front, -(front + x.shape[-2]) % size)
    summed = x if real is None else x.masked_fill(counted == 0, 0.0)
    total, number = (F.pad(part, padded).unflatten(-2, (-1, size)).sum(dim=-2) for part in (summed, counted))
    means: Tensor = total / number.clamp(min=1)
    return means


def _corners(lowered: LoweredMask, first: Tensor, size: int) -> Tensor | None:
    """(B|1,H|1,g or 1,Sb): whether the mask allows a corner of each square, for blocks of queries from `first` on."""
    offset = lowered.key_len - lowered.query_len
    last = ((first + offset) // size * size + size - 1 - offset).clamp(max=lowered.query_len - 1)
    low = torch.arange(0, lowered.key_len, size, device=first.device)
    keys = torch.stack([low, (low + size - 1).clamp(max=lowered.key_len - 1)], dim=-1).flatten()
    allowed = lowered.strip(torch.stack([first, last], dim=-1).flatten(), keys)
    if allowed is None:
        return None
    seen: Tensor = allowed.unflatten(-1, (-1, 2)).any(dim=-1)
    if seen.shape[-2] > 1:
        seen = seen.unflatten(-2, (-1, 2)).any(dim=-2)
    return seen


def attend_chosen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    choice: BlockChoice,
    *,
    mask: Mask | Tensor | LoweredMask | None = None,
    scale: float | None = None,
) -> Tensor:
    """Exact attention over the blocks that `choice` picks, for each batch row and head its own (docs/notes.md#a17).

    q (B,H,T,K), k (B,H,S,K), v (B,H,S,Kv) -> (B,H,T,Kv), for T <= S, query i at key S - T + i. Time and memory grow
    with T · n · size; nothing of size (T,S) is made, forward or backward. Raises ValueError: shapes that cannot be.
    """
    if q.shape[1] != k.shape[1] or q.shape[-2] > k.shape[-2]:
        raise ValueError(f"chosen blocks want as many heads, and no more queries than keys: got {q.shape}, {k.shape}")
    lowered = lower(mask, q.shape[-2], k.shape[-2], q.device)
    given = v.dtype
    q, k, v = widened(q), widened(k), widened(v)
    chosen = choice.choose(q, k, lowered)
    call = _Call(lowered, chosen.blocks, chosen.size, q.shape[-1] ** -0.5 if scale is None else scale)
    out: Tensor = _ChosenBlocks.apply(call, q, k, v, chosen.gates)  # type: ignore[no-untyped-call]
    return out.to(given)


@dataclass(frozen=True)
class _Call:
    """What does not change from strip to strip."""

    mask: LoweredMask
    blocks: Tensor  # (B,H,Tb,n)
    size: int
    scale: float

    @property
    def front(self) -> int:
        """Places of the first block of queries that lie before the first query."""
        return (self.mask.key_len - self.mask.query_len) % self.size

    def rows(self) -> Tensor:
        """Where the chosen blocks stand among all those of a head, (H,B·Tb,n)."""
        n_blocks = -(-self.mask.key_len // self.size)
        before = torch.arange(len(self.blocks), device=self.blocks.device).view(-1, 1, 1, 1) * n_blocks
        return (self.blocks + before).transpose(0, 1).flatten(1, 2)

    def strips(self) -> Iterator[tuple[int, slice]]:
        """A head, and some of its B·Tb blocks of queries."""
        n_rows, n_heads, n_blocks, n = self.blocks.shape
        step = max(1, _STRIP // (self.size * self.size * n))
        for head in range(n_heads):
            for first in range(0, n_rows * n_blocks, step):
                yield head, slice(first, min(first + step, n_rows * n_blocks))


def _by_block(x: Tensor, size: int, front: int) -> Tensor:
    """(B,H,L,K) -> (H,B·Lb,size,K), zeros where there is nothing."""
    padded = F.pad(x, (0, 0, front, -(front + x.shape[-2]) % size))
    blocks: Tensor = padded.unflatten(2, (-1, size)).transpose(0, 1).flatten(1, 2)
    return blocks


def _whole(x: Tensor, n_rows: int, front: int, length: int) -> Tensor:
    """The way back: (H,B·Lb,size,K) -> (B,H,L,K)."""
    rows: Tensor = x.unflatten(1, (n_rows, -1)).transpose(0, 1)  # (B,H,Lb,size,K)
    return rows.flatten(2, 3)[:, :, front : front + length]


def _allowed(call: _Call, head: int, rows: slice) -> Tensor | None:
    """(G,size,n·size): what the mask allows those blocks of queries of the keys they chose."""
    lowered, size = call.mask, call.size
    key_len, offset = lowered.key_len, lowered.key_len - lowered.query_len
    picked = call.blocks[:, head].flatten(0, 1)[rows]  # (G,n)
    numbers = torch.arange(rows.start, rows.stop, device=picked.device)
    row, block = numbers // call.blocks.shape[2], numbers % call.blocks.shape[2] + offset // size
    inside = torch.arange(size, device=picked.device)
    q = (block.unsqueeze(-1) * size + inside).clamp(offset, key_len - 1)  # (G,size)
    k = (picked.unsqueeze(-1) * size + inside).flatten(1)  # (G,n·size)
    real = None if key_len % size == 0 else (k < key_len).unsqueeze(1)
    k, mask = k.clamp(max=key_len - 1), lowered.mask
    if mask is None:
        return real
    if isinstance(mask, Mask):  # each query with the keys of its own block: (1,1,G·size,n·size)
        row = row.repeat_interleave(size).view(1, 1, -1, 1) if mask.batch > 1 else row.new_zeros(1, 1, 1, 1)
        own = row.new_full((1, 1, 1, 1), head if mask.heads > 1 else 0)
        each = k.repeat_interleave(size, dim=0).view(1, 1, -1, k.shape[-1])
        allowed = mask.rule(row, own, q.view(1, 1, -1, 1), each).expand(each.shape).view(len(k), size, -1)
    else:
        b, h, t = (n - 1 for n in mask.shape[:3])
        q = (q - offset).clamp(max=t).unsqueeze(-1)
        allowed = mask[row.clamp(max=b).view(-1, 1, 1), min(head, h), q, k.unsqueeze(1)]
    return allowed if real is None else allowed & real


def _weights(call: _Call, head: int, rows: slice, q: Tensor, k: Tensor) -> Tensor:
    """q (G,size,K), k (G,n·size,K) -> weights (G,size,n·size), in float32 (float64 if q is)."""
    scores = (q * call.scale) @ k.transpose(-2, -1)
    scores = scores.float() if scores.dtype == torch.bfloat16 else scores
    allowed = _allowed(call, head, rows)
    return softmax(scores if allowed is None else scores.masked_fill_(~allowed, float("-inf")))


class _ChosenBlocks(torch.autograd.Function):
    """Forward strip by strip, each block of queries with the keys it chose; backward makes the weights anew."""

    @staticmethod
    def forward(ctx: Any, call: _Call, q: Tensor, k: Tensor, v: Tensor, gates: Tensor) -> Tensor:
        ctx.call = call
        ctx.save_for_backward(q, k, v)
        queries, rows = _by_block(q, call.size, call.front), call.rows()
        keys, values = (_by_block(x, call.size, 0) for x in (k, v))
        out = queries.new_empty(*queries.shape[:-1], v.shape[-1])
        for head, part in call.strips():
            picked_k, picked_v = (x[head].index_select(0, rows[head, part].flatten()) for x in (keys, values))
            shape = (part.stop - part.start, -1)
            weights = _weights(call, head, part, queries[head, part], picked_k.view(*shape, k.shape[-1]))
            out[head, part] = weights.to(v.dtype) @ picked_v.view(*shape, v.shape[-1])
        return _whole(out, len(q), call.front, q.shape[-2])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        call: _Call = ctx.call
        q, k, v = ctx.saved_tensors
        (queries, upstream), rows = (_by_block(x, call.size, call.front) for x in (q, grad)), call.rows()
        keys, values = (_by_block(x, call.size, 0) for x in (k, v))
        wide = torch.promote_types(q.dtype, torch.float32)
        dq, dk, dv = (torch.zeros_like(x, dtype=wide) for x in (queries, keys, values))
        dgates = torch.zeros(rows.shape, dtype=wide, device=q.device)
        for head, part in call.strips():
            index, shape = rows[head, part].flatten(), (part.stop - part.start, -1)
            own, above = queries[head, part], upstream[head, part]
            picked_k = keys[head].index_select(0, index).view(*shape, k.shape[-1])  # (G,n·size,K)
            picked_v = values[head].index_select(0, index).view(*shape, v.shape[-1])
            weights = _weights(call, head, part, own, picked_k)
            dweights = (above @ picked_v.transpose(-2, -1)).to(weights.dtype)
            dscores = weights * (dweights - (weights * dweights).sum(dim=-1, keepdim=True))
            dgates[head, part] = dscores.sum(dim=1).unflatten(-1, (-1, call.size)).sum(dim=-1)
            dscores = (dscores * call.scale).to(q.dtype)
            dq[head, part] = (dscores @ picked_k).to(wide)
            for total, found in ((dk, dscores.mT @ own), (dv, weights.to(v.dtype).mT @ above)):
                total[head].index_add_(0, index, found.view(len(index), call.size, -1).to(wide))
        parts = ((dq, call.front, q), (dk, 0, k), (dv, 0, v))
        into = [_whole(total, len(q), front, like.shape[-2]).to(like.dtype) for total, front, like in parts]
        return None, *into, dgates.unflatten(1, (len(q), -1)).transpose(0, 1)
