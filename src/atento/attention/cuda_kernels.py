"""PyTorch's kernels for CUDA: FlexAttention, and variable-length attention, which computes nothing for padding."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from atento.attention.algebra import Mask
from atento.attention.dropout import Key, fresh
from atento.attention.prepared_mask import AttentionArgs, PreparedMask


@cache
def _compiled_flex_attention() -> Callable[..., object]:
    """FlexAttention compiled, once in a process; PyTorch compiles it again for each new kind of call."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


def flex(q: Tensor, k: Tensor, v: Tensor, args: AttentionArgs) -> Tensor:
    """PyTorch's FlexAttention: skips blocks that are fully masked and adds position terms to each score.

    It is never the default on a CPU, where it has no backward pass and needs a compiler.
    Raises ValueError: the call adds to the values or has dropout, which FlexAttention does not support.
    """
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    if args.value_bias is not None or args.dropout or not args.only_biases:
        raise ValueError("FlexAttention neither adds to values nor drops weights; use kernel='plain' or 'blocked'")
    mask, bias = args.mask, args.score_bias(q, k)

    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        assert bias is not None
        return score + bias[b % bias.shape[0], h % bias.shape[1], i % bias.shape[2], j]  # a size of 1 is broadcast

    offset, allowed = mask.key_len - mask.query_len, None  # queries are at the last positions
    if mask.mask is not None and not (isinstance(mask.mask, Mask) and mask.mask.form == "causal"):
        allowed = mask.allowed

    def mask_mod(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if allowed is None:
            return j <= i + offset
        return allowed[b % allowed.shape[0], h % allowed.shape[1], i % allowed.shape[2], j]

    block_mask, (b, h, t), s = None, q.shape[:3], k.shape[-2]
    if mask.mask is not None:
        block_mask = create_block_mask(mask_mod, b, h, t, s, device=str(q.device), BLOCK_SIZE=128)
    kernel: Any = _compiled_flex_attention() if q.is_cuda else flex_attention
    added = None if bias is None else score_mod
    out: Tensor = kernel(q, k, v, score_mod=added, block_mask=block_mask, scale=args.scale)
    return out if mask.mask is None or mask.empty is None else out.masked_fill(mask.empty, 0.0)  # rows that see nothing


@dataclass(frozen=True)
class PackedSequences:
    """The sequences of a batch (B,L), without padding, one after the other in one long row of T positions."""

    index: Tensor  # (T,), the positions of the row as indices into B·L
    bounds: Tensor  # (N+1,) int32, the offsets at which the N sequences begin and end
    max_len: int  # the length of the longest sequence

    @classmethod
    def from_documents(cls, ids: Tensor) -> "PackedSequences":
        """One sequence for each document in each row of ids (B,L); positions with -1 are left out."""
        rows = torch.arange(len(ids), device=ids.device).unsqueeze(1)  # (B,1)
        numbers = torch.where(ids < 0, -1, ids + rows * (ids.max() + 1)).flatten()  # (B·L,), distinct across rows
        index = torch.argsort(numbers, stable=True)[int((numbers < 0).sum()) :]  # without padding, which sorts first
        lengths = torch.unique_consecutive(numbers[index], return_counts=True)[1]  # (N,)
        return cls.from_lengths(index, lengths)

    @classmethod
    def from_lengths(cls, index: Tensor, lengths: Tensor) -> "PackedSequences":
        """Sequences of the given lengths (N,)."""
        bounds = F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)  # (N+1,), from 0
        return cls(index, bounds, int(lengths.max()) if len(lengths) else 0)

    def pack(self, x: Tensor) -> Tensor:
        """x (B,H,L,K) -> the long row (T,H,K)."""
        return x.transpose(1, 2).flatten(0, 1)[self.index]  # (B·L,H,K), then the T real ones


