"""Scores of classes: one label an example, sets of labels, and probabilities; and the confusion matrix."""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from atento.base.errors import UsageError
from atento.metrics.label_counts import count_rows, f1_of, label_name, label_names, label_parts, label_streams, summed
from atento.metrics.score import Score, check_pairs, ratio, warn_score

Label = str | int | bool
Labels = Sequence[Label]
Rows = list[list[float]]


def accuracy(predictions: Labels, references: Labels) -> Score:
    """The share of predictions that equal their reference, 0 to 1.

    Args:
        predictions: one label an example: a string, a whole number, or True or False.
        references: the right labels.

    Raises:
        UsageError: unequal lengths, nothing to score, or a value that is no label.
    """
    names, streams = label_streams(predictions, references)
    return share_of("accuracy", [[float(label in right), 1.0] for label, *right in zip(names, *streams)])


def share_of(name: str, rows: Rows, counted: str = "examples") -> Score:
    """The share of what is right among all that is counted, from rows of both."""
    total = summed(rows)
    return Score(name, ratio(total), {"right": total[0], counted: total[1]}, "", rows, ratio, digits=4)


def f1(predictions: Labels, references: Labels, *, average: str = "macro", positive: Label | None = None) -> Score:
    """F1 of classes, 0 to 1: the harmonic mean of precision and recall, averaged over labels (docs/notes.md#i4).

    The labels are those of the predictions and the references. A label that is never right has F1 0.

    Args:
        predictions: one label an example: a string, a whole number, or True or False.
        references: the right labels.
        average: "macro": the mean over labels; "micro": of the summed counts, which is the accuracy where each example
            has one label; "weighted": each label weighted by its examples; "binary": that of the label `positive`.
        positive: the label that "binary" scores.

    Returns:
        A Score whose parts are `f1_macro`, `f1_micro`, `f1_weighted` and `f1[LABEL]` of each label.

    Raises:
        UsageError: unequal lengths, nothing to score, a value that is no label, or an option is not valid.
    """
    return _f1("F1", *_counted(predictions, references), average, positive)


def _f1(
    name: str, labels: Sequence[str], rows: Rows, average: str, positive: Label | None, *, sides: bool = False
) -> Score:
    value, total = f1_of(average, labels, None if positive is None else label_name(positive)), summed(rows)
    settings = f"average:{average}" + (f"|positive:{positive}" if positive is not None else "")
    return Score(name, value(total), label_parts(total, labels, sides=sides), settings, rows, value, digits=4)


def matthews(predictions: Labels, references: Labels) -> Score:
    """Matthews correlation of two or more classes, -1 to 1; 0 if the predictions or the references are constant.

    Args:
        predictions: one label an example: a string, a whole number, or True or False.
        references: the right labels.

    Returns:
        A Score whose `settings` say which side is constant, if one is.

    Raises:
        UsageError: unequal lengths, nothing to score, or a value that is no label.

    Paper: Gorodkin 2004, Comparing two K-category assignments by a K-category correlation coefficient.
    """
    labels, rows = _counted(predictions, references)
    total = summed(rows)
    width = len(labels)  # columns: right, predicted, expected, K each
    sides = (("predictions", total[width : 2 * width]), ("references", total[2 * width :]))
    constant = [name for name, counts in sides if sum(map(bool, counts)) < 2]
    settings = f"constant:{','.join(constant)}" if constant else ""
    parts = {"labels": float(len(labels)), "examples": float(len(rows))}
    return Score("Matthews", _matthews(total), parts, settings, rows, _matthews, digits=4)


def report(predictions: Labels, references: Labels) -> Score:
    """The classification report: precision, recall, F1 and support of each label, and their averages.

    Args:
        predictions: one label an example: a string, a whole number, or True or False.
        references: the right labels.

    Returns:
        A Score whose value is the accuracy. Its parts are `precision[LABEL]`, `recall[LABEL]`, `f1[LABEL]`,
        `support[LABEL]`, and the averages such as `recall_macro`. `report_table` prints them.

    Raises:
        UsageError: unequal lengths, nothing to score, or a value that is no label.
    """
    labels, rows = _counted(predictions, references)
    total = summed(rows)
    return Score("accuracy", _accuracy(total), label_parts(total, labels, sides=True), "", rows, _accuracy, digits=4)


def _counted(predictions: Labels, references: Labels) -> tuple[list[str], Rows]:
    """The labels in order, and the counts of each example (`count_rows`)."""
    names, streams = label_streams(predictions, references)
    if len(streams) > 1:
        raise UsageError(f"each example has one right label: got {len(streams)} reference sets")
    labels = sorted({*names, *streams[0]})
    pairs = zip(names, streams[0])
    return labels, count_rows((([label] if label == right else [], [label], [right]) for label, right in pairs), labels)


def _accuracy(total: Sequence[float]) -> float:
    width = len(total) // 3
    return sum(total[:width]) / sum(total[2 * width :])  # right ones by examples


def _matthews(total: Sequence[float]) -> float:
    width = len(total) // 3
    right, predicted, expected = sum(total[:width]), total[width : 2 * width], total[2 * width :]
    examples = sum(expected)
    covariance = right * examples - sum(p * e for p, e in zip(predicted, expected))  # over all classes
    # a side that is constant has no spread
    spread = [examples**2 - sum(count**2 for count in side) for side in (predicted, expected)]
    return covariance / math.sqrt(spread[0] * spread[1]) if all(spread) else 0.0


