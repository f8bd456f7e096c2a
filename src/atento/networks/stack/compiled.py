"""Blocks in training: compiled with `torch.compile`, or computed again in the backward pass (checkpointing)."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from atento.attention.dropout import Randomness
from atento.attention.observe import unobserved
from atento.attention.prepared_mask import PreparedMask

_VARIANTS = 64  # of the compiled function: with and without padding, short and long rows, each kind of block


def run_compiled(
    block: nn.Module,
    x: Tensor,
    *,
    mask: PreparedMask,
    memory_mask: PreparedMask | None,
    random: Randomness | None,
    **others: object,
) -> Tensor:
    """Call a block as `Block.forward` takes it, compiled; the same dropout masks are drawn as without."""
    for prepared in (mask, memory_mask):
        if prepared is not None:  # whether a row is empty decides what is computed: found before the compiled code
            _ = prepared.bias, prepared.empty  # cached in the prepared mask
    traced = None if random is None else random.as_tensor(x.device)
    out: Tensor = _compiled()(block, x, mask=mask, memory_mask=memory_mask, random=traced, **others)
    if random is not None and traced is not None:
        random.use += traced.use  # as if the masks had been drawn here
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


def recomputed(run: Callable[..., Tensor], x: Tensor, random: Randomness | None) -> Tensor:
    """Return run(x, random=random), whose activations are computed again in the backward pass (Chen et al. 2016).

    Dropout is a function of counters, so the second computation drops the same elements: gradients are bit-equal.

    Args:
        run: a block.
        x: its input (B,T,D).
        random: the randomness of dropout; it is advanced once.
    """
    start = None if random is None else replace(random)  # a copy from before the first run
    calls = 0

    def forward(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 1:
            return run(x, random=random)
        with unobserved():  # the second run records nothing
            return run(x, random=None if start is None else replace(start))  # again from the same counters

    output: Tensor = checkpoint(forward, x, use_reentrant=False, preserve_rng_state=False)
    return output
