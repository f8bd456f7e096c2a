"""Word vectors from a fixed window: CBOW and skip-gram, by negative sampling or the full softmax.

See docs/notes.md#c15, #e9.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atento.attention.dropout import Randomness, dropout, fresh
from atento.config.sections.network import NetworkConfig
from atento.errors import RecipeError
from atento.networks.heads import make_heads
from atento.networks.interface import Network, refuse_inner_layer
from atento.networks.layers import TokenEmbedding
from atento.networks.output import Output
from atento.networks.vocabulary import cross_entropy
from atento.networks.words.window_loss import Blocks, plain_window_loss, window_loss


class CBOW(Network):
    """Two vectors a word, one as input and one as target (Mikolov et al. 2013; docs/notes.md#c15).

    CBOW predicts a word from the mean of its neighbours' vectors, skip-gram each neighbour from the word's vector. The
    gradient of the mean is exact: the factor of a neighbour is 1/n. (The published program uses 1.)
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        if config.cbow is None:
            raise RecipeError("`cbow` must say what a network of word vectors is made of: got null")
        if config.vocab_size < 1:
            raise RecipeError(f"`vocab_size` must be at least 1: got {config.vocab_size}")
        self.config = config
        self.skip_gram, self.negatives = config.cbow.mode == "skip-gram", config.cbow.negatives
        self.input_weight = nn.Parameter(torch.empty(config.vocab_size, config.d_model))
        self.output_weight = nn.Parameter(torch.empty(config.vocab_size, config.d_model))
        self.heads = make_heads(config)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Vectors uniform within ±1/(2D), output vectors zero, as in the published program."""
        bound = 0.5 / self.config.d_model
        nn.init.uniform_(self.input_weight, -bound, bound, generator=generator)
        nn.init.zeros_(self.output_weight)

    @property
    def vectors(self) -> Tensor:
        """The word vectors (V,D), the result of training."""
        return self.input_weight

    def forward(
        self, ids: Tensor, *, token_mask: Tensor | None = None, random: Randomness | None = None, project: bool = True
    ) -> Output:
        """What a set of words predicts; their order does not count.

        Args:
            ids: (B,L): the words of a window, or the one word of skip-gram.
            token_mask: boolean (B,L), True = a real word; None: all are.
            random: the random numbers of dropout in training.
            project: False leaves `logits` None.

        Returns:
            Output with hidden (B,L,D), each word's vector, pooled (B,D), their mean, and logits (B,V).
        """
        hidden = F.embedding(ids, self.input_weight)  # (B,L) -> (B,L,D)
        if token_mask is None:
            pooled = hidden.mean(dim=1)
        else:
            hidden = hidden * token_mask.unsqueeze(-1)
            pooled = hidden.sum(dim=1) / token_mask.sum(dim=1, keepdim=True).clamp(min=1)  # a row without words gives 0
        if self.training and self.config.dropout:
            pooled = dropout(pooled, self.config.dropout, fresh(random))
        return Output(hidden, self.project(pooled) if project else None, pooled=pooled)

    @property
    def table(self) -> TokenEmbedding | None:
        """None: no head can use the word vectors as its matrix."""
        return None

    def features(self, ids: Tensor, *, token_mask: Tensor | None = None, layer: int = -1) -> Tensor:
        """As `Network.features`: the vector of each word, without its context."""
        refuse_inner_layer(layer, 1, "a network of word vectors")
        hidden: Tensor = self(ids, token_mask=token_mask, project=False).hidden
        return hidden

    def project(self, hidden: Tensor) -> Tensor:
        """The mean of some words' vectors (...,D) -> logits (...,V) of the word between them."""
        return F.linear(hidden, self.output_weight)

    def loss(
        self, centre: Tensor, context: Tensor, negatives: Tensor | None = None, random: Randomness | None = None
    ) -> tuple[Tensor, int]:
        """The summed loss in nats and its real targets, over windows with at least one neighbour each.

        See docs/notes.md#e9.

        With negatives, -log σ(u·v) - Σ_k log σ(-u·v_k) for each target (Mikolov et al. 2013b, equation 4), without
        drawn words that equal the target; without negatives, -log softmax(u V)_target.

        Args:
            centre: (B,), the words in the middle.
            context: (B,2C), the words around them; below 0 for no word.
            negatives: (B,N) for CBOW, (B,2C,N) for skip-gram; None where `config.cbow.negatives` is 0.
            random: the random numbers of dropout in training.

        Raises:
            ValueError: `negatives` does not have the shape that the configuration requires.
        """
        targets_shape = context.shape if self.skip_gram else centre.shape
        expected = (*targets_shape, self.negatives) if self.negatives else None
        if (None if negatives is None else tuple(negatives.shape)) != expected:  # both None, or the same shape
            shape = None if negatives is None else tuple(negatives.shape)
            raise ValueError(f"`negatives` must have the shape {expected}: got {shape}")
        real = context >= 0  # (B,2C)
        if self.skip_gram:
            pooled = _pooled(self(centre.unsqueeze(1), random=random, project=False))  # (B,D)
            rows = real.nonzero()[:, 0]  # the window of each real neighbour, (N,)
            pooled, targets = pooled[rows], context[real]  # (N,D) (N,)
            negatives = None if negatives is None else negatives[real]  # (N,K)
        else:
            output = self(context.clamp(min=0), token_mask=real, random=random, project=False)
            pooled, targets = _pooled(output), centre
        return self._nats(pooled, targets, negatives), len(targets)

    def block_loss(
        self, ids: Tensor, neighbours: Tensor, negatives: Tensor, random: Randomness | None = None
    ) -> tuple[Tensor, int]:
        """As `loss`, over overlapping windows of neighbouring words that share negatives; many times faster.

        The scores of a block are products of matrices. A drawn word counts `config.cbow.negatives` / K times for each
        target of its block, so that K draws weigh as much as the negatives of `loss`.

        Args:
            ids: (B,N+2C), words in the order of the text; those in the middle are centres of windows.
            neighbours: boolean (B,N,2C+1): whether ids[:, i + j] is a neighbour of the centre i.
            negatives: (B,K), drawn words.
            random: the random numbers of dropout in training.
        """
        blocks = Blocks(ids, neighbours, negatives, self.negatives / negatives.shape[1], self.skip_gram)
        if self.training and self.config.dropout:
            ones = self.input_weight.new_ones(*blocks.centre.shape, self.config.d_model)  # (B,N,D)
            keep = dropout(ones, self.config.dropout, fresh(random))
            return plain_window_loss(self.input_weight, self.output_weight, blocks, keep), blocks.targets
        return window_loss(self.input_weight, self.output_weight, blocks), blocks.targets

    def _nats(self, pooled: Tensor, targets: Tensor, negatives: Tensor | None) -> Tensor:
        """pooled (N,D), targets (N,), negatives (N,K) -> the summed loss."""
        if negatives is None:
            return cross_entropy(pooled, self.output_weight, targets)[0]
        right = (pooled * F.embedding(targets, self.output_weight)).sum(dim=-1)  # (N,)
        wrong = torch.einsum("nd,nkd->nk", pooled, F.embedding(negatives, self.output_weight))  # (N,K)
        drawn = negatives != targets.unsqueeze(1)  # a drawn word that is the target counts nothing
        return -F.logsigmoid(right).sum() - (F.logsigmoid(-wrong) * drawn).sum()  # log σ(-u·v_k) only of those


def _pooled(output: Output) -> Tensor:
    assert output.pooled is not None
    return output.pooled


class Window(Protocol):
    """Some windows of text: centre (B,), context (B,2C), negatives as `CBOW.loss` takes them."""

    @property
    def centre(self) -> Tensor: ...
    @property
    def context(self) -> Tensor: ...
    @property
    def negatives(self) -> Tensor | None: ...


class Sentences(Protocol):
    """Text as windows, the same for the same epoch: `atento.data.batches.windows.Windows`, for one."""

    def epoch(self, number: int) -> Iterable[Window]: ...


@dataclass(frozen=True)
class TrainedVectors:
    """vectors (V,D), and the mean loss a target of each epoch, in nats."""

    vectors: Tensor
    losses: list[float]


def train_vectors(
    sentences: Sentences, config: NetworkConfig, seed: int, *, epochs: int = 10, learning_rate: float = 0.02
) -> TrainedVectors:
    """Word vectors from text, on the CPU; a short implementation for the notes (docs/notes.md#c15).

    Adam, with a linearly decreasing rate; the same text, configuration and seed give the same vectors.

    Args:
        sentences: the text as windows, with as many negatives as `config.cbow` says.
        config: `d_model` is the width of the vectors.
        seed: of the first weights and of dropout.
        epochs: how often the text is read.
        learning_rate: of the first epoch.

    Raises ValueError: `epochs` below 1.
    """
    if epochs < 1:
        raise ValueError(f"`epochs` must be at least 1: got {epochs}")
    network = CBOW(config)
    network.reset_parameters(torch.Generator().manual_seed(seed))
    optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate)
    losses: list[float] = []
    step = 0
    for epoch in range(epochs):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * (1 - epoch / epochs)  # from the full rate towards 0
        nats, count = 0.0, 0
        for window in sentences.epoch(epoch):
            loss, targets = network.loss(window.centre, window.context, window.negatives, Randomness(seed, step))
            optimizer.zero_grad()
            torch.autograd.backward(loss / targets)
            optimizer.step()
            nats, count, step = nats + float(loss.detach()), count + targets, step + 1  # sums, for means by target
        losses.append(nats / max(1, count))
    return TrainedVectors(network.vectors.detach().clone(), losses)
