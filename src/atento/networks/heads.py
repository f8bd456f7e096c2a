"""What is read off an encoder: vocabulary, classes, tags, spans, the next sentence, a number (docs/notes.md#e2)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atento.attention.dropout import Randomness, dropout, fresh
from atento.config.network import HeadConfig, NetworkConfig
from atento.networks.layers import ACTIVATIONS, OutputLayer, TokenEmbedding, make_norm

_SPAN_PLACES, _PLACE_WIDTH = 20, 200  # SpanBERT's: places inside a span, and how wide their vectors are


class Pooler(nn.Module):
    """tanh(W x + b) of the first real token's vector: BERT's sentence vector (Devlin et al. 2019)."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.dense = nn.Linear(d_model, d_model)

    def forward(self, hidden: Tensor, token_mask: Tensor | None) -> Tensor:
        """hidden (B,L,D), padding mask (B,L) -> (B,D)."""
        return torch.tanh(self.dense(first_token(hidden, token_mask)))


def first_token(hidden: Tensor, token_mask: Tensor | None) -> Tensor:
    """The vector of each row's first real token: (B,L,D) -> (B,D)."""
    if token_mask is None:
        return hidden[:, 0]
    return hidden[torch.arange(len(hidden), device=hidden.device), token_mask.int().argmax(dim=1)]


def mean_token(hidden: Tensor, token_mask: Tensor | None) -> Tensor:
    """The mean over each row's real tokens: (B,L,D) -> (B,D); a row without any gives 0."""
    if token_mask is None:
        return hidden.mean(dim=1)
    real = token_mask.unsqueeze(-1).to(hidden.dtype)
    total: Tensor = (hidden * real).sum(dim=1)
    return total / real.sum(dim=1).clamp_min(1)


class MaskedLanguageHead(nn.Module):
    """norm(act(W x + b)), then the embedding's matrix and a bias: what a hidden token was (Devlin et al. 2019).

    See docs/notes.md#e3.
    """

    def __init__(self, config: NetworkConfig, head: HeadConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.d_model, config.d_model)
        self.activation = ACTIVATIONS[head.activation or config.activation]
        self.norm = make_norm(config.norm_kind, config.d_model, config.norm_eps)
        self.output = OutputLayer(config.vocab_size, config.d_model, tied=config.tied_embeddings, bias=True)

    def read(self, hidden: Tensor) -> Tensor:
        """hidden (...,D) as the output matrix takes it: for losses that project chosen positions alone."""
        out: Tensor = self.norm(self.activation(self.dense(hidden)))
        return out

    def forward(self, hidden: Tensor, embedding: TokenEmbedding) -> Tensor:
        """hidden (...,D) -> logits (...,V)."""
        out: Tensor = self.output(self.read(hidden), embedding)
        return out


class SpanBoundaryHead(nn.Module):
    """A hidden token from the two tokens beside its span and its place in it (Joshi et al. 2020, 3.2).

    See docs/notes.md#e5.
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        d_model = config.d_model
        self.places = nn.Parameter(torch.empty(_SPAN_PLACES, _PLACE_WIDTH))
        nn.init.normal_(self.places, std=0.02)
        self.first, self.second = nn.Linear(2 * d_model + _PLACE_WIDTH, d_model), nn.Linear(d_model, d_model)
        self.norms = nn.ModuleList(make_norm(config.norm_kind, d_model, config.norm_eps) for _ in range(2))
        self.output = OutputLayer(config.vocab_size, d_model, tied=config.tied_embeddings, bias=True)

    def read(self, left: Tensor, right: Tensor, places: Tensor) -> Tensor:
        """left, right (N,D), the vectors beside the spans; places (N,) from 0 inside them -> (N,D)."""
        x = torch.cat([left, right, F.embedding(places, self.places)], dim=-1)
        x = self.norms[0](F.gelu(self.first(x)))
        out: Tensor = self.norms[1](F.gelu(self.second(x)))
        return out

    def forward(self, left: Tensor, right: Tensor, places: Tensor, embedding: TokenEmbedding) -> Tensor:
        """As `read`, -> logits (N,V)."""
        out: Tensor = self.output(self.read(left, right, places), embedding)
        return out


class LinearHead(nn.Module):
    """Dropout, an optional dense layer with tanh, and a linear map: classes, tags, answers, a number."""

    def __init__(self, d_model: int, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        self.dense = nn.Linear(d_model, d_model) if config.hidden else None
        self.out = nn.Linear(d_model, config.outputs)

    @property
    def pools(self) -> bool:
        """Whether it reads one vector a row, not one a token."""
        return self.config.kind not in ("tagging", "answer")

    def forward(self, x: Tensor, random: Randomness | None = None) -> Tensor:
        """(...,D) -> (...,C)."""
        x = self._dropped(x, random)
        if self.dense is not None:
            x = self._dropped(torch.tanh(self.dense(x)), random)
        out: Tensor = self.out(x)
        return out

    def _dropped(self, x: Tensor, random: Randomness | None) -> Tensor:
        rate = self.config.dropout
        return dropout(x, rate, fresh(random)) if self.training and rate else x


def make_head(config: NetworkConfig, head: HeadConfig) -> nn.Module:
    """The head of that configuration."""
    if head.kind == "masked-language-model":
        return MaskedLanguageHead(config, head)
    if head.kind == "span-boundary":
        return SpanBoundaryHead(config)
    return LinearHead(config.d_model, head)