Sets = Sequence[Iterable[str | int]]


def subset_accuracy(predictions: Sets, references: Sets) -> Score:
    """The share of examples whose labels are all predicted and no others, 0 to 1.

    Args:
        predictions: the labels of each example, in any order.
        references: the right labels.

    Raises:
        UsageError: unequal lengths, nothing to score, or a value that is no label.
    """
    sides = zip(*_checked(predictions, references))
    return share_of("subset accuracy", [[float(labels == right), 1.0] for labels, right in sides])


def multilabel_f1(
    predictions: Sets, references: Sets, *, average: str = "micro", positive: str | None = None, sides: bool = False
) -> Score:
    """F1 of sets of labels, 0 to 1.

    Args:
        predictions: the labels of each example, in any order.
        references: the right labels.
        average: "micro", "macro", "weighted", or "binary" for the label `positive`, as in `f1`.
        positive: the label that "binary" scores.
        sides: add the parts of `report` that `report_table` prints (the metric `multilabel-report`).

    Returns:
        A Score whose parts are `f1_macro`, `f1_micro`, `f1_weighted`, and `f1[LABEL]` of each label.

    Raises:
        UsageError: unequal lengths, nothing to score, a value that is no label, or an option is not valid.
    """
    ours, theirs = _checked(predictions, references)
    if not any(theirs):
        warn_score("no example has a right label, so that F1 is 0 whatever is predicted")
    labels = sorted(set().union(*ours, *theirs))
    rows = count_rows(((labels & right, labels, right) for labels, right in zip(ours, theirs)), labels)
    return _f1("multi-label F1", labels, rows, average, positive, sides=sides)


def _checked(predictions: Sets, references: Sets) -> tuple[list[set[str]], list[set[str]]]:
    if not len(predictions):
        raise UsageError("there is nothing to score: got 0 predictions")
    check_pairs(predictions, references)
    sides: list[list[set[str]]] = [[], []]
    for side, examples in zip(sides, (predictions, references)):
        for example in examples:
            if isinstance(example, str):
                raise UsageError(f"each example has a list of labels: got the string {example!r}")
            side.append(set(label_names(example)) - {""})  # no label, as between two bars of a file
    return sides[0], sides[1]


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


_SUPPORT = "support["


@dataclass(frozen=True)
class ConfusionMatrix:
    """Counts of predictions by label; as text, and as a table in notebooks.

    Attributes:
        labels: the K labels in alphabetical order, those of the predictions and of the references.
        counts: K rows of K counts; `counts[i][j]` examples have the right label i and the predicted label j.
    """

    labels: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]

    def to_dict(self) -> dict[str, object]:
        """Return labels and counts as plain data."""
        return {"labels": list(self.labels), "counts": [list(row) for row in self.counts]}

    def __str__(self) -> str:
        """A table of text: a row for each right label, a column for each predicted one."""
        first = max(map(len, ("right \\ predicted", *self.labels)))
        widths = [
            max(len(label), *(len(str(row[column])) for row in self.counts)) + 2
            for column, label in enumerate(self.labels)
        ]  # two spaces between columns
        lines = [("right \\ predicted", self.labels), *zip(self.labels, self.counts)]
        aligned = ("".join(f"{cell:>{width}}" for cell, width in zip(cells, widths)) for _, cells in lines)
        return "\n".join(f"{name:<{first}}{cells}" for (name, _), cells in zip(lines, aligned))

    def _repr_html_(self) -> str:
        """The same table for notebooks."""
        head = "".join(f'<th scope="col">{escape(label)}</th>' for label in self.labels)
        rows = (
            f'<tr><th scope="row">{escape(label)}</th>{"".join(f"<td>{count}</td>" for count in row)}</tr>'
            for label, row in zip(self.labels, self.counts)
        )
        return (
            f"<table><caption>rows: right; columns: predicted</caption><tr><th></th>{head}</tr>{''.join(rows)}</table>"
        )


def confusion(predictions: Labels, references: Labels) -> ConfusionMatrix:
    """The confusion matrix of predicted labels.

    Args:
        predictions: one label an example.
        references: the right labels.

    Raises:
        UsageError: unequal lengths, nothing to count, or a value that is no label.
    """
    return confusion_of(report(predictions, references))


def confusion_of(score: Score) -> ConfusionMatrix:
    """The confusion matrix of the examples of a classification report.

    Args:
        score: the result of `report`.

    Raises:
        UsageError: it is another score.
    """
    labels = tuple(name[len(_SUPPORT) : -1] for name in score.parts if name.startswith(_SUPPORT))
    width = len(labels)
    if not labels or any(len(row) != 3 * width or sum(row[2 * width :]) != 1 for row in score.segments):
        raise UsageError(f"a confusion matrix is made from the result of `report`: got {score!r}")
    # a segment is three rows of 0 and 1: the label if it is right, the predicted label, the expected label
    cells = Counter((row.index(1, 2 * width) - 2 * width, row.index(1, width) - width) for row in score.segments)
    return ConfusionMatrix(labels, tuple(tuple(cells[i, j] for j in range(width)) for i in range(width)))
