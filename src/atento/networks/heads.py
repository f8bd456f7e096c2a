"""The heads of networks: vocabulary, classes, tags, spans, next sentence, a number (docs/notes.md#e2)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atento.attention.dropout import Randomness, dropout
from atento.base.errors import CapabilityError, RecipeError, nearest
from atento.config.sections.network import NetworkConfig
from atento.config.tables.head_kinds import HEAD_KINDS, WITH_LAYERS, HeadConfig, Pooling, Windows
from atento.metrics.tag_schemes import legal_transitions, scheme_of_labels
from atento.networks.crf import Chain, illegal_scores
from atento.networks.large_vocabulary import AdaptiveSoftmax
from atento.networks.layers import ACTIVATIONS, OutputMatrix, TokenEmbedding, make_norm
from atento.networks.output import Output
from atento.networks.vocabulary import Head, OutputHead, Transform, VocabularyHead, at_least_float32

_SPAN_POSITIONS, _POSITION_WIDTH = 20, 200  # SpanBERT's: positions inside a span, and how wide their vectors are


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
    real = token_mask.unsqueeze(-1).to(hidden.dtype)  # (B,L,1)
    total: Tensor = (hidden * real).sum(dim=1)
    return total / real.sum(dim=1).clamp_min(1)  # at least 1: no division by 0


def last_token(hidden: Tensor, token_mask: Tensor | None) -> Tensor:
    """The vector of each row's last real token, the one with the most context if a network reads from left to right.

    (B,L,D) -> (B,D).
    """
    if token_mask is None:
        return hidden[:, -1]
    positions = torch.arange(token_mask.shape[1], device=token_mask.device)  # (L,)
    last = torch.where(token_mask, positions, -1).amax(dim=1).clamp_min(0)  # 0 for a row without real tokens
    return hidden[torch.arange(len(hidden), device=hidden.device), last]


def max_token(hidden: Tensor, token_mask: Tensor | None) -> Tensor:
    """The maximum of each dimension over each row's real tokens: (B,L,D) -> (B,D)."""
    if token_mask is not None:
        hidden = hidden.masked_fill(~token_mask.unsqueeze(-1), float("-inf"))  # padding is never the largest
    return hidden.amax(dim=1)


def sqrt_mean_token(hidden: Tensor, token_mask: Tensor) -> Tensor:
    """The sum over each row's real tokens, divided by the square root of their number: (B,L,D) -> (B,D)."""
    count = token_mask.sum(dim=1, keepdim=True).to(hidden.dtype)
    return mean_token(hidden, token_mask) * count.sqrt()  # Σ / n · √n = Σ / √n


def weighted_mean_token(hidden: Tensor, weights: Tensor) -> Tensor:
    """The mean over each row's tokens with these weights (B,L), 0 for tokens that are left out: (B,L,D) -> (B,D)."""
    weights = weights.unsqueeze(-1).to(hidden.dtype)
    total: Tensor = (hidden * weights).sum(dim=1)
    return total / weights.sum(dim=1).clamp_min(1)


def pool_text(pooling: str, hidden: Tensor, token_mask: Tensor, skip: int | Tensor = 0) -> Tensor:
    """The vectors of texts (B,P·D) from those of their tokens (B,L,D), by P poolings of `TEXT_POOLINGS` joined by "+".

    Args:
        pooling: the poolings, such as "mean" or "first+max".
        hidden: (B,L,D).
        token_mask: (B,L), True = a real token.
        skip: real tokens at the beginning of each text that are left out, or of each of them (B,1); the others keep
            their positions.
    """
    order = token_mask.cumsum(dim=1)  # 1, 2, 3 ... at real tokens
    real = token_mask if isinstance(skip, int) and not skip else token_mask & (order > skip)
    parts = [
        weighted_mean_token(hidden, order * real) if part == "weighted-mean" else TEXT_POOLINGS[part](hidden, real)
        for part in pooling.split("+")
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


POOLINGS: dict[Pooling, Callable[[Tensor, Tensor | None], Tensor]] = {
    "first": first_token,
    "last": last_token,
    "mean": mean_token,
}
TEXT_POOLINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": mean_token,
    "first": first_token,
    "last": last_token,
    "max": max_token,
    "sqrt-mean": sqrt_mean_token,
    "weighted-mean": weighted_mean_token,
}
"""Of the vectors of texts: name -> function of (hidden (B,L,D), token mask (B,L)) that returns (B,D).

The mask of weighted-mean holds weights: `pool_text` gives the tokens 1, 2, 3 ...
"""


