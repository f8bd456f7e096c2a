"""Scores of sets of classes, where an example may have several labels or none."""

from collections.abc import Iterable, Sequence

from atento.errors import UsageError
from atento.metrics.label_counts import count_rows, f1_of, label_parts, summed
from atento.metrics.label_names import label_name, label_names
from atento.metrics.score import Score

Sets = Sequence[Iterable[str | int]]


def subset_accuracy(predictions: Sets, references: Sets) -> Score:
    """The share of examples whose labels are all predicted and no others, 0 to 1.

    Args:
        predictions: the labels of each example, in any order.
        references: the right labels.

    Raises:
        UsageError: unequal lengths, nothing to score, or a value that is no label.
    """
    rows = [[float(labels == right), 1.0] for labels, right in zip(*_checked(predictions, references))]
    total = summed(rows)
    parts = {"right": total[0], "examples": total[1]}
    return Score("subset accuracy", _share(total), parts, "", rows, _share, digits=4)


def multilabel_f1(predictions: Sets, references: Sets, *, average: str = "micro", positive: str | None = None) -> Score:
    """F1 of sets of labels, 0 to 1.

    Args:
        predictions: the labels of each example, in any order.
        references: the right labels.
        average: "micro", "macro", "weighted", or "binary" for the label `positive`, as in `f1`.
        positive: the label that "binary" scores.

    Returns:
        A Score whose parts are `f1_macro`, `f1_micro`, `f1_weighted`, and `f1[LABEL]` of each label.

    Raises:
        UsageError: unequal lengths, nothing to score, a value that is no label, or an option is not valid.
    """
    ours, theirs = _checked(predictions, references)
    labels = sorted(set().union(*ours, *theirs))
    rows = count_rows(((labels & right, labels, right) for labels, right in zip(ours, theirs)), labels)
    value, total = f1_of(average, labels, None if positive is None else label_name(positive)), summed(rows)
    settings = f"average:{average}" + (f"|positive:{positive}" if positive is not None else "")
    return Score("multi-label F1", value(total), label_parts(total, labels), settings, rows, value, digits=4)


def _checked(predictions: Sets, references: Sets) -> tuple[list[set[str]], list[set[str]]]:
    if not len(predictions):
        raise UsageError("there is nothing to score: got 0 predictions")
    if len(predictions) != len(references):
        raise UsageError(
            f"each prediction needs its reference: got {len(predictions)} predictions and {len(references)} references"
        )
    sides: list[list[set[str]]] = [[], []]
    for side, examples in zip(sides, (predictions, references)):
        for example in examples:
            if isinstance(example, str):
                raise UsageError(f"each example has a list of labels: got the string {example!r}")
            side.append(set(label_names(example)) - {""})  # no label, as between two bars of a file
    return sides[0], sides[1]


def _share(total: list[float]) -> float:
    return total[0] / total[1]
