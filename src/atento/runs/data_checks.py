"""Records that are read but unfit: other columns, labels that join others or stand alone, nothing to learn from."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from atento.base.errors import DataError, counted
from atento.config.tables.tasks import TASKS
from atento.data.files.source_records import header_hint
from atento.data.records.splits import Split
from atento.data.records.values import alike_labels, joined_labels, several_labels, shared_parts

_SO = "so there is nothing to learn"


def check_labels(names: Sequence[str], labels: Sequence[Sequence[str]], *, sets: bool) -> None:
    """Check that labels tell records apart.

    Args:
        names: the labels of the training data.
        labels: those of each record.
        sets: a record has any number of labels, so that one label, present or absent, is enough.

    Raises DataError: there is no label, or one alone that every record has, or one set of labels.
    """
    if not names:
        raise DataError(f"no record of the training data has a label, {_SO}")
    if len(set(map(frozenset, labels)) if sets else names) == 1:
        what = "label" if len(names) == 1 else "set of labels"
        each = ", which every text has" if sets else ""
        raise DataError(f"the training data has only one {what}, {', '.join(map(repr, names))}{each}, {_SO}")


def without_difference(task: str, splits: Mapping[str, Split | None]) -> Iterator[str]:
    """Yield a warning for each split whose numbers are equal, whose questions have no answer, whose labels are joined.

    Args:
        task: the task of the recipe.
    """
    for name, split in splits.items():
        for field in TASKS[task].fields if split is not None else ():
            values = split.columns.get(field.name, ()) if split is not None else ()
            effect = _SO if name == "train" else "so its scores say little"
            grades = TASKS[task].grouped_by is not None  # training refuses them where they are equal
            if field.kind == "number" and len(values) > 1 and len({*values}) == 1 and not (grades and name == "train"):
                correlations = "" if grades else "; correlations are 0"
                yield f"data.{name}: every `{field.name}` is {values[0]:g}, {effect}{correlations}"
            if field.kind == "spans" and len(values) and not any(values):
                yield f"data.{name}: no question has an answer, {effect}"
            sets = values if field.kind == "classes" and max(map(len, values), default=0) == 1 else ()
            if joined := next((label for labels in sets for label in labels if "," in label or ";" in label), None):
                said = f"data.{name}: no text has two labels, and {joined!r} counts as one"
                yield f"{said}; `separator` of the source is the sign between labels in a cell, such as ','"


def check_columns(task: str, splits: Mapping[str, Split | None], train: Split) -> None:
    """Check that all splits have the columns of the training data. Raises DataError: one has others."""
    only_training = {field.name for field in TASKS[task].fields if field.only_training}
    for name, split in splits.items():
        if TASKS[task].vectors and "pair" not in train.columns:  # texts alone, which pairs evaluate
            continue
        if split is None or split.columns.keys() <= train.columns.keys() <= split.columns.keys() | only_training:
            continue
        fields = [" and ".join(f"`{column}`" for column in part.columns) for part in (split, train)]
        raise DataError(f"`data.{name}` has {fields[0]}, and `data.train` has {fields[1]}")


def check_metrics(task: str, metrics: Sequence[str], splits: Mapping[str, Split | None]) -> None:
    """Check that pairs of texts have scores where a metric compares with scores, and none where it ranks.
    Raises DataError: a split has none, or has some.
    """
    scored = TASKS[task].scored_metrics
    for name, split in splits.items():
        columns = {} if split is None else split.columns
        for metric in metrics if scored and columns else ():
            if (metric in scored) != ("score" in columns):
                is_for = "pairs with scores, and these have none" if metric in scored else "pairs without scores"
                raise DataError(
                    f"data.{name}: the metric {metric} is for {is_for}; leave `metrics` out to choose by the data"
                )


def said_alike(labels: Collection[str]) -> Iterator[str]:
    """Yield a warning of two labels, or two tags, that differ in case or in the form of a number alone."""
    if (alike := alike_labels(labels)) is not None:
        yield "{!r} and {!r} are two labels here; write one form if they mean the same".format(*alike)


def doubtful_labels(train: Split, label: str) -> Iterator[str]:
    """Yield warnings of labels that may be several in one, of two that may be the same, and of those with one example.
    Raises DataError: a label joins others.
    """
    counts = Counter(train[label])
    if (joint := joined_labels(counts)) is not None:
        where, others = train.where(train[label].index(joint[0])), " and ".join(map(repr, joint[1]))
        raise DataError(f"{where}: the label {joint[0]!r} joins {others}, which are labels too; {several_labels()}")
    if (sharing := shared_parts(counts)) is not None:
        one, other = map(repr, sharing)
        yield f"{one} and {other} are two labels here, with nothing in common; {several_labels()}"
    yield from said_alike(counts)
    label_of, own = dict[tuple[object, ...], str](), train[label]
    texts = [train[name] for name in train.columns if name != label]
    both = [row for row, key in enumerate(zip(*texts)) if label_of.setdefault(key, own[row]) != own[row]]
    if both:
        yield f"{counted(len(both), 'text')} stood before with another label; the first: {train.where(both[0])}"
    alone = sorted(name for name, count in counts.items() if count == 1)
    for name in alone[:5]:
        where = train.where(train[label].index(name))
        yield f"label {name!r} has one training example ({where}), from which little is learned{header_hint(where)}"
    if len(alone) > 5:
        yield f"{counted(len(alone) - 5, 'label')} more with one training example each"
