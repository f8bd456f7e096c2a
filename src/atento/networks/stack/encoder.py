"""The encoder: BERT, RoBERTa, XLM-R, SpanBERT and T5's reading half, as configurations of the one stack.

See docs/notes.md#c6, #a6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from atento.attention.algebra import Mask
from atento.attention.dropout import Randomness
from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import ProjectionConfig
from atento.networks.frozen import current
from atento.networks.generator import Generator, sampled
from atento.networks.heads import Pooler, make_heads
from atento.networks.interface import Network, layer_count
from atento.networks.layers import ACTIVATIONS, LayerMix, TokenEmbedding, initialise
from atento.networks.output import Output, Replaced
from atento.networks.stack.stack import MaskArgument, Stack, within_window
from atento.networks.stack.stack_positions import InputLayer, total_cost


class Projections(nn.ModuleList):
    """Linear maps one after the other, each with an activation or none."""

    def __init__(self, d_model: int, configs: Sequence[ProjectionConfig]) -> None:
        widths = [d_model, *(config.width for config in configs)]
        super().__init__(
            nn.Linear(config.inputs or width, config.width, bias=config.bias)
            for width, config in zip(widths, configs, strict=False)
        )
        self.activations = [config.activation for config in configs]

    def forward(self, vectors: Tensor) -> Tensor:
        """(N,D) -> (N,E), in the dtype of the vectors."""
        for part, activation in zip(self, self.activations, strict=True):
            assert isinstance(part, nn.Linear)
            bias = None if part.bias is None else part.bias.to(vectors.dtype)
            vectors = F.linear(vectors, part.weight.to(vectors.dtype), bias)
            vectors = vectors if activation is None else ACTIVATIONS[activation](vectors)
        return vectors


class Encoder(Network):
    """Encodes a text under a bidirectional mask; its heads predict from the hidden vectors."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        if config.vocab_size < 1:
            raise ValueError(f"`vocab_size` must be at least 1: got {config.vocab_size}")
        self.config = config
        self.embedding = TokenEmbedding(config.vocab_size, config.embedding_width, scale=config.embedding.scaled)
        self.inputs = InputLayer(config)
        self.stack = Stack(config, kind="encoder", n_layers=config.n_layers)
        self.mix = LayerMix(config.n_layers + 1, norm=config.norm == "pre") if config.layer_mix else None
        self.pooler = Pooler(config.d_model) if config.pooler else None
        self.heads = make_heads(config)
        for head in config.heads:
            if head.kind == "generator":  # it has a stack of its own, which the file of heads does not know
                self.heads[head.name] = Generator(config, head)
        self.projections = Projections(config.d_model, config.projections)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the weights with `initialise`."""
        initialise(self, self.config)

    def forward(
        self,
        ids: Tensor,
        *,
        token_mask: Tensor | None = None,
        segment_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        mask: MaskArgument = None,
        random: Randomness | None = None,
        project: bool = True,
    ) -> Output:
        """One forward pass.

        Args:
            ids: (B,L). token_mask: boolean (B,L), True = a real token.
            segment_ids: (B,L); None: 0. position_ids: (B,L); None: 0 to L-1.
            mask: replaces the bidirectional mask (a list: one a layer); the padding mask is always joined to it.
            random: the random numbers of dropout in training.
            project: False leaves `logits` None.

        Returns:
            Output with hidden (B,L,D), of the last layer or the mix of layers; pooled (B,D) where there is a pooler;
            logits of the first head.
        """

        def compute() -> Tensor:
            x = self.inputs(
                self.embedding(ids),
                position_ids=position_ids,
                segment_ids=segment_ids,
                token_mask=token_mask,
                random=random,
            )
            layers: list[Tensor] = []
            states: Tensor = self.stack(
                x,
                mask=mask,
                token_mask=token_mask,
                position_ids=position_ids,
                random=random,
                layers=None if self.mix is None else layers,
            )
            return states if self.mix is None else self.mix.joined(layers)

        # hidden vectors of a frozen network are computed once; a mask or positions would change them
        vectors = current() if mask is None and position_ids is None else None
        if vectors is None:
            hidden = compute()
        else:
            hidden = vectors.hidden(compute, ids, token_mask, segment_ids).to(next(self.parameters()).dtype)
        if self.mix is not None:
            hidden = self.mix.of_joined(hidden)
        return self.output(hidden, token_mask, random, project=project)

    def output(
        self, hidden: Tensor, token_mask: Tensor | None, random: Randomness | None = None, *, project: bool = True
    ) -> Output:
        """The result of `forward` for the hidden vectors that heads read, (B,L,D)."""
        pooled = None if self.pooler is None else self.pooler(hidden, token_mask)
        output = Output(hidden, pooled=pooled)
        first = next((name for name, head in self.heads.items() if head.kind not in ("boundary", "generator")), None)
        if project and first is not None:
            output.logits = self.read(first, output, token_mask, random)
        return output

    def replaced(
        self, head: str, inputs: Mapping[str, Tensor], labels: Tensor, random: Randomness | None = None
    ) -> Output:
        """As `Network.replaced`."""
        generator, token_mask, labelled = self.heads[head], inputs.get("token_mask"), labels >= 0
        assert isinstance(generator, Generator)
        vectors = self.inputs.summed(
            self.embedding(inputs["ids"]), segment_ids=inputs.get("segment_ids"), token_mask=token_mask, random=random
        )
        predicted = generator.read(generator(vectors, token_mask, random)[labelled])
        weight, ids = generator.matrix(self.table), inputs["ids"].clone()
        ids[labelled] = sampled(predicted, weight, generator.bias, random)  # (n), in the order of `labelled`
        output: Output = self(**dict(inputs) | {"ids": ids}, random=random, project=False)
        output.state = Replaced(predicted, weight, generator.bias, ids)
        return output

    def in_place_of_its_mask(self, mask: Mask) -> Mask | list[Mask]:
        """As `Network.in_place_of_its_mask`."""
        return within_window(mask, self.config)

    def features(self, ids: Tensor, *, token_mask: Tensor | None = None, layer: int = -1) -> Tensor:
        """As `Network.features`."""
        depth = layer_count(layer, self.config.n_layers)
        x = self.inputs(self.embedding(ids), token_mask=token_mask)
        hidden: Tensor = self.stack(x, token_mask=token_mask, depth=depth)
        return hidden

    def text_vectors(self, pooled: Tensor) -> Tensor:
        """As `Network.text_vectors`."""
        vectors: Tensor = self.projections(pooled)
        return vectors

    @property
    def table(self) -> TokenEmbedding:
        """The embedding of tokens."""
        return self.embedding

    def cost(self) -> Tensor | None:
        """The cost of learned sparsity, added to the loss, in nats a target; None: no cost (docs/notes.md#a17)."""
        return total_cost(self)