@dataclass(frozen=True, eq=False)
class RowMask(PreparedMask):
    """The mask of one long row without padding: a token sees its own sequence, with `causal` up to itself."""

    sequences: PackedSequences  # where the row comes from
    causal: bool  # whether no token sees a later one

    @classmethod
    def of(cls, mask: Mask, token_mask: Tensor, device: torch.device) -> "RowMask | None":
        """The mask of all real tokens of a batch as one row; None: `mask` has no such form.

        Args:
            mask: of all layers.
            token_mask: boolean (B,L), True = a real token. On the CPU, nobody waits for a GPU.
            device: where the row is computed.
        """
        if mask.document_ids is None and mask.form == "any":
            return None
        rows = torch.arange(len(token_mask), device=token_mask.device).unsqueeze(1)
        ids = (rows if mask.document_ids is None else mask.document_ids.to(rows.device)).expand(token_mask.shape)
        found = PackedSequences.from_documents(ids.masked_fill(~token_mask, -1))
        sequences = replace(found, index=found.index.to(device), bounds=found.bounds.to(device))
        length = len(sequences.index)
        return cls(None, length, length, device, sequences, mask.max_ahead == 0)

    def pack(self, x: Tensor) -> Tensor:
        """x (B,L,D) -> the row (1,T,D)."""
        return x.flatten(0, 1).index_select(0, self.sequences.index).unsqueeze(0)

    def unpack(self, row: Tensor, shape: torch.Size) -> Tensor:
        """The row (1,T,D) -> (B,L,D) of that shape; padding is 0."""
        flat = row.new_zeros(shape[0] * shape[1], shape[2])  # (B·L,D)
        return flat.index_copy(0, self.sequences.index, row.squeeze(0)).view(shape)


def seeded(device: torch.device, key: Key, compute: Callable[[], Tensor]) -> Tensor:
    """What is computed with a GPU's generator seeded by `key`; behind, the generator is as it was."""
    generator = torch.cuda.default_generators[device.index or 0]
    state = generator.get_state()
    generator.manual_seed(int(key))
    try:
        return compute()
    finally:
        generator.set_state(state)


def _flash_rows(
    q: Tensor, k: Tensor, v: Tensor, sequences: PackedSequences, causal: bool, scale: float, dropout: float
) -> Tensor:
    """FlashAttention 2 of sequences in a row, (T,H,K) each -> (T,H,K); `varlen_attn` has no dropout."""
    bounds, longest = sequences.bounds, sequences.max_len
    out: Tensor = torch.ops.aten._flash_attention_forward(
        q, k, v, bounds, bounds, longest, longest, dropout, causal, False, scale=scale
    )[0]
    return out


@cache
def has_rows(device: torch.device) -> bool:
    """Whether FlashAttention 2 computes such rows on a device: a small one tells, for its operation is not public.

    It needs a GPU from Ampere on.
    """
    if device.type != "cuda":
        return False
    bounds = torch.tensor([0, 1, 3], dtype=torch.int32, device=device)  # two sequences, of 1 and 2 tokens
    x = torch.ones(3, 1, 8, dtype=torch.bfloat16, device=device)  # 8: its narrowest head
    try:
        with torch.enable_grad():
            q, k, v = (x.clone().requires_grad_() for _ in range(3))
            out = _flash_rows(q, k, v, PackedSequences(bounds, bounds, 2), True, 1.0, 0.0)
            gradients = torch.autograd.grad(out.sum(), (q, k, v))
    except (RuntimeError, TypeError, AttributeError):
        return False
    return out.sum().item() == 24 and [each.sum().item() for each in gradients] == [0, 0, 24]


def varlen(q: Tensor, k: Tensor, v: Tensor, args: AttentionArgs) -> Tensor:
    """Attention without padding: the sequences of the batch, or packed documents, as one long row.

    It supports packed documents, causal or not, padded keys, the causal mask and no mask. On CUDA it is PyTorch's
    variable-length kernel. On a CPU it computes one sequence after the other; that form exists for tests and is never
    the default. A `RowMask` is of a row that is packed already; its weights may be dropped.
    Raises ValueError: the call has another mask, a bias, position terms or dropout.
    """
    if isinstance(args.mask, RowMask):
        q, k, v = (x.squeeze(0).transpose(0, 1) for x in (q, k, v))  # (T,H,K)
        compute = partial(_flash_rows, q, k, v, args.mask.sequences, args.mask.causal, args.scale, args.dropout)
        out = seeded(q.device, fresh(args.random).key(), compute) if args.dropout else compute()
        return out.transpose(0, 1).unsqueeze(0)
    if args.value_bias is not None or args.bias is not None or args.relative is not None or args.dropout:
        raise ValueError("variable-length attention takes a mask alone; use kernel='plain' or 'blocked'")
    queries, keys, causal = _packed(args.mask, q.shape[0])
    packed = (queries.pack(q), keys.pack(k), keys.pack(v))  # (real tokens of all rows, H, K)
    kernel = _varlen_cuda if q.is_cuda and len(queries.index) else _varlen_plain
    packed_out = kernel(*packed, queries, keys, causal, args.scale)  # (T,H,Kv)
    out = packed_out.new_zeros(q.shape[0] * q.shape[2], q.shape[1], v.shape[-1])  # padding stays 0
    out = out.index_copy(0, queries.index, packed_out)
    return out.view(q.shape[0], q.shape[2], q.shape[1], -1).transpose(1, 2)  # (B·T,H,Kv) -> (B,H,T,Kv)


