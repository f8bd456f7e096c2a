"""Labels: what is one label to every reader and metric; precision, recall and F1 from how often each is right."""

import re
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral
from typing import Any

from atento.base.errors import UsageError, nearest
from atento.base.nfc import nfc
from atento.metrics.bleu import reference_streams
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


_WHOLE = re.compile(r"[+-]?[0-9]{1,15}\.0+")  # as pandas writes whole numbers of a column with a gap
_NUMBERS = {"True": "1", "False": "0"}


def class_name(label: str) -> str:
    """Return a label without the spaces around it, its accented letters in one piece (NFC), 1.0 as 1.

    Labels that look the same are the same class, however a file has written them.
    """
    name = nfc(label.strip())
    return str(int(name.partition(".")[0])) if _WHOLE.fullmatch(name) else name


def label_name(value: Any) -> str | None:
    """Return the name of a label: a string, a whole number, or True or False, of NumPy and PyTorch too; else None.

    A column of whole numbers with a gap comes from pandas as 1.0, which is 1.
    """
    if not isinstance(value, str) and callable(getattr(value, "item", None)) and getattr(value, "ndim", 0) == 0:
        value = value.item()  # a number of NumPy or PyTorch
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, Integral) or (isinstance(value, float) and value.is_integer()):
        return str(int(value))
    return class_name(value) if isinstance(value, str) else None


def label_names(labels: Iterable[object]) -> list[str]:
    """Return the names of labels. Raises UsageError: one is neither a string, a whole number nor True or False."""
    names = []
    for label in labels:
        name = label_name(label)
        if name is None:
            raise UsageError(f"labels must be strings, whole numbers, or True and False: got {label!r:.60}")
        names.append(name)
    return names


def label_streams(predictions: Sequence[Any], references: Sequence[Any]) -> tuple[list[str], list[list[str]]]:
    """Return the names of predicted labels, and of the right ones as a list of reference sets.

    Beside whole numbers, True and False are 1 and 0, as in scikit-learn; TRUE and true of a table are True where True
    or another of the two stands beside them.
    Raises UsageError: unequal lengths, nothing to score, a value that is no label, or a right label that is blank.
    """
    if isinstance(predictions, str) or isinstance(references, str):
        reference_streams(predictions, references)  # refuses them
    first = next(iter(references), None)
    several = isinstance(first, list | tuple) or getattr(first, "ndim", 0) == 1
    names = label_names(predictions)
    streams = reference_streams(names, [*map(label_names, references)] if several else label_names(references))
    for stream in streams:
        if "" in stream:
            raise UsageError(f"right label {stream.index('') + 1} is blank: leave the example out, as training does")
    present = set(names).union(*streams)
    booleans = {name: name.capitalize() for name in present if name.lower() in ("true", "false")}
    if len(set(booleans.values())) < len(booleans):  # two spellings of one of them stand there
        names, *streams = ([booleans.get(name, name) for name in side] for side in (names, *streams))
    if not present.isdisjoint(_NUMBERS) and any(name.lstrip("-").isdecimal() for name in present):
        names, *streams = ([_NUMBERS.get(name, name) for name in side] for side in (names, *streams))
    return names, streams
