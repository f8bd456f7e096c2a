"""The vectors of a trained encoder in place of the embeddings of source tokens (`network.features`)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atento.attention.observe import Observable
from atento.config.reading.schema import Reader, as_node
from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import FeaturesConfig
from atento.networks.frozen import current
from atento.networks.stack.encoder import Encoder
from atento.networks.vocabulary import at_least_float32


class FrozenFeatures(nn.Module):
    """Vectors of several layers of an encoder that is never trained, normalised, joined and mapped to the width D.

    The map W is trained: x = W [norm(h_0); norm(h_2); ...], where norm has mean 0 and variance 1 without weights.
    Feature-based transfer is that of ELMo (Peters et al. 2018), several layers of BERT in 5.3 of Devlin et al. 2019;
    before a translator, Clinchant et al. 2019 (docs/notes.md#f6).
    """

    def __init__(self, features: FeaturesConfig, d_model: int) -> None:
        super().__init__()
        config: NetworkConfig = Reader().fit(as_node(features.encoder, "features.encoder"), NetworkConfig, "network")
        self.encoder = Encoder(config).requires_grad_(False).eval()
        for module in self.encoder.modules():
            if isinstance(module, Observable):
                module.kind = ""  # its attention is not that of the network
        self.layers = features.layers or (config.n_layers,)
        width = len(self.layers) * config.d_model
        self.output = nn.Linear(width, d_model, bias=False)
        if not self.output.weight.is_meta:
            nn.init.normal_(self.output.weight, std=width**-0.5)  # vectors of variance 1, as scaled embeddings have

    def train(self, mode: bool = True) -> FrozenFeatures:
        """As `nn.Module.train`; the encoder stays in evaluation mode, without dropout."""
        super().train(mode)
        self.encoder.eval()
        return self

    def forward(self, ids: Tensor, token_mask: Tensor | None = None) -> Tensor:
        """ids (B,S), token mask (B,S) True = a real token -> (B,S,D)."""

        def compute() -> Tensor:
            return self.joined(ids, token_mask)

        # of texts that were read before (`network.features.cache`); a teacher, which does not learn, has its own
        vectors = current("features") if self.training else None
        joined = compute() if vectors is None else vectors.hidden(compute, ids, token_mask, None)
        out: Tensor = self.output(joined.to(self.encoder.embedding.weight.dtype))  # (B,S,N·E) -> (B,S,D)
        return out

    def joined(self, ids: Tensor, token_mask: Tensor | None) -> Tensor:
        """ids (B,S) -> the normalised vectors of N layers of width E, joined, (B,S,N·E)."""
        encoder, states = self.encoder, list[Tensor]()
        x = encoder.inputs(encoder.embedding(ids), token_mask=token_mask)
        encoder.stack(x, token_mask=token_mask, depth=max(self.layers), layers=states)
        chosen = [at_least_float32(states[layer]) for layer in self.layers]
        return torch.cat([F.layer_norm(state, state.shape[-1:]) for state in chosen], dim=-1)
