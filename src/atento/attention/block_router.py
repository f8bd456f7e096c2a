"""Attention over routed blocks: each block of queries chooses the blocks of keys it reads (docs/notes.md#a17, #a19)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atento.attention.algebra import Context, Mask, TypedFunction
from atento.attention.entmax import softmax
from atento.attention.equation import widened
from atento.attention.kernels import AnyMask
from atento.attention.prepared_mask import PreparedMask, prepare_mask

_GROUP_SCORES = 1 << 20  # scores computed at once, as in the blocked kernel
_ROUTED_AT_ONCE = 256  # blocks of queries that are routed at a time


@dataclass(frozen=True)
class RoutedBlocks:
    """The blocks of keys that each block of queries reads."""

    blocks: Tensor  # (B,H,Tb,n), indices of blocks of keys, ascending
    gates: Tensor  # (B,H,Tb,n), the routing scores of these blocks
    size: int  # positions in a block

    def block_mask(self, key_len: int) -> Tensor:
        """The chosen blocks as a boolean matrix (B,H,Tb,Sb).

        `masks.blocks(routed.block_mask(S)[0], size)` is the mask if one choice serves the whole batch.
        """
        chosen = self.blocks.new_zeros((*self.blocks.shape[:-1], -(-key_len // self.size)), dtype=torch.bool)
        return chosen.scatter_(-1, self.blocks, True)  # (B,H,Tb,Sb)

    def dense(self, query_len: int, key_len: int) -> Tensor:
        """The chosen blocks as a boolean matrix of pairs (B,H,T,S), for inspection; it is a full (T,S) tensor."""
        front = (key_len - query_len) % self.size
        pairs = self.block_mask(key_len).repeat_interleave(self.size, dim=-2).repeat_interleave(self.size, dim=-1)
        return pairs[..., front : front + query_len, :key_len]  # without what pads the first and the last block


class BlockRouter(nn.Module):
    """Routes each block of `size` queries to the `n` blocks of keys with the highest scores, always with its own.

    The score is q̄ W k̄ᵀ / √K, as in mixture of block attention (Lu et al. 2025). k̄ is the mean of the keys of a block.
    q̄ is the mean of its queries if all queries see the same keys; else it is the first query, since a mean would let
    earlier queries depend on later ones. W is learned for each head and begins as the identity.

    The choice has no gradient, so W gets a straight-through gradient (Bengio et al. 2013), as if each score had been
    added to the attention scores of its block. Queries and keys get no gradient from the routing. With n not below the
    number of blocks, attention and its gradients equal dense attention. See docs/notes.md#a17, #a19.

    Args:
        n_heads: number of heads H.
        d_head: width of a head K.
        size: positions in a block.
        n: blocks of keys for each block of queries.
    """

    def __init__(self, n_heads: int, d_head: int, *, size: int = 64, n: int = 8) -> None:
        super().__init__()
        if size < 1 or n < 1:
            raise ValueError(f"`size` and `n` must be at least 1: got {size} and {n}")
        self.size, self.n = size, n
        self.gate = nn.Parameter(torch.eye(d_head).repeat(n_heads, 1, 1))  # (H,K,K), the W of the score

    def route(self, q: Tensor, k: Tensor, mask: AnyMask = None) -> RoutedBlocks:
        """Choose blocks of keys for queries q (B,H,T,K) and keys k (B,H,S,K).

        A block can be chosen if `mask` allows one of the corner pairs of its square.
        """
        q, k = q.detach().to(self.gate.dtype), k.detach().to(self.gate.dtype)
        (query_len, width), key_len, size = q.shape[-2:], k.shape[-2], self.size
        prepared = prepare_mask(mask, query_len, key_len, q.device)
        front = (key_len - query_len) % size  # positions of the first block that are before the first query
        own_block = (key_len - query_len) // size  # the block of the first query
        real = prepared.allowed if prepared.mask is not None and prepared.is_per_key else None  # that every query sees
        block_keys = _block_means(k, size, 0, real)  # (B,H,Sb,K)
        first = (torch.arange(0, query_len + front, size, device=q.device) - front).clamp(min=0)
        if prepared.mask is None or real is not None:
            block_queries = _block_means(q, size, front, None if real is None else real[..., key_len - query_len :])
        else:
            block_queries = q[..., first, :]  # (B,H,Tb,K)
        block_queries = block_queries @ self.gate * width**-0.5  # (B,H,Tb,K), with W and 1/√K
        chosen = []
        with torch.no_grad():
            for start in range(0, len(first), _ROUTED_AT_ONCE):
                scores = block_queries[:, :, start : start + _ROUTED_AT_ONCE] @ block_keys.transpose(-2, -1)
                allowed = _allowed_corners(prepared, first[start : start + _ROUTED_AT_ONCE], size)
                scores = scores if allowed is None else scores.masked_fill(~allowed, float("-inf"))  # (B,H,g,Sb)
                rows = torch.arange(scores.shape[2], device=q.device)
                scores[:, :, rows, own_block + start + rows] = float("inf")  # its own block is always chosen
                chosen.append(scores.topk(min(self.n, scores.shape[-1]), dim=-1).indices.sort(dim=-1).values)
        blocks = torch.cat(chosen, dim=2)  # (B,H,Tb,n)
        chosen_keys = block_keys.gather(2, blocks.flatten(2).unsqueeze(-1).expand(-1, -1, -1, width))  # (B,H,Tb·n,K)
        gates = (block_queries.unsqueeze(-2) * chosen_keys.unflatten(2, blocks.shape[2:])).sum(dim=-1)  # (B,H,Tb,n)
        return RoutedBlocks(blocks, gates, size)

    def allowed(self, q: Tensor, k: Tensor, mask: AnyMask = None) -> Tensor:
        """The pairs that are both chosen and allowed by `mask`, boolean (B,H,T,S), for inspection."""
        prepared = prepare_mask(mask, q.shape[-2], k.shape[-2], q.device)
        chosen = self.route(q, k, prepared).dense(q.shape[-2], k.shape[-2])
        return chosen if prepared.allowed is None else chosen & prepared.allowed

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, mask: AnyMask = None, scale: float | None = None) -> Tensor:
        """Exact attention over the chosen blocks (docs/notes.md#a17).

        Time and memory grow with T · n · size; no (T,S) tensor is made, forward or backward.

        Args:
            q: queries (B,H,T,K), T <= S; query i is at key position S - T + i.
            k: keys (B,H,S,K).
            v: values (B,H,S,Kv).
            mask: as in `attend`.
            scale: 1/√K if not given.

        Returns:
            (B,H,T,Kv).

        Raises:
            ValueError: keys have another number of heads than queries, or there are more queries than keys.
        """
        if q.shape[1] != k.shape[1] or q.shape[-2] > k.shape[-2]:
            raise ValueError(
                f"routed blocks need as many key heads as query heads, and no more queries than keys: "
                f"got {tuple(q.shape)} and {tuple(k.shape)}"
            )
        prepared = prepare_mask(mask, q.shape[-2], k.shape[-2], q.device)
        dtype = v.dtype
        q, k, v = widened(q), widened(k), widened(v)  # float16 as float32
        routed = self.route(q, k, prepared)
        call = _Call(prepared, routed.blocks, routed.size, q.shape[-1] ** -0.5 if scale is None else scale)
        out: Tensor = _RoutedAttention.apply(call, q, k, v, routed.gates)
        return out.to(dtype)


def _block_means(x: Tensor, size: int, front: int, real: Tensor | None) -> Tensor:
    """x (B,H,L,K) -> the mean of each block, (B,H,⌈(front+L)/size⌉,K), over positions that are `real` (B|1,H|1,1,L)."""
    counted = x.new_ones(1, 1, x.shape[-2], 1) if real is None else real.transpose(-2, -1).to(x.dtype)
    padding = (0, 0, front, -(front + x.shape[-2]) % size)  # whole blocks: `front` before, the rest behind
    summed = x if real is None else x.masked_fill(counted == 0, 0.0)  # padding adds nothing to a sum
    total, number = (F.pad(part, padding).unflatten(-2, (-1, size)).sum(dim=-2) for part in (summed, counted))
    return cast(Tensor, total / number.clamp(min=1))  # a block without a real key has mean 0


def _allowed_corners(prepared: PreparedMask, first: Tensor, size: int) -> Tensor | None:
    """Whether the mask allows a corner of each square, (B|1,H|1,g or 1,Sb), for blocks whose first queries are given.

    None if there is no mask. Only corners are evaluated, not all pairs.
    """
    offset = prepared.key_len - prepared.query_len
    last = ((first + offset) // size * size + size - 1 - offset).clamp(max=prepared.query_len - 1)
    low = torch.arange(0, prepared.key_len, size, device=first.device)  # first and last key of each block, (2·Sb,)
    keys = torch.stack([low, (low + size - 1).clamp(max=prepared.key_len - 1)], dim=-1).flatten()  # their corners
    pairs = prepared.for_queries(torch.stack([first, last], dim=-1).flatten(), keys)
    if pairs is None:
        return None
    allowed: Tensor = pairs.unflatten(-1, (-1, 2)).any(dim=-1)  # first and last key of a block
    if allowed.shape[-2] > 1:
        allowed = allowed.unflatten(-2, (-1, 2)).any(dim=-2)  # first and last query of a block
    return allowed


@dataclass(frozen=True)
class _Call:
    """The arguments of a call, the same for all groups. A group is some blocks of queries of one head."""

    mask: PreparedMask
    blocks: Tensor  # (B,H,Tb,n)
    size: int
    scale: float

    @property
    def front(self) -> int:
        """Positions of the first block of queries that are before the first query."""
        return (self.mask.key_len - self.mask.query_len) % self.size

    def flat_blocks(self) -> Tensor:
        """The chosen blocks as indices among all blocks of a head, over all batch rows: (H,B·Tb,n)."""
        n_blocks = -(-self.mask.key_len // self.size)  # ⌈S/size⌉
        offset = torch.arange(len(self.blocks), device=self.blocks.device).view(-1, 1, 1, 1) * n_blocks
        return (self.blocks + offset).transpose(0, 1).flatten(1, 2)

    def groups(self) -> Iterator[tuple[int, slice]]:
        """A head, and some of its B·Tb blocks of queries."""
        n_rows, n_heads, n_blocks, n = self.blocks.shape
        step = max(1, _GROUP_SCORES // (self.size * self.size * n))
        for head in range(n_heads):
            for first in range(0, n_rows * n_blocks, step):
                yield head, slice(first, min(first + step, n_rows * n_blocks))


def _to_blocks(x: Tensor, size: int, front: int) -> Tensor:
    """(B,H,L,K) -> (H,B·Lb,size,K), padded with zeros."""
    padded = F.pad(x, (0, 0, front, -(front + x.shape[-2]) % size))  # `front` before, the rest behind
    return cast(Tensor, padded.unflatten(2, (-1, size)).transpose(0, 1).flatten(1, 2))


def _from_blocks(x: Tensor, n_rows: int, front: int, length: int) -> Tensor:
    """The inverse of `_to_blocks`: (H,B·Lb,size,K) -> (B,H,L,K)."""
    rows: Tensor = x.unflatten(1, (n_rows, -1)).transpose(0, 1)  # (B,H,Lb,size,K)
    return rows.flatten(2, 3)[:, :, front : front + length]


def _allowed_pairs(call: _Call, head: int, group: slice) -> Tensor | None:
    """What the mask allows between the queries of a group and the keys of their blocks: boolean (G,size,n·size)."""
    prepared, size = call.mask, call.size
    key_len, offset = prepared.key_len, prepared.key_len - prepared.query_len
    chosen = call.blocks[:, head].flatten(0, 1)[group]  # (G,n)
    index = torch.arange(group.start, group.stop, device=chosen.device)
    row, block = index // call.blocks.shape[2], index % call.blocks.shape[2] + offset // size
    within = torch.arange(size, device=chosen.device)
    q = (block.unsqueeze(-1) * size + within).clamp(offset, key_len - 1)  # (G,size)
    k = (chosen.unsqueeze(-1) * size + within).flatten(1)  # (G,n·size)
    real = None if key_len % size == 0 else (k < key_len).unsqueeze(1)  # the last block may be shorter
    k, mask = k.clamp(max=key_len - 1), prepared.mask
    if mask is None:
        return real
    if isinstance(mask, Mask):  # each query with the keys of its own block: (1,1,G·size,n·size)
        b = row.repeat_interleave(size).view(1, 1, -1, 1) if mask.batch > 1 else row.new_zeros(1, 1, 1, 1)
        h = row.new_full((1, 1, 1, 1), head if mask.heads > 1 else 0)
        keys = k.repeat_interleave(size, dim=0).view(1, 1, -1, k.shape[-1])
        allowed = mask.rule(b, h, q.view(1, 1, -1, 1), keys).expand(keys.shape).view(len(k), size, -1)
    else:
        last_b, last_h, last_t = (n - 1 for n in mask.shape[:3])  # sizes of 1 have index 0 alone
        q = (q - offset).clamp(max=last_t).unsqueeze(-1)  # counted from 0, where the mask begins, (G,size,1)
        allowed = mask[row.clamp(max=last_b).view(-1, 1, 1), min(head, last_h), q, k.unsqueeze(1)]  # (G,size,n·size)
    return allowed if real is None else allowed & real


def _weights(call: _Call, head: int, group: slice, q: Tensor, k: Tensor) -> Tensor:
    """q (G,size,K), k (G,n·size,K) -> weights (G,size,n·size), in float32 (float64 if q is)."""
    scores = (q * call.scale) @ k.transpose(-2, -1)  # (G,size,n·size)
    scores = scores.float() if scores.dtype == torch.bfloat16 else scores
    allowed = _allowed_pairs(call, head, group)
    return softmax(scores if allowed is None else scores.masked_fill_(~allowed, float("-inf")))


class _RoutedAttention(TypedFunction):
    """Forward group by group, each block of queries with its chosen keys; backward computes the weights again."""

    @staticmethod
    def forward(ctx: Context[_Call], call: _Call, q: Tensor, k: Tensor, v: Tensor, gates: Tensor) -> Tensor:
        ctx.call = call
        ctx.save_for_backward(q, k, v)
        queries, chosen = _to_blocks(q, call.size, call.front), call.flat_blocks()  # (H,B·Tb,size,K); (H,B·Tb,n)
        keys, values = (_to_blocks(x, call.size, 0) for x in (k, v))
        out = queries.new_empty(*queries.shape[:-1], v.shape[-1])  # (H,B·Tb,size,Kv)
        for head, group in call.groups():
            chosen_k, chosen_v = (x[head].index_select(0, chosen[head, group].flatten()) for x in (keys, values))
            shape = (group.stop - group.start, -1)  # (blocks of queries, all keys that each has chosen, width)
            weights = _weights(call, head, group, queries[head, group], chosen_k.view(*shape, k.shape[-1]))
            out[head, group] = weights.to(v.dtype) @ chosen_v.view(*shape, v.shape[-1])  # (G,size,Kv)
        return _from_blocks(out, len(q), call.front, q.shape[-2])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Context[_Call], grad: Tensor) -> tuple[Tensor | None, ...]:
        call, (q, k, v) = ctx.call, ctx.saved_tensors
        (queries, upstream), chosen = (_to_blocks(x, call.size, call.front) for x in (q, grad)), call.flat_blocks()
        keys, values = (_to_blocks(x, call.size, 0) for x in (k, v))
        wide = torch.promote_types(q.dtype, torch.float32)
        dq, dk, dv = (torch.zeros_like(x, dtype=wide) for x in (queries, keys, values))
        dgates = torch.zeros(chosen.shape, dtype=wide, device=q.device)  # (H,B·Tb,n)
        for head, group in call.groups():
            index, shape = chosen[head, group].flatten(), (group.stop - group.start, -1)
            group_q, dout = queries[head, group], upstream[head, group]
            chosen_k = keys[head].index_select(0, index).view(*shape, k.shape[-1])  # (G,n·size,K)
            chosen_v = values[head].index_select(0, index).view(*shape, v.shape[-1])
            weights = _weights(call, head, group, group_q, chosen_k)
            dweights = (dout @ chosen_v.transpose(-2, -1)).to(weights.dtype)  # (G,size,n·size)
            dscores = weights * (dweights - (weights * dweights).sum(dim=-1, keepdim=True))  # p (dp - Σ p dp)
            # straight-through: a gate's gradient is that of a bias added to all pairs of its block
            dgates[head, group] = dscores.sum(dim=1).unflatten(-1, (-1, call.size)).sum(dim=-1)
            dscores = (dscores * call.scale).to(q.dtype)
            dq[head, group] = (dscores @ chosen_k).to(wide)
            for total, gradient in ((dk, dscores.mT @ group_q), (dv, weights.to(v.dtype).mT @ dout)):
                total[head].index_add_(0, index, gradient.view(len(index), call.size, -1).to(wide))
        sums = ((dq, call.front, q), (dk, 0, k), (dv, 0, v))
        gradients = [_from_blocks(x, len(q), front, like.shape[-2]).to(like.dtype) for x, front, like in sums]
        return None, *gradients, dgates.unflatten(1, (len(q), -1)).transpose(0, 1)  # (H,B,Tb,n) -> (B,H,Tb,n)
