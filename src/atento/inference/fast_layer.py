"""The parts of a decoder block that the fast step function runs, with packed weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from atento.inference.packed_linear import PackedLinear, PackedModule, Precision, pack
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
    def of(block: Block, precision: Precision) -> FastLayer:
        """The parts of a block, packed if they are not yet."""
        self_attention, cross_attention, feed_forward = block.self_attention, block.cross_attention, block.feed_forward

        def packed(linear: nn.Module, relu: bool = False) -> PackedLinear:
            if isinstance(linear, PackedModule):
                return linear.linear
            assert isinstance(linear, nn.Linear)
            return pack(linear.weight, linear.bias, precision, activation="relu" if relu else "none")

        norms = [block.self_attention_residual.norm, block.feed_forward_residual.norm]
        relu = (
            feed_forward.activation is F.relu and not feed_forward.gated and isinstance(feed_forward.inner, nn.Linear)
        )
        layer = FastLayer(
            norms,
            packed(self_attention.input),
            packed(self_attention.output),
            None,
            None,
            None,
            packed(feed_forward.inner, relu),
            packed(feed_forward.outer),
            None if relu else feed_forward.activation,
            feed_forward.gated,
        )
        if cross_attention is not None and block.cross_attention_residual is not None:
            norms.insert(1, block.cross_attention_residual.norm)
            queries = cross_attention.n_heads * cross_attention.d_head
            weight, bias = cross_attention.input.weight, cross_attention.input.bias
            layer.cross_queries = pack(weight[:queries], None if bias is None else bias[:queries], precision)
            # the source's keys and values are computed once
            source_precision: Precision = "float32" if precision == "int8" else precision
            layer.cross_keys_values = pack(weight[queries:], None if bias is None else bias[queries:], source_precision)
            layer.cross_output = packed(cross_attention.output)
        return layer
