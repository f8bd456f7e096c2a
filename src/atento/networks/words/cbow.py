"""Word vectors from a fixed window: CBOW and skip-gram, and their losses, of shared negatives too.

See docs/notes.md#c15, #e9.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atento.attention.algebra import Context, TypedFunction
from atento.attention.dropout import Randomness
from atento.base.errors import RecipeError
from atento.config.sections.network import NetworkConfig
from atento.networks.heads import make_heads
from atento.networks.interface import Network, refuse_inner_layer
from atento.networks.layers import TokenEmbedding
from atento.networks.output import Output
from atento.networks.vocabulary import cross_entropy


@dataclass(frozen=True)
class Blocks:
    """Blocks of windows."""

    ids: Tensor  # (B,M), words in the order of the text; those in the middle are centres of windows
    neighbours: Tensor  # boolean (B,N,2C+1): whether ids[:, i + j] is a neighbour of the centre i
    negatives: Tensor  # (B,K), drawn words
    factor: float  # how often a drawn word counts for each target of its block
    skip_gram: bool  # a centre predicts its neighbours; else the mean of the neighbours predicts the centre

    @property
    def centre(self) -> Tensor:
        """The words in the middle, (B,N)."""
        side = self.neighbours.shape[-1] // 2  # C
        return self.ids[:, side : self.ids.shape[1] - side]

    @property
    def counts(self) -> Tensor:
        """How many neighbours each centre has, (B,N,1)."""
        return self.neighbours.sum(dim=-1, keepdim=True)

    @property
    def targets(self) -> int:
        """Number of real targets."""
        return int(self.neighbours.sum() if self.skip_gram else self.neighbours.any(dim=-1).sum())

    def band(self, dtype: torch.dtype) -> Tensor:
        """`neighbours` as (B,N,M): 1 where the word of a column is a neighbour of the centre of a row, else 0."""
        n_blocks, rows, width = self.neighbours.shape
        columns = rows + width - 1  # N + 2C
        band = torch.zeros(n_blocks, rows, columns, dtype=dtype, device=self.ids.device)
        band.as_strided(self.neighbours.shape, (rows * columns, columns + 1, 1)).copy_(self.neighbours)
        return band


def plain_window_loss(inputs: Tensor, outputs: Tensor, blocks: Blocks, keep: Tensor | None = None) -> Tensor:
    """The summed loss: -log σ(u·v) of each target, and -log σ(-u·n) of each drawn word that is not the target.

    Args:
        inputs: vectors of words as inputs (V,D).
        outputs: vectors of words as targets (V,D).
        blocks: the windows.
        keep: factors (B,N,D) of the vectors that predict, for dropout; None: 1.
    """
    centre, counts = blocks.centre, blocks.counts
    band = blocks.band(inputs.dtype)
    if blocks.skip_gram:
        vectors = F.embedding(centre, inputs)  # (B,N,D)
    else:
        vectors = (band / counts.clamp(min=1)) @ F.embedding(blocks.ids, inputs)  # the mean of its neighbours, (B,N,D)
    vectors = vectors if keep is None else vectors * keep
    wrong = vectors @ F.embedding(blocks.negatives, outputs).mT  # (B,N,K)
    if blocks.skip_gram:
        right, real = vectors @ F.embedding(blocks.ids, outputs).mT, band  # (B,N,M)
        drawn = counts - band @ (blocks.ids.unsqueeze(2) == blocks.negatives.unsqueeze(1)).to(band.dtype)
    else:
        right = (vectors * F.embedding(centre, outputs)).sum(dim=-1, keepdim=True)  # (B,N,1)
        real = (counts > 0).to(band.dtype)  # (B,N,1), 0 for a centre without neighbours
        drawn = (centre.unsqueeze(2) != blocks.negatives.unsqueeze(1)) * real  # (B,N,K)
    return -(F.logsigmoid(right) * real).sum() - blocks.factor * (F.logsigmoid(-wrong) * drawn).sum()


class _WindowLoss(TypedFunction):
    """Computes the gradients in the forward pass, while the scores are at hand; no intermediate result is kept."""

    @staticmethod
    def forward(ctx: Context[None], inputs: Tensor, outputs: Tensor, blocks: Blocks) -> Tensor:
        part = _skip_gram if blocks.skip_gram else _cbow
        loss, gradients = part(inputs, outputs, blocks)
        ctx.save_for_backward(*gradients)
        return loss

    @staticmethod
    def backward(ctx: Context[None], *grads: Tensor) -> tuple[Tensor | None, ...]:
        return *(saved * grads[0].to(saved.dtype) for saved in ctx.saved_tensors), None


def window_loss(inputs: Tensor, outputs: Tensor, blocks: Blocks) -> Tensor:
    """As `plain_window_loss` without dropout, in about half the time."""
    if not torch.is_grad_enabled():
        return plain_window_loss(inputs, outputs, blocks)
    return cast(Tensor, _WindowLoss.apply(inputs, outputs, blocks))


def _scores(scores: Tensor, weights: Tensor, sign: float) -> tuple[Tensor, Tensor]:
    """The sum of -log σ(sign · scores) · weights, and its gradient; `weights` is overwritten by it."""
    loss = -torch.dot(F.logsigmoid(scores if sign > 0 else -scores).flatten(), weights.flatten())
    return loss, weights.mul_(scores.mul_(-sign).sigmoid_()).mul_(-sign)  # d (-log σ(s·x)) / dx = -s · σ(-s·x)


def _cbow(inputs: Tensor, outputs: Tensor, blocks: Blocks) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The loss of CBOW and its gradients by `inputs` and `outputs`."""
    words, counts = blocks.centre.shape[1], blocks.counts
    share = blocks.band(inputs.dtype).div_(counts.clamp(min=1))  # (B,N,M)
    vectors = share @ F.embedding(blocks.ids, inputs)  # (B,N,D)
    targets = torch.cat([blocks.centre, blocks.negatives], dim=1)  # (B,N+K)
    of_targets = F.embedding(targets, outputs)  # (B,N+K,D), one gather for both
    right_vectors, drawn_vectors = of_targets[:, :words], of_targets[:, words:]
    real = (counts > 0).to(inputs.dtype)
    right = (vectors * right_vectors).sum(dim=-1, keepdim=True)  # (B,N,1)
    wrong = vectors @ drawn_vectors.mT  # (B,N,K)
    drawn = (blocks.centre.unsqueeze(2) != blocks.negatives.unsqueeze(1)) * (real * blocks.factor)  # (B,N,K)
    right_loss, d_right = _scores(right, real, 1.0)
    wrong_loss, d_wrong = _scores(wrong, drawn, -1.0)
    d_targets = torch.empty_like(of_targets)  # (B,N+K,D)
    torch.mul(vectors, d_right, out=d_targets[:, :words])  # d loss / d the right vectors
    d_targets[:, words:] = d_wrong.mT @ vectors  # (B,K,N) by (B,N,D)
    d_vectors = torch.baddbmm(right_vectors.mul_(d_right), d_wrong, drawn_vectors)
    d_words = share.mT @ d_vectors  # (B,M,D)
    gradients = _summed(d_words, blocks.ids, inputs), _summed(d_targets, targets, outputs)
    return right_loss + wrong_loss, gradients