class SpanBoundaryHead(OutputHead):
    """Predicts a masked token from the two tokens next to its span and its position in the span (Joshi et al. 2020,
    3.2).

    See docs/notes.md#e5.
    """

    kind = "boundary"

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        d_model = config.d_model
        self.positions = nn.Parameter(nn.init.normal_(torch.empty(_SPAN_POSITIONS, _POSITION_WIDTH), std=0.02))
        self.first, self.second = nn.Linear(2 * d_model + _POSITION_WIDTH, d_model), nn.Linear(d_model, d_model)
        self.norms = nn.ModuleList(make_norm(config, d_model, bias=True) for _ in range(2))
        self.output = OutputMatrix(config.vocab_size, d_model, tied=config.output.tied, bias=True)

    def read(self, left: Tensor, right: Tensor, positions: Tensor) -> Tensor:
        """left, right (N,D), the vectors next to the spans; positions (N,) in the spans, from 0 -> (N,D)."""
        x = torch.cat([left, right, F.embedding(positions, self.positions)], dim=-1)  # (N,2D+200)
        x = self.norms[0](F.gelu(self.first(x)))
        return cast(Tensor, self.norms[1](F.gelu(self.second(x))))

    def forward(self, left: Tensor, right: Tensor, positions: Tensor, table: TokenEmbedding | None) -> Tensor:
        """As `read`, -> logits (N,V)."""
        return cast(Tensor, self.output(self.read(left, right, positions), table))


@dataclass(frozen=True)
class TextWindows:
    """Which text each row of a batch is a window of, and how the windows of a text become one."""

    # mean, max, attention or first-last; of first-last, the rows are the first and the last window alone
    pooling: Windows
    texts: Tensor  # (W,) the number of the text of each row, from 0; no text is left out


def pool_windows(windows: TextWindows, vectors: Tensor, query: Tensor | None = None) -> Tensor:
    """The vectors of texts (N,D) from those of their windows (W,D).

    Args:
        windows: the text of each window, and the pooling.
        vectors: (W,D).
        query: (D,) of attention: window w of a text has the weight softmax(vector · query); None: equal weights.
    """
    texts = windows.texts.to(vectors.device)
    member = texts == torch.arange(int(texts.max()) + 1, device=texts.device).unsqueeze(1)  # (N,W)
    if windows.pooling == "max":
        apart = vectors.unsqueeze(0).masked_fill(~member.unsqueeze(-1), float("-inf"))  # (N,W,D)
        return apart.amax(dim=1)
    scores = vectors.new_zeros(len(vectors)) if query is None else vectors @ query.to(vectors.dtype)  # (W,)
    weights = scores.expand(member.shape).masked_fill(~member, float("-inf")).softmax(dim=1)  # (N,W)
    return weights @ vectors  # (N,W) by (W,D)


class LinearHead(Head):
    """Dropout, an optional dense layer with an activation, and a linear map: classes, tags, answers, a number."""

    def __init__(
        self, d_model: int, config: HeadConfig, pooling: Pooling | None, norm: nn.Module | None = None
    ) -> None:
        """`pooling` reduces a text to one vector; None: the head reads the vector of every token.

        `norm` normalises the vectors behind the dense layer.
        """
        super().__init__()
        self.config, self.kind, self.pooling = config, HEAD_KINDS[config.kind], pooling
        self.dense = nn.Linear(d_model, d_model, bias=config.hidden_bias) if config.hidden else None
        self.norm = norm
        self.activation = ACTIVATIONS[config.activation or "tanh"]
        self.out = nn.Linear(d_model, config.outputs, bias=config.out_bias)  # (...,D) -> (...,C)
        self.window_query = nn.Parameter(torch.zeros(d_model)) if config.window_query else None

    def pooled(self, output: Output, token_mask: Tensor | None) -> Tensor:
        """The input of the head, from an output: (B,D), or (B,L,D) without pooling; `token_mask` (B,L) of that text."""
        source = output.encoded if self.config.side == "encoder" else None  # None: of the decoder, or of the only stack
        if self.config.side != "encoder" and output.hidden is output.encoded:
            raise ValueError(f"head {self.config.name!r} is on the decoder: give the network a target to read")
        hidden = output.hidden if source is None else source
        if self.pooling is None:
            return hidden
        if self.pooling == "pooler":
            assert output.pooled is not None  # `NetworkConfig` refuses a head that reads a pooler that is not there
            return output.pooled
        return POOLINGS[self.pooling](hidden, token_mask)

    def of_texts(self, x: Tensor, windows: TextWindows | None) -> Tensor:
        """The vectors of texts (N,D) from those of their windows (W,D); the same if rows are whole texts."""
        return x if windows is None else pool_windows(windows, x, self.window_query)

    def forward(self, x: Tensor, random: Randomness | None = None) -> Tensor:
        """(...,D) -> (...,C)."""
        rate = self.config.dropout if self.training else 0.0
        x = dropout(x, rate, random)
        if self.dense is not None:
            x = self.activation(self.dense(x))
            x = dropout(x if self.norm is None else self.norm(x), rate, random)
        out: Tensor = self.out(x)
        if (self.config.center, self.config.spread) != (0.0, 1.0):
            out = at_least_float32(out) * self.config.spread + self.config.center
        return out


