"""Removes the position schemes one at a time and measures the effect on the loss (docs/notes.md#b7)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from atento.config.sections.network import NetworkConfig
from atento.errors import UsageError, nearest
from atento.networks.interface import Network
from atento.networks.stack.stack_positions import AddedPositions, LayerPositions


def scheme_names(config: NetworkConfig) -> list[str]:
    """The position schemes of a network in order, by kind: ["sinusoidal", "t5"]; equal kinds as "t5 1", "t5 2"."""
    kinds = [scheme.kind for scheme in config.schemes]
    return [
        kind if kinds.count(kind) == 1 else f"{kind} {kinds[: number + 1].count(kind)}"
        for number, kind in enumerate(kinds)
    ]


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
