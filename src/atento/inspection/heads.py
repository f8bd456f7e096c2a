"""What each head does, in a few numbers: how spread, how far, how much on special tokens (docs/notes.md#a15)."""

from dataclasses import dataclass

import numpy as np

from atento.inspection.words import Matrix


@dataclass(frozen=True)
class HeadReport:
    """One head of one layer over one text; means are over the rows that read anything.

    `entropy` is in nats (0: one token is read; ln of the number of columns: all alike). `distance` is the mean number
    of tokens between reader and read (None in cross-attention, where positions of two texts do not compare).
    `special` is the mean weight on special tokens, `first` on the first token, `previous` on the token just before.
    """

    layer: int
    head: int
    entropy: float
    distance: float | None
    special: float
    first: float
    previous: float | None


def describe_head(weights: Matrix, special: list[bool], *, layer: int, head: int, same_text: bool) -> HeadReport:
    """`weights` (T,S), `special` of the S columns; `same_text` where rows and columns are the same tokens."""
    full = weights.astype(np.float64)
    full = full[full.sum(axis=1) > 0]
    if not len(full):
        nothing = 0.0 if same_text else None
        return HeadReport(layer, head, 0.0, nothing, 0.0, 0.0, nothing)
    logs = np.log(full, out=np.zeros_like(full), where=full > 0)
    distance = previous = None
    if same_text:
        positions = np.arange(weights.shape[0])
        far = np.abs(positions[:, None] - positions[None, :])[weights.sum(axis=1) > 0]
        distance = float((full * far).sum(axis=1).mean())
        previous = float(np.diagonal(weights, -1).astype(np.float64).mean()) if len(weights) > 1 else 0.0
    return HeadReport(
        layer=layer,
        head=head,
        entropy=float(-(full * logs).sum(axis=1).mean()) + 0.0,
        distance=distance,
        special=float(full[:, np.array(special, dtype=bool)].sum(axis=1).mean()),
        first=float(full[:, 0].mean()),
        previous=previous,
    )
