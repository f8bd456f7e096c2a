"""Blocks compiled with `torch.compile`, for training: one compiled function for all blocks and lengths."""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn

from atento.attention.dropout import Randomness
from atento.attention.lowering import LoweredMask

_VARIANTS = 64  # of the compiled function: with and without padding, short and long rows, each kind of block


def run_compiled(
    block: nn.Module,
    x: Tensor,
    *,
    mask: LoweredMask,
    memory_mask: LoweredMask | None,
    random: Randomness | None,
    **others: object,
) -> Tensor:
    """Call a block as `Block.forward` takes it, compiled; the same dropout masks are drawn as without."""
    for lowered in (mask, memory_mask):
        if lowered is not None:  # whether a row is empty decides what is computed: found before the compiled code
            _ = lowered.bias, lowered.empty
    traced = None if random is None else random.as_tensor(x.device)
    out: Tensor = _compiled()(block, x, mask=mask, memory_mask=memory_mask, random=traced, **others)
    if random is not None and traced is not None:
        random.use += traced.use
    return out


@cache
def _compiled() -> Callable[..., Tensor]:
    from torch._dynamo import config  # late: it takes a second

    config.recompile_limit = max(config.recompile_limit, _VARIANTS)
    # index propagation overflows in the counters of dropout, whose products are meant modulo 2^64
    return torch.compile(_run, dynamic=True, options={"constant_and_index_propagation": False})


def _run(block: nn.Module, x: Tensor, **arguments: object) -> Tensor:
    out: Tensor = block(x, **arguments)
    return out
