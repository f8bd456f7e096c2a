"""Activation checkpointing: blocks that keep their input alone, and are computed again in the backward pass."""

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor
from torch.utils.checkpoint import checkpoint

from atento.attention.dropout import Randomness
from atento.attention.observe import unobserved


def recomputed(run: Callable[..., Tensor], x: Tensor, random: Randomness | None) -> Tensor:
    """Return run(x, random=random), whose activations are computed again in the backward pass (Chen et al. 2016).

    Dropout is a function of counters, so the second computation drops the same elements: gradients are bit-equal.

    Args:
        run: a block.
        x: its input (B,T,D).
        random: the randomness of dropout; it is advanced once.
    """
    start = None if random is None else replace(random)
    calls = 0

    def forward(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 1:
            return run(x, random=random)
        with unobserved():
            return run(x, random=None if start is None else replace(start))

    output: Tensor = checkpoint(forward, x, use_reentrant=False, preserve_rng_state=False)
    return output
