"""Calibration error: how far the probabilities of a classifier are from how often it is right."""

from bisect import bisect_left
from collections.abc import Sequence

from atento.base.errors import UsageError
from atento.metrics.label_counts import summed
from atento.metrics.label_names import label_streams
from atento.metrics.score import Score, check_pairs


def calibration_error(predictions: Sequence[tuple[str, float]], references: Sequence[str], *, bins: int = 10) -> Score:
    """Expected calibration error, 0 to 1, lower is better: |accuracy - mean probability| by bins of probability.

    Bin b of n holds the probabilities in ((b - 1) / n, b / n]; the bins are weighted by their examples.

    Args:
        predictions: for each example the label that is predicted and its probability.
        references: the right labels.
        bins: number of bins of equal width.

    Returns:
        A Score with the parts `maximum` (the largest error of a bin), `accuracy` and `confidence` (the mean
        probability).

    Raises:
        UsageError: unequal lengths, nothing to score, a probability outside 0 to 1, or `bins` below 1.

    Paper: Guo et al. 2017, On calibration of modern neural networks.
    """
    if bins < 1:
        raise UsageError(f"`bins` must be at least 1: got {bins}")
    if not len(predictions):
        raise UsageError("there is nothing to score: got 0 predictions")
    check_pairs(predictions, references)
    rows, inner = [], [number / bins for number in range(1, bins)]  # borders between bins
    names, (answers,) = label_streams([label for label, _ in predictions], list(references))
    for number, ((_, probability), label, right) in enumerate(zip(predictions, names, answers), 1):
        if not 0 <= probability <= 1:
            raise UsageError(f"the probability of prediction {number} must lie between 0 and 1: got {probability}")
        row = [0.0] * (3 * bins)  # of each bin: examples, right ones, sum of probabilities
        first = 3 * bisect_left(inner, probability)  # a border belongs to the bin below it
        row[first : first + 3] = [1.0, float(label == right), probability]
        rows.append(row)
    total = summed(rows)
    gaps = [abs(r - p) / n for n, r, p in _bins(total) if n]  # |accuracy - mean probability| of a bin
    parts = {"maximum": max(gaps), "accuracy": sum(total[1::3]) / len(rows), "confidence": sum(total[2::3]) / len(rows)}
    return Score("calibration error", _expected(total), parts, f"bins:{bins}", rows, _expected, digits=4)


def _bins(total: Sequence[float]) -> list[tuple[float, float, float]]:
    """Examples, right ones and summed probability of each bin."""
    return list(zip(total[0::3], total[1::3], total[2::3]))


def _expected(total: Sequence[float]) -> float:
    return sum(abs(r - p) for _, r, p in _bins(total)) / sum(total[0::3])  # n/N · |r/n - p/n| = |r - p| / N
