"""Precision, recall and F1 of labels, from how often each is right, predicted and expected."""

from collections.abc import Callable, Iterable, Sequence

from atento.base.errors import UsageError, nearest
from atento.metrics.score import Score

AVERAGES = ("macro", "micro", "weighted")
Matches = tuple[Iterable[str], Iterable[str], Iterable[str]]  # of a segment: right, predicted and expected labels


def precision_recall_f1(right: float, predicted: float, expected: float) -> tuple[float, float, float]:
    """Precision, recall and F1; each is 0 if its denominator is 0, as in scikit-learn."""
    precision = right / predicted if predicted else 0.0
    recall = right / expected if expected else 0.0
    both = predicted + expected
    return precision, recall, 2 * right / both if both else 0.0  # 2PR / (P + R), without dividing twice


def count_rows(segments: Iterable[Matches], labels: Sequence[str]) -> list[list[float]]:
    """For each segment a row of 3K numbers for K labels: how often each is right, then predicted, then expected."""
    columns, width = {label: column for column, label in enumerate(labels)}, len(labels)
    rows = []
    for sides in segments:
        row = [0.0] * (3 * width)
        for side, names in enumerate(sides):
            for name in names:
                row[side * width + columns[name]] += 1
        rows.append(row)
    return rows


def averaged(total: Sequence[float], average: str) -> tuple[float, float, float]:
    """Precision, recall and F1 of a summed row, averaged over labels.

    "micro" sums the counts of all labels. "macro" is the mean over the labels that are predicted or expected.
    "weighted" weights each label by how often it is expected.
    """
    width = len(total) // 3
    # of each label: right, predicted, expected
    counts = list(zip(total[:width], total[width : 2 * width], total[2 * width :]))
    if average == "micro":
        return precision_recall_f1(*(sum(column) for column in zip(*counts))) if counts else (0.0, 0.0, 0.0)
    present = [triple for triple in counts if triple[1] or triple[2]]
    weights = [triple[2] if average == "weighted" else 1.0 for triple in present]
    total_weight = sum(weights)
    if not total_weight:
        return 0.0, 0.0, 0.0
    sides = zip(*(precision_recall_f1(*triple) for triple in present))  # the columns: precision, recall, F1
    precision, recall, f1 = (sum(w * value for w, value in zip(weights, side)) / total_weight for side in sides)
    return precision, recall, f1


def f1_of(average: str, labels: Sequence[str], positive: str | None) -> Callable[[Sequence[float]], float]:
    """The function from a summed row to F1; `average` is one of `AVERAGES`, or "binary" for that of one label.
    Raises UsageError: there is no such average, or no such label.
    """
    if average != "binary":
        if average not in AVERAGES:
            raise UsageError(f"unknown average {average!r}{nearest(average, [*AVERAGES, 'binary'])}")
        if positive is not None:
            raise UsageError(f"`positive` is for the average 'binary': got {positive!r} with {average!r}")
        return lambda total: averaged(total, average)[2]
    if positive is None:
        raise UsageError("the average 'binary' needs the label to score: give `positive`")
    if positive not in labels:
        raise UsageError(f"`positive` is not among the labels{nearest(positive, list(labels))}: got {positive!r}")
    column, width = list(labels).index(positive), len(labels)
    return lambda total: precision_recall_f1(*total[column::width])[2]  # of its three columns


def label_parts(total: Sequence[float], labels: Sequence[str], *, sides: bool = False) -> dict[str, float]:
    """F1 by average and of each label, such as `f1_macro` and `f1[LABEL]`.

    With `sides` also precision and recall, and `support[LABEL]`, how often the label is expected.
    """
    names = ("precision", "recall", "f1") if sides else ("f1",)
    parts: dict[str, float] = {}
    for average in AVERAGES:
        values = averaged(total, average)[-len(names) :]  # F1 is the last of the three
        parts |= {f"{name}_{average}": value for name, value in zip(names, values)}
    width = len(labels)
    for column, label in enumerate(labels):
        counts = total[column::width]  # right, predicted, expected
        values = precision_recall_f1(*counts)[-len(names) :]
        parts |= {f"{name}[{label}]": value for name, value in zip(names, values)}
        if sides:
            parts[f"support[{label}]"] = counts[2]
    return parts


def summed(rows: Sequence[Sequence[float]]) -> list[float]:
    """The sum of the rows."""
    return [sum(column) for column in zip(*rows)]


def report_table(score: Score) -> str:
    """The parts of a report as a table of text: precision, recall, F1 and support of each label, then the averages."""
    labels = [name[len("support[") : -1] for name in score.parts if name.startswith("support[")]
    total = sum(score.parts[f"support[{label}]"] for label in labels)
    rows: list[tuple[str, ...]] = [("", "precision", "recall", "f1", "support")]
    keys = [(label, f"[{label}]", score.parts[f"support[{label}]"]) for label in labels]
    for label, key, support in [*keys, *((f"{average} average", f"_{average}", total) for average in AVERAGES)]:
        values = (f"{score.parts[f'{name}{key}']:.4f}" for name in ("precision", "recall", "f1"))
        rows.append((label, *values, f"{support:.0f}"))
    width = max(len(row[0]) for row in rows)
    return "\n".join(f"{first:<{width}}" + "".join(f"{cell:>11}" for cell in cells) for first, *cells in rows)
