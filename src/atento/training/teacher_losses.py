"""Losses of the outputs of a network against those of its teachers, beside the loss of the gold labels."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from atento.data.batches.batch import Batch, Distillation, Projected
from atento.networks.vocabulary import at_least_float32

_ROWS = 256  # of scores over a vocabulary in memory at once


def soft_classes(scores: Tensor, teachers: Tensor, temperature: float) -> Tensor:
    """Return T² Σ KL(q || softmax(scores / T)), with q the mean over teachers of softmax(their scores / T).

    Scores (N,C) and those of K teachers (N,K,C), of which logarithms of probabilities will do. Paper: Hinton et al.
    2015 (Distilling the Knowledge in a Neural Network), 2.
    """
    right = torch.softmax(teachers / temperature, dim=-1).mean(dim=1).expand_as(scores)  # (N,C), or (2,N,C)
    return temperature**2 * F.kl_div(F.log_softmax(scores / temperature, dim=-1), right, reduction="sum")


def soft_sets(scores: Tensor, teachers: Tensor, temperature: float) -> Tensor:
    """Return T² Σ of the mean over classes of the divergence of each class of several, present or not."""
    right = torch.sigmoid(teachers / temperature).mean(dim=1).expand_as(scores)
    entropy = F.binary_cross_entropy(right, right, reduction="sum")  # 0 at best, with it subtracted
    cross = F.binary_cross_entropy_with_logits(scores / temperature, right, reduction="sum")
    return temperature**2 * (cross - entropy) / scores.shape[-1]  # the mean over classes


def soft_numbers(numbers: Tensor, teachers: Tensor, temperature: float) -> Tensor:
    """Return Σ of the mean squared difference from the mean of the teachers, over the last dimension of (N,C)."""
    return F.mse_loss(numbers, teachers.mean(dim=1), reduction="sum") / numbers.shape[-1]


SoftLoss = Callable[[Tensor, Tensor, float], Tensor]


def with_teachers(loss: Tensor, soft: SoftLoss, outputs: Tensor, batch: Batch, head: str) -> Tensor:
    """Return (1-w) · loss + w · soft loss of the outputs (N,C), with R-Drop the mean of two passes (2,N,C); without
    teachers for the head, the loss.
    """
    teaching = batch.settings.get(f"{head} teacher")
    if not isinstance(teaching, Distillation):
        return loss
    teachers = batch.extras[f"{head} teacher"].to(outputs.dtype)  # (N,K,C)
    learned = _mean(soft(outputs, teachers, teaching.temperature), outputs)
    return (1 - teaching.weight) * loss + teaching.weight * learned


def _mean(total: Tensor, outputs: Tensor) -> Tensor:
    """The mean over passes of a sum over two passes (2,N,C) or over one (N,C)."""
    return total / 2 if outputs.dim() == 3 else total


def with_token_teachers(loss: Tensor, tokens: Projected, batch: Batch, head: str) -> Tensor:
    """As `with_teachers`, for scores over a vocabulary, which are computed a block of rows at a time, and again in the
    backward pass: no (N,V) matrix stays in memory.
    """
    teaching = batch.settings.get(f"{head} teacher")
    if not isinstance(teaching, Distillation) or teaching.tokens is None:
        return loss
    # (hidden, weight, bias) of the network, then of each teacher
    every, temperature = [tokens, *teaching.tokens(batch)], teaching.temperature

    def block(start: int) -> Tensor:
        rows = slice(start, start + _ROWS)
        scores = [at_least_float32(F.linear(hidden[..., rows, :], weight, bias)) for hidden, weight, bias in every]
        return soft_classes(scores[0], torch.stack(scores[1:], dim=1), temperature)  # (n,K,V)

    starts = range(0, tokens[0].shape[-2], _ROWS)  # the rows of all texts, in blocks
    soft = sum(
        # computed again in the backward pass, without anything random
        (checkpoint(block, start, use_reentrant=False, preserve_rng_state=False) for start in starts),
        torch.zeros_like(loss),
    )
    return (1 - teaching.weight) * loss + teaching.weight * _mean(soft, tokens[0])
