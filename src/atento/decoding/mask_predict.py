"""Mask-predict: a model that fills masks writes a whole text in a few rounds (Ghazvininejad et al. 2019; error 20)."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from atento.decoding.choosing import no_distribution


@dataclass(frozen=True)
class Filled:
    """What was written: ids (B,L), and log p (B,L) of each by the round that wrote it, 0 for what was given."""

    ids: Tensor
    log_probs: Tensor


@torch.inference_mode()
def mask_predict(
    predict: Callable[[Tensor], Tensor],
    ids: Tensor,
    mask_id: int,
    *,
    iterations: int,
    frozen: Tensor | None = None,
) -> Filled:
    """Fill every place that is not frozen; then, round after round, mask the least certain ones again and refill them.

    A row of N places to fill has all of them masked in the first of T rounds, and floor(N (T - t) / T) in round t,
    counted from 0: those whose token got the least probability, the first of equals. A place that is not masked keeps
    its token and its probability. Rows do not depend on each other.

    Args:
        predict: ids (B,L) with masks in them -> logits (B,L,V); it sees to padding and the rest by itself.
        ids: (B,L).
        mask_id: what stands for a hidden token; it is never written.
        iterations: T; 1 fills all masks at once.
        frozen: boolean (B,L), True = stays as given; None: whatever is not a mask stays.

    Raises:
        ValueError: fewer than one iteration, or shapes that do not fit. AtentoError: logits that are NaN or infinite.
    """
    if iterations < 1:
        raise ValueError(f"`iterations` must be at least 1: got {iterations}")
    if ids.dim() != 2:
        raise ValueError(f"`ids` must be of shape (B,L): got {tuple(ids.shape)}")
    frozen = ids != mask_id if frozen is None else frozen
    if frozen.shape != ids.shape or frozen.dtype != torch.bool:
        raise ValueError(
            f"`frozen` must be boolean, as large as `ids` {tuple(ids.shape)}: got {frozen.dtype} of "
            f"{tuple(frozen.shape)}"
        )
    open_places = ~frozen
    count = open_places.sum(dim=1, keepdim=True)  # N (B,1)
    log_probs = torch.zeros(ids.shape, device=ids.device)
    hidden = open_places
    for t in range(iterations):
        if t:
            hidden = _least_certain(log_probs, open_places, count * (iterations - t) // iterations)
        if not bool(hidden.any()):
            break
        scores = predict(ids.masked_fill(hidden, mask_id)).index_fill(
            -1, torch.tensor([mask_id], device=ids.device), float("-inf")
        )
        best, token = torch.log_softmax(scores, dim=-1).max(dim=-1)  # (B,L)
        broken = best.isnan() & hidden
        if bool(broken.any()):
            row, place = broken.nonzero()[0].tolist()
            raise no_distribution(row, place)
        ids = torch.where(hidden, token, ids)
        log_probs = torch.where(hidden, best, log_probs)
    return Filled(ids, log_probs)


def _least_certain(log_probs: Tensor, among: Tensor, count: Tensor) -> Tensor:
    """The `count` (B,1) least probable of those places, as boolean (B,L)."""
    order = log_probs.masked_fill(~among, float("inf")).argsort(dim=1, stable=True)
    chosen = torch.arange(log_probs.shape[1], device=order.device) < count  # in that order
    return torch.zeros_like(among).scatter(1, order, chosen)
