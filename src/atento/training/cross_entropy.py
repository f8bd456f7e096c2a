"""Label-smoothed cross-entropy, summed over real targets, in memory that does not grow with tokens x vocabulary.

Both functions return sums: the step divides once, by the real targets of the whole accumulated batch.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# Rows of one block of logits. Every block reads and writes the gradient of the whole matrix, so that few rows are dear
# (GPT-2's update took half as long again at 41 rows as at 128); many rows of a large vocabulary are a large block:
# 32 MiB is aimed at.
_FEWEST, _MOST, _BLOCK = 192, 512, 1 << 23
_ROUND = 64  # the last block is filled up to a multiple of so many: shapes that come again need no new program


def _exact(x: Tensor) -> Tensor:
    """Half precisions as float32; float32 and float64 as they are."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def plain_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, smoothing: float, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The equation: (1-ε)·(-log p_y) + ε·mean_v(-log p_v), summed, and the part without smoothing.

    hidden (N,D), weight (V,D), targets (N,), bias (V,) -> (loss, nll), scalars in nats (Szegedy et al. 2016).
    """
    logits = _exact(F.linear(hidden, weight, bias))
    log_probs = torch.log_softmax(logits, dim=-1)  # (N,V)
    nll = -log_probs.gather(1, targets.unsqueeze(1)).sum()
    return (1 - smoothing) * nll - smoothing * log_probs.mean(dim=-1).sum(), nll


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Makes the gradients in the forward pass, block by block, so that no (N,V) matrix ever exists."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        vocab_size = weight.shape[0]
        needs = any(ctx.needs_input_grad[:3])
        d_hidden = torch.empty_like(hidden) if needs else None
        d_weight = torch.zeros_like(_exact(weight)) if needs else None
        d_bias = torch.zeros_like(_exact(bias)) if needs and bias is not None else None
        # every logit's share of the smoothing is the same, so its gradient needs only these two sums
        weight_sum = _exact(weight).sum(dim=0)  # (D,)
        bias_sum = 0.0 if bias is None else _exact(bias).sum(dtype=torch.float64)
        loss = torch.zeros((), dtype=torch.float64, device=hidden.device)
        total_nll = torch.zeros_like(loss)
        rows = min(max(_FEWEST, _BLOCK // vocab_size), _MOST)
        for start in range(0, hidden.shape[0], rows):
            h, y = hidden[start : start + rows], targets[start : start + rows, None]
            missing = -len(y) % _ROUND
            h = F.pad(h, (0, 0, 0, missing)) if missing else h
            logits = _exact(F.linear(h, weight, bias)[: len(y)])  # (n,V)
            top = logits.amax(dim=-1, keepdim=True)
            probs = torch.softmax(logits, dim=-1)
            log_z = top - probs.amax(dim=-1, keepdim=True).log()  # (n,1)
            nll = (log_z - logits.gather(1, y)).sum(dtype=torch.float64)
            logit_sum = (_exact(h) @ weight_sum).sum(dtype=torch.float64) + len(y) * bias_sum
            smooth = log_z.sum(dtype=torch.float64) - logit_sum / vocab_size
            loss += (1 - smoothing) * nll + smoothing * smooth
            total_nll += nll
            del logits  # as little as can be stands at once
            if d_hidden is not None and d_weight is not None:
                probs.scatter_add_(1, y, torch.full_like(log_z, -(1 - smoothing)))
                d_logits = probs.to(h.dtype)
                d_logits = F.pad(d_logits, (0, 0, 0, missing)) if missing else d_logits
                share = smoothing / vocab_size
                d_hidden[start : start + rows] = (d_logits @ weight)[: len(y)] - share * weight_sum.to(h.dtype)
                d_weight += d_logits.t() @ h
                d_weight -= share * _exact(h).sum(dim=0)
                if d_bias is not None:
                    d_bias += probs.sum(dim=0) - share * len(y)
                del d_logits
            del probs
        if d_hidden is not None and d_weight is not None:
            d_bias = None if d_bias is None or bias is None else d_bias.to(bias.dtype)
            ctx.save_for_backward(d_hidden, d_weight.to(weight.dtype), d_bias)
        ctx.mark_non_differentiable(total_nll)
        return loss, total_nll

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        found = [None if part is None else part * grads[0].to(part.dtype) for part in ctx.saved_tensors]
        return *found, None, None


def cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, smoothing: float = 0.0, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """As `plain_cross_entropy`, with peak memory independent of N·V; loss and nll are float64 scalars.

    hidden (N,D), weight (V,D), targets (N,) int64, bias (V,).
    """
    loss, nll = _ChunkedCrossEntropy.apply(hidden, weight, bias, targets, smoothing)  # type: ignore[no-untyped-call]
    return loss, nll
