"""The confusion matrix: how often each label was predicted for each right label."""

from collections import Counter
from dataclasses import dataclass
from html import escape

from atento.base.errors import UsageError
from atento.metrics.classes import Labels, report
from atento.metrics.score import Score

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
