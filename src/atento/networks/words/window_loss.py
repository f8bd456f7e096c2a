"""The loss of overlapping windows that share negatives: its equation, and the same with the gradient beside it.

Shapes: B blocks of N words that are centres of windows, M = N + 2C words with those on both sides, K negatives.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from atento.attention.algebra import Context, TypedFunction


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
    loss: Tensor = _WindowLoss.apply(inputs, outputs, blocks)
    return loss


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
    total: Tensor = torch.ops.aten.embedding_dense_backward(gradients, ids, len(table), -1, False)
    return total
