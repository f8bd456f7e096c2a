"""Head ablation: set the output of single heads to zero and measure the loss (Michel et al. 2019)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from atento.attention.multihead import MultiHeadAttention
from atento.errors import UsageError


def attentions(network: nn.Module) -> dict[tuple[str, int], MultiHeadAttention]:
    """The attention layers of a network by ("encoder" | "decoder" | "cross", layer)."""
    modules = [module for module in network.modules() if isinstance(module, MultiHeadAttention) and module.kind]
    return {(module.kind, module.layer): module for module in modules}


@contextmanager
def ablate(network: nn.Module, kind: str, layer: int, head: int) -> Iterator[None]:
    """Set the output of one head to zero inside this context: `with ablate(network, "cross", -1, 3): ...`.

    Args:
        kind: "encoder", "decoder" or "cross".
        layer: layer number from 0; -1 is the last.
        head: head number from 0.

    Raises UsageError: the network has no such layer or head.
    """
    by_kind_and_layer = attentions(network)
    depth = max((number + 1 for name, number in by_kind_and_layer if name == kind), default=0)  # layers of that kind
    attention = by_kind_and_layer.get((kind, layer + depth if layer < 0 else layer))
    if attention is None or not 0 <= head < attention.n_heads:
        known = ", ".join(f"{name} {number}" for name, number in sorted(by_kind_and_layer))
        heads = "" if attention is None else f", heads 0 to {attention.n_heads - 1}"
        raise UsageError(f"no head {head} in {kind} attention of layer {layer}; there are: {known}{heads}")
    columns = slice(head * attention.d_head, (head + 1) * attention.d_head)  # of the head, among H·K

    def zero_head(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Tensor]:
        context = inputs[0].clone()  # (B,T,H·K), the outputs of all heads
        context[..., columns] = 0.0
        return (context,)

    hook = attention.output.register_forward_pre_hook(zero_head)
    try:
        yield
    finally:
        hook.remove()


@torch.no_grad()
def ablation_effects(network: nn.Module, loss: Callable[[], float]) -> dict[tuple[str, int, int], float]:
    """The increase of the loss when each head is ablated: {("cross", 0, 3): 0.12, ...}.

    Near 0, the model does as well without the head. The network runs once for each head, and once with all heads.

    Args:
        loss: runs the network and returns the loss.
    """
    baseline = loss()  # with all heads
    effects = {}
    for (kind, layer), attention in attentions(network).items():
        for head in range(attention.n_heads):
            with ablate(network, kind, layer, head):
                effects[kind, layer, head] = loss() - baseline
    return effects
