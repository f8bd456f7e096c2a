"""The vectors between layers, what the vocabulary head would say of them, and the inside of a feed-forward."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from atento.base.errors import CapabilityError, UsageError
from atento.networks.interface import Network
from atento.networks.layers import FeedForward
from atento.networks.output import Output
from atento.networks.recurrent.cells import RecurrentStack
from atento.networks.recurrent.seq2seq import RecurrentDecoder
from atento.networks.stack.stack import Stack


@contextmanager
def streams(network: Network) -> Iterator[dict[str, list[Tensor]]]:
    """Record the vectors before and behind every layer in the last pass inside: `with streams(network) as seen: ...`.

    `seen["encoder" | "decoder"]` are n + 1 tensors (B,T,D) for n layers: the inputs of the first, and the outputs of
    each, of the last behind the final norm. Of recurrent layers, which are computed as one, it has two: the inputs of
    the first and the outputs of the last.
    """
    seen: dict[str, list[Tensor]] = {}

    def before(module: Stack, inputs: tuple[object, ...], named: dict[str, Any]) -> tuple[object, dict[str, Any]]:
        given = named.get("layers")
        seen["decoder" if module.writes else "encoder"] = layers = [] if given is None else given
        return inputs, named | {"layers": layers}

    def behind(kind: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor | tuple[Tensor, object]], None]:
        def keep(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor | tuple[Tensor, object]) -> None:
            seen[kind] = [inputs[0], output[0] if isinstance(output, tuple) else output]

        return keep

    with ExitStack() as hooks:
        for name, part in network.named_children():
            if isinstance(part, Stack):
                hooks.callback(part.register_forward_pre_hook(before, with_kwargs=True).remove)
            elif isinstance(part, RecurrentStack | RecurrentDecoder):
                kind = "encoder" if name == "encoder" else "decoder"
                hooks.callback(part.register_forward_hook(behind(kind)).remove)
        yield seen


@torch.no_grad()
def lens(network: Network, kind: str, vectors: list[Tensor]) -> Tensor:
    """What the vocabulary head says of the vectors of each layer: log-probabilities (n,...,V).

    Those of inner layers pass the final norm first, if there is one: the logit lens (nostalgebraist, 2020).

    Args:
        kind: "encoder" or "decoder", the stack that the vectors are of.
        vectors: from `streams`, (...,D) each, those of the last layer last.

    Raises CapabilityError: the network has no vocabulary head that reads the last layer of this stack.
    """
    stacks = {"decoder" if part.writes else "encoder": part for part in network.children() if isinstance(part, Stack)}
    reads_it = kind == "decoder" or ("decoder" not in {*stacks} and not network.stepwise)
    if "vocabulary" not in network.heads or not reads_it or getattr(network, "mix", None) is not None:
        raise CapabilityError("no vocabulary head reads the last layer of this stack")
    norm = stacks[kind].norm if kind in stacks else None
    *inner, last = vectors
    said = [*(one if norm is None else norm(one) for one in inner), last]
    logits = network.read("vocabulary", Output(torch.stack(said)))
    return torch.log_softmax(logits.double(), dim=-1)


@torch.no_grad()
def inner_activations(network: Network, kind: str, layer: int, run: Callable[[], object]) -> tuple[Tensor, Tensor]:
    """The activations inside a feed-forward, (B,T,F), and its output, (B,T,D), in the last pass of `run`.

    Args:
        kind: "encoder" or "decoder". layer: from 0.

    Raises UsageError: there is no such layer, or its feed-forward is of another form.
    """
    stacks = {"decoder" if part.writes else "encoder": part for part in network.children() if isinstance(part, Stack)}
    blocks = stacks[kind].layers if kind in stacks else []
    part = blocks[layer].feed_forward if 0 <= layer < len(blocks) else None
    if not isinstance(part, FeedForward):
        raise UsageError(f"no feed-forward of {kind} layer {layer} can be looked at")
    calls: list[tuple[Tensor, Tensor]] = []
    hook = part.outer.register_forward_hook(lambda module, inputs, output: calls.append((inputs[0], output)))
    try:
        run()
    finally:
        hook.remove()
    # a block that all layers share is called once for each
    return calls[layer - len(blocks)] if blocks.count(blocks[layer]) > 1 else calls[-1]
