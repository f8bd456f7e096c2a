"""Perplexity from the log-probabilities of texts."""

import math
from collections.abc import Sequence

from atento.base.errors import UsageError
from atento.metrics.score import Score


def perplexity(log_probs: Sequence[float], counts: Sequence[int]) -> Score:
    """Token-weighted perplexity: exp of the mean negative log-probability of a token, over all texts together.

    It does not depend on how texts are batched or ordered (docs/notes.md#i6).

    Args:
        log_probs: for each text the sum of the log-probabilities of its tokens, in nats.
        counts: for each text the number of these tokens.

    Returns:
        A Score, lower is better, with the parts `nll` (nats a token), `bits` (bits a token) and `tokens`. It is
        infinite if a token has probability 0.

    Raises:
        UsageError: unequal lengths, no tokens, a log-probability above 0 or not a number, or a negative count.
    """
    if len(log_probs) != len(counts):
        raise UsageError(f"each text needs its number of tokens: got {len(log_probs)} texts and {len(counts)} counts")
    rows = []
    for number, (log_prob, count) in enumerate(zip(log_probs, counts), 1):
        if not log_prob <= 0:  # also NaN
            raise UsageError(f"the log-probability of text {number} must not be above 0: got {log_prob}")
        if count < 0 or (count == 0 and log_prob < 0):
            raise UsageError(f"the number of tokens of text {number} is not valid: got {count}")
        rows.append([0.0 - float(log_prob), float(count)])  # of 0 not -0.0
    nll, tokens = (math.fsum(column) for column in zip(*rows)) if rows else (0.0, 0.0)
    if not tokens:
        raise UsageError("there is nothing to score: got 0 tokens")
    parts = {"nll": nll / tokens, "bits": nll / tokens / math.log(2), "tokens": tokens}  # nats by ln 2 are bits
    return Score("perplexity", _value([nll, tokens]), parts, "weighted:tokens", rows, _value)


def _value(total: Sequence[float]) -> float:
    nll, tokens = total
    mean = nll / tokens if tokens else 0.0
    return math.exp(mean) if mean < 709 else math.inf  # exp overflows above 709.78