def _packed(mask: PreparedMask, batch: int) -> tuple[PackedSequences, PackedSequences, bool]:
    """The sequences of the queries, those of the keys, and whether attention is causal."""
    device = mask.device
    rows = torch.zeros(batch, mask.query_len, dtype=torch.long, device=device)  # one document a row
    documents = mask.mask.document_ids if isinstance(mask.mask, Mask) else None
    if isinstance(mask.mask, Mask) and documents is not None and mask.query_len == mask.key_len:
        sequences = PackedSequences.from_documents(documents.to(device).expand(batch, -1))
        return sequences, sequences, mask.mask.max_ahead == 0
    if mask.is_causal:
        sequences = PackedSequences.from_documents(rows)
        return sequences, sequences, True
    if mask.is_per_key and (mask.allowed is None or mask.allowed.shape[1] == 1):  # the same for all heads
        real = torch.ones(batch, mask.key_len, dtype=torch.bool, device=device)
        if mask.allowed is not None:  # (B,S)
            real = mask.allowed[:, 0, 0].expand(batch, -1)
        keys = PackedSequences.from_lengths(real.flatten().nonzero().flatten(), real.sum(dim=1))
        return PackedSequences.from_documents(rows), keys, False
    raise ValueError(
        "variable-length attention supports documents (also with causal), padded keys and the causal mask; documents "
        "and the causal mask need as many keys as queries; use kernel='blocked'"
    )


def _varlen_cuda(
    q: Tensor, k: Tensor, v: Tensor, queries: PackedSequences, keys: PackedSequences, causal: bool, scale: float
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    window = (-1, 0) if causal else (-1, -1)  # keys before and behind a query; -1: no limit
    bounds, lengths = (queries.bounds, keys.bounds), (queries.max_len, keys.max_len)
    out = varlen_attn(q, k, v, *bounds, *lengths, scale=scale, window_size=window)
    assert isinstance(out, Tensor)
    empty = (keys.bounds[1:] == keys.bounds[:-1]).repeat_interleave(queries.bounds.diff().long())
    return out.masked_fill(empty[:, None, None], 0.0) if bool(empty.any()) else out


def _varlen_plain(
    q: Tensor, k: Tensor, v: Tensor, queries: PackedSequences, keys: PackedSequences, causal: bool, scale: float
) -> Tensor:
    """Sequence by sequence: q (T,H,K), k (S,H,K), v (S,H,Kv) -> (T,H,Kv)."""
    outputs = [q[:0, :, :1] + k[:0, :, :1] + v[:0]]  # empty, but with a gradient
    q_bounds, k_bounds = queries.bounds.tolist(), keys.bounds.tolist()
    for n in range(len(q_bounds) - 1):
        query = q[q_bounds[n] : q_bounds[n + 1]].transpose(0, 1)  # (H,t,K)
        key, value = (x[k_bounds[n] : k_bounds[n + 1]].transpose(0, 1) for x in (k, v))  # (H,s,K), (H,s,Kv)
        if key.shape[1]:
            out = F.scaled_dot_product_attention(query, key, value, is_causal=causal, scale=scale)
        else:
            out = query.new_zeros(*query.shape[:2], v.shape[-1])
        outputs.append(out.transpose(0, 1))
    return torch.cat(outputs)
