"""Linear maps of the vector of a text behind the pooling: the Dense modules of sentence-transformers."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from atento.config.sections.network_parts import ProjectionConfig
from atento.networks.layers import ACTIVATIONS


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
