"""The generator of ELECTRA: a small masked language model inside the network that learns to detect its tokens.

See Clark et al. 2020, 2 and 3.2.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atento.attention.dropout import Randomness, fresh, uniform
from atento.config.sections.network import NetworkConfig, changed
from atento.config.tables.head_kinds import HeadConfig
from atento.networks.layers import TokenEmbedding, initialise
from atento.networks.stack.stack import Stack
from atento.networks.vocabulary import Head, Transform, VocabularyHead

_BLOCK_LOGITS = 1 << 23  # logits in memory at a time
_NEVER = -1e4  # a logit whose probability is 0, and so its gradient


class Generator(Head):
    """Predicts masked tokens, from which those are sampled that the network learns to detect.

    It reads the network's own vectors of tokens, positions and segments, and its output matrix is the embedding of the
    tokens, so that both learn one embedding.
    """

    kind = "generator"

    def __init__(self, config: NetworkConfig, head: HeadConfig) -> None:
        super().__init__()
        # the configuration of the layers of a generator: heads of the same width, `size` times as many
        n_heads = max(1, round(config.n_heads * head.size))  # whole heads, of the same width
        small = changed(
            config,
            n_heads=n_heads,
            d_model=n_heads * config.head_width,
            d_ff=max(1, round(config.d_ff * head.size)),
            embedding={"width": config.embedding_width},
            attention={"d_head": None, "n_kv_heads": None},
            output={"tied": True},
            pooler=False,
            heads=(),
        )
        self.projection = nn.Linear(config.embedding_width, small.d_model)
        self.stack = Stack(small, kind="encoder", n_layers=small.n_layers)
        transform = Transform(small, HeadConfig("masked-language-model", activation=head.activation))
        sizes = (config.vocab_size, config.embedding_width)
        self.vocabulary = VocabularyHead(*sizes, tied=True, bias=True, transform=transform)
        initialise(self, small)

    @property
    def bias(self) -> Tensor | None:
        """The bias of the logits, (V,)."""
        return self.vocabulary.bias

    @torch.no_grad()
    def never(self, ids: list[int]) -> None:
        """Never sample these ids, which no piece has: a network may have more rows than its tokenizer has pieces."""
        assert self.bias is not None
        self.bias[ids] = _NEVER

    def matrix(self, table: TokenEmbedding | None) -> Tensor:
        """The output matrix (V,E): that of the embedding `table`."""
        return self.vocabulary.matrix(table)

    def forward(self, vectors: Tensor, token_mask: Tensor | None = None, random: Randomness | None = None) -> Tensor:
        """The network's input vectors of masked texts (B,L,E) -> hidden vectors (B,L,G), which `read` takes."""
        hidden: Tensor = self.stack(self.projection(vectors), token_mask=token_mask, random=random)
        return hidden

    def read(self, hidden: Tensor) -> Tensor:
        """Hidden vectors (...,G) -> the input of the output matrix (...,E)."""
        return self.vocabulary.read(hidden)


@torch.no_grad()
def sampled(vectors: Tensor, weight: Tensor, bias: Tensor | None, random: Randomness | None) -> Tensor:
    """Sample from softmax(W x + b) for each of the vectors (N,E) -> ids (N,), with one block of logits in memory."""
    draws = uniform(len(vectors), fresh(random or Randomness(0)).key(), vectors.device)  # (N,), in [0, 1)
    ids = torch.empty(len(vectors), dtype=torch.long, device=vectors.device)
    rows = max(1, _BLOCK_LOGITS // len(weight))
    for start in range(0, len(vectors), rows):
        part = slice(start, start + rows)
        cumulative = F.linear(vectors[part], weight, bias).double().softmax(dim=-1).cumsum(dim=-1)
        below = (draws[part] * cumulative[:, -1]).unsqueeze(1)  # the last one is 1 up to rounding
        ids[part] = torch.searchsorted(cumulative, below, right=True).squeeze(1).clamp_(max=len(weight) - 1)
    return ids
