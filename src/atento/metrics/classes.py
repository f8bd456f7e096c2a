"""Scores of classes: how many predicted labels are right."""

from collections.abc import Sequence

from atento.metrics.score import Score
from atento.metrics.text import reference_streams


def accuracy(predictions: Sequence[str], references: Sequence[str]) -> Score:
    """The share of predictions that equal their reference, 0 to 1.

    Args:
        predictions: one label an example.
        references: the right labels.

    Raises:
        UsageError: unequal lengths, nothing to score, or labels that are no strings.
    """
    streams = reference_streams(predictions, references)
    rows = [[float(label in right), 1.0] for label, *right in zip(predictions, *streams)]
    total = [sum(column) for column in zip(*rows)]
    return Score("accuracy", _share(total), {"right": total[0], "examples": total[1]}, "", rows, _share)


def _share(total: list[float]) -> float:
    return total[0] / total[1]
