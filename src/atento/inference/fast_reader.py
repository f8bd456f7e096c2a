"""An encoder that reads by the fast pass of `encoder_reading.py` wherever its weights and the texts allow it."""

from __future__ import annotations

import torch
from torch import Tensor

from atento.attention.dropout import Randomness
from atento.attention.observe import observing
from atento.base.errors import CapabilityError
from atento.base.precision import best_precision
from atento.inference.encoder_reading import PackedStack, Unpadded, why_not_packed
from atento.inference.engine import Engine
from atento.inference.onnx_reading import EncoderGraph
from atento.inference.packed_linear import Precision
from atento.networks.frozen import current
from atento.networks.int8_projection import in_8_bits, multiplies_by_table
from atento.networks.interface import Network, layer_count
from atento.networks.layers import TokenEmbedding
from atento.networks.output import Output
from atento.networks.stack.encoder import Encoder


def why_no_fast_reading(network: object) -> str | None:
    """The part of this network that the fast reading pass does not support; None if it supports all."""
    if not isinstance(network, Encoder):
        return f"networks of type {type(network).__name__}"
    if next(network.parameters()).device.type != "cpu":
        return "networks on other devices than the CPU"
    return "a mix of layers" if network.mix is not None else why_not_packed(network.stack)


class FastReader(Network):
    """An encoder that reads with packed copies of its linear maps; all else is the encoder's, heads included.

    It computes what the encoder computes in evaluation mode, to rounding, and 0 at padding. Weights that change later
    have no effect on it. The copies take the memory of the linear maps of the layers once more: 4 bytes a weight in
    float32, 2 in bfloat16, 1 in int8, where the table of tokens is copied too. Where the encoder is observed, where its
    frozen vectors are stored, and for padding on the left, the encoder's own forward pass runs.

    Raises:
        CapabilityError: the network has a part that is not supported; names it.
    """

    def __init__(self, network: Encoder, precision: Precision = "float32", engine: Engine = "torch") -> None:
        super().__init__()
        reason = why_no_fast_reading(network)
        if reason is not None:
            raise CapabilityError(f"no fast reading for {reason}")
        self.network, self.config, self.heads = network, network.config, network.heads
        attention_type = attention_type_of(network, precision)
        rounds = precision == "int8" and not multiplies_by_table(network)
        self.embedding = in_8_bits(network.embedding) if rounds else network.embedding
        graph = None if engine == "torch" else EncoderGraph.of(engine, network.stack, network.config, precision)
        self.packed = PackedStack(network.stack, network.config.norm == "pre", precision, attention_type, graph)

    @property
    def table(self) -> TokenEmbedding:
        """The embedding of tokens."""
        return self.network.table

    def forward(
        self,
        ids: Tensor,
        *,
        token_mask: Tensor | None = None,
        segment_ids: Tensor | None = None,
        random: Randomness | None = None,
        project: bool = True,
        **others: object,
    ) -> Output:
        """As `Encoder.forward`."""
        if any(value is not None for value in others.values()) or not self._reads(token_mask):
            common = {"token_mask": token_mask, "segment_ids": segment_ids, "random": random, "project": project}
            output: Output = self.network(ids, **common, **others)
            return output
        hidden = self._hidden(ids, token_mask, segment_ids, self.config.n_layers)
        return self.network.output(hidden, token_mask, random, project=project)

    def features(self, ids: Tensor, *, token_mask: Tensor | None = None, layer: int = -1) -> Tensor:
        """As `Network.features`."""
        if not self._reads(token_mask):
            return self.network.features(ids, token_mask=token_mask, layer=layer)
        return self._hidden(ids, token_mask, None, layer_count(layer, self.config.n_layers))

    def text_vectors(self, pooled: Tensor) -> Tensor:
        """As `Network.text_vectors`."""
        return self.network.text_vectors(pooled)

    def _reads(self, token_mask: Tensor | None) -> bool:
        """Whether the fast pass applies here."""
        if self.network.training or current() is not None or observing(self.network):
            return False
        return token_mask is None or not bool((token_mask[:, 1:] & ~token_mask[:, :-1]).any())

    @torch.no_grad()
    def _hidden(self, ids: Tensor, token_mask: Tensor | None, segment_ids: Tensor | None, depth: int) -> Tensor:
        """The output of the first `depth` layers for ids (B,L), padded on the right: (B,L,D), 0 at padding."""
        network = self.network
        real = torch.ones_like(ids, dtype=torch.bool) if token_mask is None else token_mask
        if not bool(real.any()):
            return next(network.parameters()).new_zeros(*ids.shape, self.config.d_model)
        tokens = Unpadded(real)
        x = network.inputs(
            self.embedding(tokens.take(ids)),
            position_ids=tokens.positions,
            segment_ids=None if segment_ids is None else tokens.take(segment_ids),
        ).squeeze(0)  # (N,D)
        return tokens.pad(self.packed(x, tokens.lengths, depth))


def attention_type_of(network: Encoder, precision: Precision) -> torch.dtype:
    """The type of queries, keys and values: with int8 products bfloat16 where the processor multiplies it natively."""
    rounds = precision == "int8" and best_precision("cpu") == "bfloat16" and not network.config.attention.norm
    return torch.bfloat16 if rounds else next(network.parameters()).dtype