def _skip_gram(inputs: Tensor, outputs: Tensor, blocks: Blocks) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The loss of skip-gram and its gradients by `inputs` and `outputs`."""
    band, columns = blocks.band(inputs.dtype), blocks.ids.shape[1]
    equal = (blocks.ids.unsqueeze(2) == blocks.negatives.unsqueeze(1)).to(inputs.dtype)  # (B,M,K)
    drawn = torch.baddbmm(blocks.counts.to(inputs.dtype), band, equal, alpha=-1.0).mul_(blocks.factor)
    targets = torch.cat([blocks.ids, blocks.negatives], dim=1)  # (B,M+K)
    vectors, of_targets = F.embedding(blocks.centre, inputs), F.embedding(targets, outputs)
    scores = vectors @ of_targets.mT  # (B,N,M+K)
    right_loss, d_right = _scores(scores[:, :, :columns].contiguous(), band, 1.0)
    wrong_loss, d_wrong = _scores(scores[:, :, columns:].contiguous(), drawn, -1.0)
    d_scores = torch.cat([d_right, d_wrong], dim=2)  # (B,N,M+K)
    gradients = (
        _summed(d_scores @ of_targets, blocks.centre, inputs),  # (B,N,D)
        _summed(d_scores.mT @ vectors, targets, outputs),  # (B,M+K,D)
    )
    return right_loss + wrong_loss, gradients


def _summed(gradients: Tensor, ids: Tensor, table: Tensor) -> Tensor:
    """Add the gradient of each word, (B,L,D) of ids (B,L), to its row: (V,D)."""
    return cast(Tensor, torch.ops.aten.embedding_dense_backward(gradients, ids, len(table), -1, False))


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
        pooled = self.dropped(pooled, random)
        return Output(hidden, self.project(pooled) if project else None, pooled=pooled)

    @property
    def table(self) -> TokenEmbedding | None:
        """None: no head can use the word vectors as its matrix."""
        return None

    def features(self, ids: Tensor, *, token_mask: Tensor | None = None, layer: int = -1) -> Tensor:
        """As `Network.features`: the vector of each word, without its context."""
        refuse_inner_layer(layer, 1, "a network of word vectors")
        return cast(Tensor, self(ids, token_mask=token_mask, project=False).hidden)

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
            keep = self.dropped(ones, random)
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