class CRFHead(LinearHead):
    """A linear head whose outputs are scores of tags, and learned transitions between tags (`atento.networks.crf`).

    See docs/tagging.md. Transitions begin at 0, where tags are independent of one another but for the scheme.
    """

    def __init__(self, d_model: int, config: HeadConfig, norm: nn.Module | None = None) -> None:
        super().__init__(d_model, config, None, norm)
        count = len(config.labels)
        self.start, self.end = nn.Parameter(torch.zeros(count)), nn.Parameter(torch.zeros(count))
        self.transitions = nn.Parameter(torch.zeros(count, count))  # from the tag of a row to the tag of a column
        self._illegal = illegal_scores(legal_transitions(config.labels, scheme_of_labels(config.labels)))

    def chain(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Chain:
        """The transitions, `ILLEGAL` where the scheme of the tags forbids one, in float32 or another type."""
        learned = (at_least_float32(part).to(device, dtype) for part in (self.start, self.transitions, self.end))
        return Chain(*(part + torch.from_numpy(fixed).to(part) for part, fixed in zip(learned, self._illegal)))


class Heads(nn.ModuleDict):
    """The heads of a network by name."""

    def __init__(self, heads: Iterable[tuple[str, Head]] = ()) -> None:
        """Raises:
        RecipeError: a name that is an attribute of PyTorch's modules.
        """
        super().__init__()
        for name, head in heads:
            if hasattr(self, name):
                raise RecipeError(
                    f"`name` of a head cannot be {name!r}: PyTorch's modules have an attribute of that name"
                )
            self[name] = head

    def __getitem__(self, name: str) -> Head:
        """The head of that name. Raises CapabilityError: there is none; the message lists the heads."""
        if name not in self:
            known = nearest(name, list(self)) if len(self) else ": it has none"
            raise CapabilityError(f"this network has no {name!r} head{known}")
        head = super().__getitem__(name)
        assert isinstance(head, Head)
        return head


def make_heads(config: NetworkConfig, width: int | None = None) -> Heads:
    """The heads that `config` describes, the vocabulary's first if the network predicts tokens.

    `width` is the width of the vectors that linear heads read; None: `d_model`.
    """
    heads: list[tuple[str, Head]] = []
    if config.writes:
        scale = config.d_model**-0.5 if config.output.scaled else 1.0
        next_token = VocabularyHead(
            config.target_vocab_size, config.d_model, tied=config.output.tied, bias=config.output.bias, scale=scale
        )
        heads.append(("vocabulary", next_token))
    elif config.architecture == "elmo" and config.vocab_size:  # the next word and the one before: both directions share
        sizes, cutoffs = (config.vocab_size, config.d_model), config.output.adaptive
        softmax = AdaptiveSoftmax(*sizes, cutoffs) if cutoffs else VocabularyHead(*sizes, tied=False, bias=True)
        heads.append(("vocabulary", softmax))
    described = [head for head in config.heads if head.kind not in WITH_LAYERS]  # an encoder makes these
    return Heads([*heads, *((head.name, _make_head(config, head, width or config.d_model)) for head in described)])


def _make_head(config: NetworkConfig, head: HeadConfig, width: int) -> Head:
    if head.kind == "masked-language-model":
        transform, sizes = Transform(config, head), (config.vocab_size, config.embedding_width)
        return VocabularyHead(*sizes, tied=config.output.tied, bias=True, transform=transform)
    if HEAD_KINDS[head.kind] in ("tag", "crf") and not head.labels:
        raise RecipeError(f"`labels` of a {head.kind} head may be empty in a recipe alone, which has training data")
    if head.kind == "span-boundary":
        return SpanBoundaryHead(config)
    norm = make_norm(config, width) if head.hidden_norm else None
    return CRFHead(width, head, norm) if head.kind == "crf" else LinearHead(width, head, config.pooling(head), norm)
