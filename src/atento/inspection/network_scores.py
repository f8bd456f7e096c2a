"""Decomposes the scores of any self-attention layer of a network while it runs (docs/notes.md#b13)."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from atento.base.errors import UsageError
from atento.inspection.ablation import attentions
from atento.inspection.decompose import decompose
from atento.networks.layers import Block
from atento.networks.stack.stack import Stack
from atento.networks.stack.stack_positions import AddedPositions, InputLayer


def score_parts(network: nn.Module, kind: str, layer: int, run: Callable[[], object]) -> dict[str, Tensor]:
    """The parts of the scores in self-attention `kind` ("encoder" or "decoder") of that layer during `run()`.

    Positions that are added to the input are separated in the first layer, where the stream is still the sum of content
    and position; from the second layer on, and after a norm over the sum (BERT's), they count as content. Returns the
    result of `decompose`; `inspection.decompose.parts_by_word` sums it over words.
    Raises UsageError: no such self-attention; `run` did not pass through it; the network is training.
    """
    attention = attentions(network).get((kind, layer))
    modules = list(network.modules())
    blocks = [module for module in modules if isinstance(module, Block) and module.self_attention is attention]
    if attention is None or not blocks:
        known = sorted({number for name, number in attentions(network) if name == kind})
        raise UsageError(f"no self-attention of layer {layer} in {kind!r}; its layers: {known or 'none'}")
    if network.training:
        raise UsageError("scores are decomposed in evaluation mode: call `network.eval()` first")
    if attention.query_norm is not None:
        raise UsageError("scores whose queries and keys are normalised are no sum of parts: `attention.norm` is on")
    (block,) = blocks
    read: dict[str, Any] = {}

    def before_block(module: nn.Module, inputs: tuple[object, ...], named: dict[str, object]) -> None:
        read["x"], read["position_terms"] = inputs[0], named.get("position_terms")

    def after_input(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        if "x" not in read:  # the last input computed before this layer belongs to this stack
            read["added"] = output - inputs[0]

    def after_layer(module: nn.Module, inputs: tuple[object, ...], output: Tensor) -> None:
        read["added"] = read.get("added", 0) + output - inputs[0]

    stacks = [module for module in modules if isinstance(module, Stack)]
    stack = next(one for one in stacks if any(b is block for b in one.blocks))
    hooks = [block.register_forward_pre_hook(before_block, with_kwargs=True)]
    if layer == 0:
        excluded = {id(one.positions) for one in modules if isinstance(one, InputLayer) and one.norm is not None}
        excluded |= {id(module) for one in stacks for module in one.modules()}
        added = [module for module in modules if isinstance(module, AddedPositions) and len(module.schemes)]
        hooks += [module.register_forward_hook(after_input) for module in added if id(module) not in excluded]
        if "0" in stack.positions.added:
            hooks.append(stack.positions.added["0"].register_forward_hook(after_layer))
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    if "x" not in read:
        raise UsageError(f"the run did not pass through the {kind} self-attention of layer {layer}")
    norm = block.self_attention_residual.norm if block.self_attention_residual.norm_placement == "pre" else None
    return decompose(attention, read["x"], position_terms=read["position_terms"], added=read.get("added"), norm=norm)
