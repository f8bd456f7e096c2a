"""Correlations of predicted and right numbers: Pearson and Spearman."""

import math
from collections.abc import Sequence
from typing import Any, SupportsFloat

from atento.base.errors import UsageError
from atento.metrics.score import Score, check_pairs

_ROUNDING = 1e-12  # a variance below this share of the mean square is that of a constant


def pearson(predictions: Sequence[float], references: Sequence[float]) -> Score:
    """Pearson correlation, -1 to 1; 0 if the predictions or the references are constant (docs/notes.md#i4).

    Args:
        predictions: one number an example.
        references: the right numbers.

    Returns:
        A Score whose `settings` say which side is constant, if one is.

    Raises:
        UsageError: unequal lengths, fewer than 2 examples, or a value that is no finite number.
    """
    sides = _checked(predictions, references)
    x, y = (_standard(side) for side in sides)
    rows = [[a, b, a * a, b * b, a * b, 1.0] for a, b in zip(x, y)]  # x, y, x², y², xy, 1
    total = [math.fsum(column) for column in zip(*rows)]  # `fsum`: no digit is lost
    parts = {"examples": float(len(x))}
    return Score("Pearson", _from_sums(total), parts, _constant(*sides), rows, _from_sums, digits=4)


def spearman(predictions: Sequence[float], references: Sequence[float]) -> Score:
    """Spearman correlation, -1 to 1: the Pearson correlation of the ranks; equal numbers share their mean rank.

    It is 0 if the predictions or the references are constant.

    Args:
        predictions: one number an example.
        references: the right numbers.

    Returns:
        A Score whose `settings` say which side is constant, if one is. Its interval ranks each sample anew.

    Raises:
        UsageError: unequal lengths, fewer than 2 examples, or a value that is no finite number.
    """
    import numpy as np

    sides = _checked(predictions, references)
    x, y = (np.asarray(side) for side in sides)

    def values_of(counts: Any) -> list[float]:
        """The correlation of each sample; counts (S,N) say how often it has each example."""
        ranks = [_ranks(side, counts) for side in (x, y)]  # (S,N) each
        middle = (counts.sum(axis=1, keepdims=True) + 1) / 2  # the mean of ranks
        first, second = (side - middle for side in ranks)
        covariance = (counts * first * second).sum(axis=1)  # (S,)
        spread = (counts * first**2).sum(axis=1) * (counts * second**2).sum(axis=1)
        return [c / math.sqrt(s) if s > 0 else 0.0 for c, s in zip(covariance.tolist(), spread.tolist())]

    (value,) = values_of(np.ones((1, len(x))))
    parts = {"examples": float(len(x))}
    rows = list(zip(*sides))
    return Score("Spearman", value, parts, _constant(*sides), rows, lambda row: 0.0, values_of=values_of, digits=4)


def _checked(predictions: Sequence[float], references: Sequence[float]) -> tuple[list[float], list[float]]:
    check_pairs(predictions, references)
    if len(predictions) < 2:
        raise UsageError(f"a correlation needs at least 2 examples: got {len(predictions)}")
    sides = []
    for name, values in (("prediction", predictions), ("reference", references)):
        numbers = []
        for number, value in enumerate(values, 1):
            if not isinstance(value, SupportsFloat) or not math.isfinite(float(value)):
                raise UsageError(f"{name} {number} must be a finite number: got {value!r}")
            numbers.append(float(value))
        sides.append(numbers)
    return sides[0], sides[1]


def _standard(values: list[float]) -> list[float]:
    """The values less their mean, divided by the largest, so that sums of squares are exact enough."""
    if len(set(values)) == 1:
        return [0.0] * len(values)
    largest = max(map(abs, values))
    scaled = [value / largest for value in values]  # at most 1: squares do not overflow
    mean = math.fsum(scaled) / len(scaled)
    centred = [value - mean for value in scaled]
    spread = max(map(abs, centred))
    return [value / spread for value in centred]


def _constant(predictions: list[float], references: list[float]) -> str:
    """A note of the sides that are constant, for which the correlation is not defined."""
    sides = (("predictions", predictions), ("references", references))
    constant = [name for name, values in sides if len(set(values)) == 1]
    return f"constant:{','.join(constant)}" if constant else ""


def _from_sums(total: Sequence[float]) -> float:
    """The correlation from the sums of x, y, x², y², xy and 1."""
    x, y, xx, yy, xy, number = total
    first, second = number * xx - x * x, number * yy - y * y  # N² times the variances
    if first <= _ROUNDING * number * xx or second <= _ROUNDING * number * yy:
        return 0.0
    return max(-1.0, min(1.0, (number * xy - x * y) / (math.sqrt(first) * math.sqrt(second))))  # against rounding


def _ranks(values: Any, counts: Any) -> object:
    """The mean rank of each value (S,N), from 1, in samples that have value n as often as counts (S,N) say."""
    import numpy as np

    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))  # groups of equal values
    sizes = np.add.reduceat(counts[:, order], starts, axis=1)  # of each group of equal values
    middle = np.cumsum(sizes, axis=1) - (sizes - 1) / 2  # the mean rank of each group
    group = np.empty(len(values), dtype=np.int64)
    group[order] = np.repeat(np.arange(len(starts)), np.diff([*starts.tolist(), len(values)]))
    return middle[:, group]  # (S,groups) -> (S,N)
