"""Statistics of attention heads: entropy, distance, weight on special tokens (docs/notes.md#a15)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from atento.inspection.word_groups import Matrix


@dataclass(frozen=True)
class HeadReport:
    """Statistics of a head on one text, as means over the rows that attend to anything."""

    layer: int  # layer number from 0
    head: int  # head number from 0
    entropy: float  # in nats; 0 if one token gets all the weight, ln of the number of columns if all get the same
    distance: float | None  # mean distance in tokens from query to key; None in cross-attention
    special: float  # mean weight on special tokens
    first: float  # mean weight on the first token
    previous: float | None  # mean weight on the previous token; None in cross-attention
    own: float | None = None  # mean weight of a token on itself; None in cross-attention
    # mean weight on tokens that follow an earlier token equal to the one that reads, over the tokens that have such an
    # earlier one (Olsson et al. 2022); None in cross-attention, or where no token comes again
    induction: float | None = None


def describe_head(
    weights: Matrix, special: list[bool], *, layer: int, head: int, same_text: bool, tokens: Sequence[str] = ()
) -> HeadReport:
    """Statistics of a head with weights (T,S); `special` marks columns; `same_text` is True for self-attention.

    `tokens` of the text, if they are given, are what induction is measured by.
    """
    reads = weights.sum(axis=1) > 0  # (T,)
    full = weights.astype(np.float64)[reads]  # rows that attend to anything
    if not len(full):
        nothing = 0.0 if same_text else None
        return HeadReport(layer, head, 0.0, nothing, 0.0, 0.0, nothing)
    logs = np.log(full, out=np.zeros_like(full), where=full > 0)  # 0 · ln 0 is 0
    distance = previous = induction = None
    if same_text:
        positions = np.arange(weights.shape[0])
        distances = np.abs(positions[:, None] - positions[None, :])[reads]  # |query - key|, in tokens
        distance = float((full * distances).sum(axis=1).mean())
        behind = np.diagonal(weights, -1)[reads[1:]]  # the first row has no previous token
        previous = float(behind.astype(np.float64).mean()) if len(behind) else 0.0
        # the mean weight on what followed earlier equal tokens, over the rows that have one
        names, followed = np.array(tokens), np.zeros(weights.shape, dtype=bool)
        if len(names) == len(weights):  # without the names nothing is known
            followed[:, 1:] = names[:, None] == names[None, :-1]  # column j: what follows a token like that of row i
            followed &= positions[None, :] <= positions[:, None]  # columns up to the row's own
        if (rows := followed.any(axis=1)).any():  # whose token came before
            induction = float((weights * followed).sum(axis=1)[rows].astype(np.float64).mean())
    return HeadReport(
        layer=layer,
        head=head,
        entropy=float(-(full * logs).sum(axis=1).mean()) + 0.0,  # no -0
        distance=distance,
        special=float(full[:, np.array(special, dtype=bool)].sum(axis=1).mean()),
        first=float(full[:, 0].mean()),
        previous=previous,
        own=float(np.diagonal(weights)[reads].astype(np.float64).mean()) if same_text else None,
        induction=induction,
    )
