"""FlexAttention, PyTorch's compiled kernel for CUDA, behind the same call.

It is never the default on a CPU: it has no backward pass there and needs a compiler.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from atento.attention.algebra import Mask
from atento.attention.equation import Asked
from atento.attention.lowering import LoweredMask


@cache
def _compiled() -> Callable[..., Any]:
    """The compiled kernel; compiled once a process, and again for each new kind of call."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


def flex(q: Tensor, k: Tensor, v: Tensor, asked: Asked) -> Tensor:
    """PyTorch's FlexAttention: skips squares that the mask empties, and adds what schemes give to each score.

    Raises:
        ValueError: what is asked adds to values, drops weights, or depends on the query as Shaw's keys do.
    """
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    if asked.value_bias is not None or asked.dropout or not asked.only_biases:
        raise ValueError("FlexAttention neither adds to values nor drops weights; use kernel='plain' or 'blocked'")
    query_len, key_len = q.shape[-2], k.shape[-2]
    mask, added = asked.mask, asked.added(q)

    def score(found: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        assert added is not None
        return found + added[b % added.shape[0], h % added.shape[1], i % added.shape[2], j]

    block_mask = None
    if mask.mask is not None:
        block_mask = create_block_mask(
            _rule(mask), q.shape[0], q.shape[1], query_len, key_len, device=str(q.device), BLOCK_SIZE=128
        )
    kernel: Any = _compiled() if q.is_cuda else flex_attention
    out: Tensor = kernel(q, k, v, score_mod=None if added is None else score, block_mask=block_mask, scale=asked.scale)
    return out if mask.mask is None or mask.empty is None else out.masked_fill(mask.empty, 0.0)


def _rule(mask: LoweredMask) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """The mask as FlexAttention asks for it: one pair at a time, numbered from 0."""
    own, ahead = mask.mask, mask.key_len - mask.query_len
    if isinstance(own, Mask) and own.form == "causal":
        return lambda b, h, i, j: j <= i + ahead
    allowed = mask.allowed
    assert allowed is not None

    def look_up(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return allowed[b % allowed.shape[0], h % allowed.shape[1], i % allowed.shape[2], j]

    return look_up
