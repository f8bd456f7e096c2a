"""The parts of a decoder block that the fast step function runs, with packed weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from atento.inference.packed_linear import PackedLinear, WeightLinear
from atento.inference.packed_modules import PackedModule
from atento.networks.stack.block import Block


@dataclass
class FastLayer:
    """The parts of one decoder block."""

    norms: list[nn.Module]  # of self-attention, cross-attention (if any), feed-forward
    self_input: PackedLinear  # queries, keys and values
    self_output: PackedLinear
    cross_queries: PackedLinear | None
    cross_keys_values: PackedLinear | None
    cross_output: PackedLinear | None
    inner: PackedLinear
    outer: PackedLinear
    activation: Callable[[Tensor], Tensor] | None  # None: `inner` applies it
    gated: bool

    def activations(self, x: Tensor) -> Tensor:
        """x (R,D) -> the activations (R,F) of the feed-forward sublayer that the outer product reads."""
        x = self.inner(x)
        if self.activation is None:
            return x
        if not self.gated:
            return self.activation(x)
        x, gate = x.chunk(2, dim=-1)
        return self.activation(x) * gate

    @staticmethod
    def of(block: Block) -> FastLayer:
        """The parts of a block that is packed (`pack_decoder`)."""
        self_attention, cross_attention, feed_forward = block.self_attention, block.cross_attention, block.feed_forward

        def parts(linear: nn.Module) -> Sequence[WeightLinear]:
            assert isinstance(linear, PackedModule)
            return linear.parts

        norms = [block.self_attention_residual.norm, block.feed_forward_residual.norm]
        relu = feed_forward.activation is F.relu and not feed_forward.gated
        layer = FastLayer(
            norms,
            parts(self_attention.input)[0],
            parts(self_attention.output)[0],
            None,
            None,
            None,
            parts(feed_forward.inner)[0].followed_by("relu" if relu else "none"),
            parts(feed_forward.outer)[0],
            None if relu else feed_forward.activation,
            feed_forward.gated,
        )
        if cross_attention is not None and block.cross_attention_residual is not None:
            norms.insert(1, block.cross_attention_residual.norm)
            layer.cross_queries, layer.cross_keys_values = parts(cross_attention.input)
            layer.cross_output = parts(cross_attention.output)[0]
        return layer
