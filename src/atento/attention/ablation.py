"""Heads taken away, one at a time, to see what the loss says to it (Michel et al. 2019)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from atento.attention.multihead import MultiHeadAttention
from atento.errors import UsageError


def attentions(network: nn.Module) -> dict[tuple[str, int], MultiHeadAttention]:
    """The attention layers of a network by ("encoder" | "decoder" | "cross", layer)."""
    return {(one.kind, one.layer): one for one in network.modules() if isinstance(one, MultiHeadAttention)}


@contextmanager
def ablate(network: nn.Module, kind: str, layer: int, head: int) -> Iterator[None]:
    """While this lasts, what that head has read is zero: `with ablate(network, "cross", -1, 3): ...`.

    Raises:
        UsageError: the network has no such attention or head.
    """
    found = attentions(network)
    depth = max((number + 1 for name, number in found if name == kind), default=0)
    part = found.get((kind, layer + depth if layer < 0 else layer))
    if part is None or not 0 <= head < part.n_heads:
        known = ", ".join(f"{name} {number}" for name, number in sorted(found))
        heads = "" if part is None else f", heads 0 to {part.n_heads - 1}"
        raise UsageError(f"no head {head} in {kind} attention of layer {layer}; there are: {known}{heads}")
    columns = slice(head * part.d_head, (head + 1) * part.d_head)

    def silence(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Tensor]:
        read = inputs[0].clone()
        read[..., columns] = 0.0
        return (read,)

    hook = part.output.register_forward_pre_hook(silence)
    try:
        yield
    finally:
        hook.remove()


@torch.no_grad()
def ablation_effects(network: nn.Module, loss: Callable[[], float]) -> dict[tuple[str, int, int], float]:
    """What taking each head away adds to the loss: {("cross", 0, 3): 0.12, ...}; `loss` runs the network once.

    Near 0: the model does as well without it. One run a head, and one with all of them.
    """
    whole = loss()
    effects = {}
    for (kind, layer), part in attentions(network).items():
        for head in range(part.n_heads):
            with ablate(network, kind, layer, head):
                effects[kind, layer, head] = loss() - whole
    return effects
