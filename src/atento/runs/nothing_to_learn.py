"""Training data that teach nothing: no label or one alone, numbers that are all equal, questions without answers."""

from collections.abc import Iterator, Mapping, Sequence

from atento.config.tables.tasks import TASKS
from atento.data.records.reader import Split
from atento.errors import DataError

_SO = "so there is nothing to learn"


def check_labels(names: Sequence[str], labels: Sequence[Sequence[str]], *, sets: bool) -> None:
    """Check that labels tell records apart.

    Args:
        names: the labels of the training data.
        labels: those of each record.
        sets: a record has any number of labels, so that one label, present or absent, is enough.

    Raises:
        DataError: there is no label, or one alone that every record has.
    """
    if not names:
        raise DataError(f"no record of the training data has a label, {_SO}")
    if len(names) == 1 and (not sets or all(labels)):
        each = ", which every text has" if sets else ""
        raise DataError(f"the training data has only one label, {names[0]!r}{each}, {_SO}")


def without_difference(task: str, splits: Mapping[str, Split | None]) -> Iterator[str]:
    """Yield a warning for each split whose numbers are all equal, or whose questions all have no answer.

    Args:
        task: the task of the recipe.
        splits: the splits by name.
    """
    for name, split in splits.items():
        for field in TASKS[task].fields if split is not None else ():
            values = split.columns.get(field.name, ()) if split is not None else ()
            effect = _SO if name == "train" else "so its scores say little"
            if field.kind == "number" and len(values) > 1 and all(value == values[0] for value in values):
                yield f"data.{name}: every `{field.name}` is {values[0]:g}, {effect}; correlations are 0"
            if field.kind == "spans" and len(values) and not any(values):
                yield f"data.{name}: no question has an answer, {effect}"
