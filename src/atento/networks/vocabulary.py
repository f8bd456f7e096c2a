"""The base of heads, the head that gives logits over the vocabulary, and a loss over it (docs/notes.md#c5)."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from atento.config.heads import HeadConfig, HeadKind
from atento.config.network import NetworkConfig
from atento.networks.layers import ACTIVATIONS, OutputMatrix, TokenEmbedding, make_norm


class Head(nn.Module):
    """The base of all heads: a kind, which decides the loss that trains them."""

    kind: HeadKind


class Transform(nn.Module):
    """norm(act(W x + b)): the layer before the output matrix of a masked language model (Devlin et al. 2019).

    Its vectors have the width of the embeddings, E.
    """

    def __init__(self, config: NetworkConfig, head: HeadConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.d_model, config.embedding_width, bias=head.hidden_bias)
        self.activation = ACTIVATIONS[head.activation or config.feed_forward.activation]
        self.norm = make_norm(config.norm_kind, config.embedding_width, config.norm_eps, bias=config.norm_bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """(...,D) -> (...,E)."""
        out: Tensor = self.norm(self.activation(self.dense(hidden)))
        return out


class VocabularyHead(Head):
    """hidden -> logits over the vocabulary, of the next token or of a masked token.

    See docs/notes.md#c5, #e3.

    The matrix is the head's or, if tied, the embedding's. Before it, the vectors may pass a dense layer with a norm
    (BERT) or be multiplied by `scale` (T5). A loss that never computes all logits at once uses `read`, `matrix` and
    `bias`.
    """

    kind = "vocabulary"

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        *,
        tied: bool,
        bias: bool,
        scale: float = 1.0,
        transform: Transform | None = None,
    ) -> None:
        super().__init__()
        self.transform, self.scale = transform, scale
        self.output = OutputMatrix(vocab_size, d_model, tied=tied, bias=bias)

    @property
    def bias(self) -> Tensor | None:
        """The bias of the logits, (V,)."""
        return self.output.bias

    def matrix(self, table: TokenEmbedding | None) -> Tensor:
        """The output matrix (V,D): the head's, or that of the embedding `table`."""
        return self.output.matrix(table)

    def read(self, hidden: Tensor) -> Tensor:
        """hidden (...,D) -> the input of the output matrix, (...,D)."""
        if self.transform is not None:
            hidden = self.transform(hidden)
        return hidden * self.scale if self.scale != 1.0 else hidden

    def forward(self, hidden: Tensor, table: TokenEmbedding | None) -> Tensor:
        """hidden (...,D) -> logits (...,V)."""
        out: Tensor = self.output(self.read(hidden), table)
        return out


_BLOCK_LOGITS = 1 << 23  # values of logits in memory at a time: 32 MiB in float32


def token_nats(project: Callable[[Tensor], Tensor], vectors: Tensor, targets: Tensor, vocab_size: int) -> Tensor:
    """Return the sum of -log softmax(project(vectors))[target], in float32 at least.

    Logits of more than a block are computed a block of rows at a time, and again in the backward pass, so that memory
    does not grow with the number of targets times the vocabulary.

    Args:
        project: vectors (n,D) -> logits (n,V).
        vectors: (N,D).
        targets: (N,).
        vocab_size: V.
    """

    def nats(vectors: Tensor, targets: Tensor) -> Tensor:
        logits = project(vectors)
        return F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), targets, reduction="sum")

    rows = max(1, _BLOCK_LOGITS // max(1, vocab_size))
    if len(vectors) <= rows:
        return nats(vectors, targets)
    blocks = zip(vectors.split(rows), targets.split(rows))
    sums = [checkpoint(nats, *block, use_reentrant=False, preserve_rng_state=False) for block in blocks]
    return torch.stack(sums).sum()
