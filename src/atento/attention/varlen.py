"""Attention without padding: the texts of a batch, or packed documents, one after the other in one long row.

On CUDA it is PyTorch's variable-length kernel; on a processor its plain twin, text by text, which is there to be
checked and never the default.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from atento.attention.algebra import Mask
from atento.attention.equation import Asked
from atento.attention.lowering import LoweredMask


@dataclass(frozen=True)
class Pieces:
    """Which places of a batch (B,L) stand one after the other in the long row, and where each piece of it begins.

    `places` (T,) are numbers of B·L; `bounds` (N+1,) int32; `longest` is the length of the longest piece.
    """

    places: Tensor
    bounds: Tensor
    longest: int

    @classmethod
    def of(cls, ids: Tensor) -> "Pieces":
        """A piece for each number in each row of ids (B,L); -1 is left out."""
        rows = torch.arange(len(ids), device=ids.device).unsqueeze(1)
        own = torch.where(ids < 0, -1, ids + rows * (ids.max() + 1)).flatten()  # (B·L,)
        places = torch.argsort(own, stable=True)[int((own < 0).sum()) :]
        counts = torch.unique_consecutive(own[places], return_counts=True)[1]
        return cls.long(places, counts)

    @classmethod
    def long(cls, places: Tensor, counts: Tensor) -> "Pieces":
        """Pieces of those lengths (N,)."""
        bounds = F.pad(counts.cumsum(0), (1, 0)).to(torch.int32)
        return cls(places, bounds, int(counts.max()) if len(counts) else 0)

    def taken(self, x: Tensor) -> Tensor:
        """x (B,H,L,K) -> the long row (T,H,K)."""
        return x.transpose(1, 2).flatten(0, 1)[self.places]


def varlen(q: Tensor, k: Tensor, v: Tensor, asked: Asked) -> Tensor:
    """The same attention; what padding, or another document, would have cost is never computed.

    For packed documents, causal or not, for padded keys, and for no mask or the causal one.

    Raises:
        ValueError: another mask, or something is added to scores or values, or weights are dropped.
    """
    if asked.value_bias is not None or asked.bias is not None or asked.relations is not None or asked.dropout:
        raise ValueError("variable-length attention takes a mask alone; use kernel='plain' or 'blocked'")
    queries, keys, causal = _pieces(asked.mask, q.shape[0])
    packed = (queries.taken(q), keys.taken(k), keys.taken(v))
    run = _fused if q.is_cuda and len(queries.places) else _by_piece
    read = run(*packed, queries, keys, causal, asked.scale)
    out = read.new_zeros(q.shape[0] * q.shape[2], q.shape[1], v.shape[-1]).index_copy(0, queries.places, read)
    return out.view(q.shape[0], q.shape[2], q.shape[1], -1).transpose(1, 2)


def _pieces(mask: LoweredMask, batch: int) -> tuple[Pieces, Pieces, bool]:
    """The pieces of queries and of keys, and whether each is causal."""
    own, device = mask.mask, mask.device
    rows = torch.zeros(batch, mask.query_len, dtype=torch.long, device=device)
    if isinstance(own, Mask) and own.pieces is not None and mask.query_len == mask.key_len:
        pieces = Pieces.of(own.pieces.to(device).expand(batch, -1))
        return pieces, pieces, own.ahead == 0
    if mask.is_causal:
        pieces = Pieces.of(rows)
        return pieces, pieces, True
    if mask.is_of_keys and (mask.allowed is None or mask.allowed.shape[1] == 1):
        whole = torch.ones(batch, mask.key_len, dtype=torch.bool, device=device)
        real = whole if mask.allowed is None else mask.allowed[:, 0, 0].expand(batch, -1)
        keys = Pieces.long(real.flatten().nonzero().flatten(), real.sum(dim=1))
        return Pieces.of(rows), keys, False
    raise ValueError(
        "variable-length attention knows documents, padded keys and the causal mask, none with another, but documents "
        "with causal, and those with as many keys as queries; use kernel='blocked'"
    )


def _fused(q: Tensor, k: Tensor, v: Tensor, queries: Pieces, keys: Pieces, causal: bool, scale: float) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    window = (-1, 0) if causal else (-1, -1)
    bounds, sizes = (queries.bounds, keys.bounds), (queries.longest, keys.longest)
    out = varlen_attn(q, k, v, *bounds, *sizes, scale=scale, window_size=window)
    assert isinstance(out, Tensor)
    empty = (keys.bounds[1:] == keys.bounds[:-1]).repeat_interleave(queries.bounds.diff().long())
    return out.masked_fill(empty[:, None, None], 0.0) if bool(empty.any()) else out


def _by_piece(q: Tensor, k: Tensor, v: Tensor, queries: Pieces, keys: Pieces, causal: bool, scale: float) -> Tensor:
    """The same, piece by piece: q (T,H,K), k (S,H,K), v (S,H,Kv) -> (T,H,Kv)."""
    outputs = [q[:0, :, :1] + k[:0, :, :1] + v[:0]]  # nothing yet, but with a gradient
    own, other = queries.bounds.tolist(), keys.bounds.tolist()
    for n in range(len(own) - 1):
        part = q[own[n] : own[n + 1]].transpose(0, 1)
        read, value = (x[other[n] : other[n + 1]].transpose(0, 1) for x in (k, v))
        if read.shape[1]:
            out = F.scaled_dot_product_attention(part, read, value, is_causal=causal, scale=scale)
        else:
            out = part.new_zeros(*part.shape[:2], v.shape[-1])
        outputs.append(out.transpose(0, 1))
    return torch.cat(outputs)
