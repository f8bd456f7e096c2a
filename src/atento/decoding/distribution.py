"""The next-token distribution of one step: log-softmax of a network's logits, refused where they are not numbers."""

from collections.abc import Sequence
from math import isnan

import torch
from torch import Tensor

from atento.errors import AtentoError


def next_log_probs(logits: Tensor, rows: Sequence[int], length: int) -> Tensor:
    """Log-probabilities (R,V) of the next token, from logits (R,V).

    A row of logits with a NaN or +inf, or of nothing but -inf, has NaN as every log-probability. So one column tells,
    and the check reads R numbers.

    Args:
        logits: (R,V).
        rows: the row of the batch that each belongs to, for the message.
        length: how many tokens were written before, for the message.

    Raises:
        AtentoError: some row of logits is no distribution.
    """
    log_probs = torch.log_softmax(logits, dim=-1)
    first = log_probs[:, 0]
    if isnan(float(first.sum())):  # no log-probability is +inf, so only a NaN makes the sum NaN
        raise no_distribution(rows[int(first.isnan().nonzero()[0])], length)
    return log_probs


def no_distribution(row: int, length: int) -> AtentoError:
    """The error of a row whose logits, after `length` tokens were written, are not numbers."""
    return AtentoError(
        f"the network gave no distribution over token {length + 1} of output {row + 1} of the batch: a logit is NaN or "
        "infinite; its weights are damaged, or too large for this precision"
    )
