"""Mask-predict: a masked model writes a text in a few iterations (Ghazvininejad et al. 2019)."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from atento.decoding.choosing import no_distribution


@dataclass(frozen=True)
class MaskPredictOutput:
    """Ids (B,L), and log p (B,L) of each by the iteration that wrote it, 0 for ids that were given."""

    ids: Tensor
    log_probs: Tensor


@torch.inference_mode()
def mask_predict(
    predict: Callable[[Tensor], Tensor], ids: Tensor, mask_id: int, *, iterations: int, frozen: Tensor | None = None
) -> MaskPredictOutput:
    """Fill every position that is not frozen, then repeatedly mask the least probable tokens and fill them again.

    All N open positions of a row are masked in the first of T iterations, and floor(N (T - t) / T) in iteration t,
    counted from 0: those whose token has the lowest probability, the first of equals. A position that is not masked
    keeps its token and its probability. Rows do not depend on each other.

    Args:
        predict: ids (B,L) with masks in them -> logits (B,L,V); padding is its own concern.
        ids: (B,L).
        mask_id: the id of the mask; it is never written.
        iterations: T; with 1 all masks are filled at once.
        frozen: boolean (B,L), True = keeps its id; None: whatever is not a mask.

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
    is_open = ~frozen
    count = is_open.sum(dim=1, keepdim=True)  # N (B,1)
    log_probs = torch.zeros(ids.shape, device=ids.device)
    hidden = is_open
    for t in range(iterations):
        if t:
            order = log_probs.masked_fill(~is_open, float("inf")).argsort(dim=1, stable=True)  # (B,L), frozen ones last
            chosen = torch.arange(log_probs.shape[1], device=order.device) < count * (iterations - t) // iterations
            hidden = torch.zeros_like(is_open).scatter(1, order, chosen)
        if not bool(hidden.any()):
            break  # fewer than T iterations were enough
        scores = predict(ids.masked_fill(hidden, mask_id)).index_fill(
            -1, torch.tensor([mask_id], device=ids.device), float("-inf")
        )  # the mask itself is never written
        best, token = torch.log_softmax(scores, dim=-1).max(dim=-1)  # (B,L)
        broken = best.isnan() & hidden  # at open positions alone
        if bool(broken.any()):
            row, position = broken.nonzero()[0].tolist()
            raise no_distribution(row, position)
        ids = torch.where(hidden, token, ids)
        log_probs = torch.where(hidden, best, log_probs)  # others keep that of the iteration that wrote them
    return MaskPredictOutput(ids, log_probs)
