"""Ablation: heads (Michel et al. 2019) or position schemes are left out, and the loss is measured."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from atento.attention.multihead import MultiHeadAttention
from atento.base.errors import UsageError, nearest
from atento.config.sections.network import NetworkConfig
from atento.networks.interface import Network
from atento.networks.stack.stack_positions import AddedPositions, LayerPositions


def scheme_names(config: NetworkConfig) -> list[str]:
    """The position schemes of a network in order, by kind: ["sinusoidal", "t5"]; equal kinds as "t5 1", "t5 2"."""
    kinds = [scheme.kind for scheme in config.schemes]
    numbered = [f"{kind} {kinds[: number + 1].count(kind)}" for number, kind in enumerate(kinds)]
    return [kind if kinds.count(kind) == 1 else name for kind, name in zip(kinds, numbered)]


@contextmanager
def without_scheme(network: Network, name: str) -> Iterator[None]:
    """Remove a scheme from the network for the time of a block: `with without_scheme(network, "sinusoidal"): ...`.

    It is removed from every layer, head and stack, with its learned weights; nothing else changes. This holds for
    forward passes of the network: step functions made before have their own weights. The network must not be used
    from another thread meanwhile.

    Args:
        name: one of `scheme_names(network.config)`.

    Raises UsageError: no such scheme.
    """
    names = scheme_names(network.config)
    if name not in names:
        raise UsageError(f"no position scheme {name!r} in this network{nearest(name, names) if names else ''}")
    number = names.index(name)
    before = []
    own = [part for name, part in network.named_modules() if not name.startswith("source_features.")]
    added = [part for part in own if isinstance(part, AddedPositions) and number in part.numbers]
    for part in own:
        if isinstance(part, LayerPositions):
            before.append((part, part.relative, part.rotary))  # the lists below are new ones
            part.relative = [[i for i in layer if part.numbers[i] != number] for layer in part.relative]
            part.rotary = [[scheme for scheme in layer if part.numbers[scheme[0]] != number] for layer in part.rotary]
    for scheme in added:
        scheme.off.add(number)
    try:
        yield
    finally:
        for stack, relative, rotary in before:
            stack.relative, stack.rotary = relative, rotary
        for scheme in added:
            scheme.off.discard(number)


@torch.no_grad()
def position_effects(network: Network, loss: Callable[[], float]) -> dict[str, float]:
    """The increase of the loss without each scheme: {"sinusoidal": 1.31, "t5": 0.02}; `loss` runs the network once.

    Near 0: the model does as well without it. One run a scheme, and one with all of them.

    Args:
        network: in evaluation mode.
        loss: a forward pass of the network, for example nats a token on some data.
    """
    full_loss, effects = loss(), {}
    for name in scheme_names(network.config):
        with without_scheme(network, name):
            effects[name] = loss() - full_loss
    return effects


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
