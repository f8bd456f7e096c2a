"""The encoder: BERT, RoBERTa, XLM-R, SpanBERT and T5's reading half, as configurations of the one stack.

See docs/notes.md#c6, #a6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from atento.attention.dropout import Randomness
from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import ProjectionConfig
from atento.config.tables.head_kinds import OF_TRAINING, WITH_LAYERS
from atento.networks.electra_generator import Generator, sampled
from atento.networks.heads import Pooler, make_heads
from atento.networks.layers import ACTIVATIONS
from atento.networks.output import Output, Replaced
from atento.networks.reconstruction import Reconstruction
from atento.networks.stack.stack import MaskArgument, SingleStack


class Projections(nn.ModuleList):
    """Linear maps one after the other, each with an activation or none."""

    def __init__(self, d_model: int, configs: Sequence[ProjectionConfig]) -> None:
        widths = [d_model, *(config.width for config in configs)]  # E of a map is the input of the next
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
            vectors = F.linear(vectors, part.weight.to(vectors.dtype), bias)  # (N,D) -> (N,E)
            vectors = vectors if activation is None else ACTIVATIONS[activation](vectors)
        return vectors


class Encoder(SingleStack):
    """Encodes a text under a bidirectional mask; its heads predict from the hidden vectors."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__(config, kind="encoder")
        self.pooler = Pooler(config.d_model) if config.pooler else None
        self.heads = make_heads(config)
        for head in config.heads:
            if head.kind in WITH_LAYERS:  # which the file of heads does not know
                self.heads[head.name] = (Generator if head.kind == "generator" else Reconstruction)(config, head)
        self.projections = Projections(config.d_model, config.projections)
        self.reset_parameters()

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
        hidden = self.hidden(
            ids, token_mask=token_mask, position_ids=position_ids, mask=mask, random=random, segment_ids=segment_ids
        )
        return self.output(hidden, token_mask, random, project=project)

    def output(
        self, hidden: Tensor, token_mask: Tensor | None, random: Randomness | None = None, *, project: bool = True
    ) -> Output:
        """The result of `forward` for the hidden vectors that heads read, (B,L,D)."""
        pooled = None if self.pooler is None else self.pooler(hidden, token_mask)
        output = Output(hidden, pooled=pooled)
        first = next((head.name for head in self.config.heads if head.kind not in OF_TRAINING), None)
        if project and first is not None:
            output.logits = self.read(first, output, token_mask, random)
        return output

    def replaced(
        self, head: str, inputs: Mapping[str, Tensor], labels: Tensor, random: Randomness | None = None
    ) -> Output:
        """As `Network.replaced`."""
        generator, token_mask, labelled = self.heads[head], inputs.get("token_mask"), labels >= 0
        assert isinstance(generator, Generator)
        x, segment_ids = self.embedding(inputs["ids"]), inputs.get("segment_ids")
        vectors = self.inputs(x, segment_ids=segment_ids, token_mask=token_mask, random=random, project=False)
        predicted = generator.read(generator(vectors, token_mask, random)[labelled])  # (n,G) -> (n,E)
        weight, ids = generator.matrix(self.table), inputs["ids"].clone()
        ids[labelled] = sampled(predicted, weight, generator.bias, random)  # (n), in the order of `labelled`
        output: Output = self(**dict(inputs) | {"ids": ids}, random=random, project=False)
        output.state = Replaced(predicted, weight, generator.bias, ids)
        return output

    def text_vectors(self, pooled: Tensor) -> Tensor:
        """As `Network.text_vectors`."""
        vectors: Tensor = self.projections(pooled)
        return vectors
