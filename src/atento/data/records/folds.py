"""The folds of cross-validation: which records a fold is tested on; a function of the labels and a seed."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from atento.data.batches.shuffle import permutation
from atento.errors import DataError, counted

_KEY = 3


def fold_of(
    columns: Mapping[str, list[object]], folds: int, fold: int, seed: int, label: str | None
) -> tuple[list[int], list[int]]:
    """Return the numbers of the records that a fold trains on and of those that it is tested on, both rising.

    The records are shuffled by the seed and dealt to the folds in turn. With a label they are dealt label by label
    (stratified), so that each label has as many records in one fold as in another, or one more.

    Args:
        columns: values by name, of equal length.
        folds: number of folds.
        fold: number of this fold, from 1.
        seed: of the shuffle.
        label: name of the column to stratify by; None: there is none.

    Raises:
        DataError: a label, or the data, has fewer records than there are folds.
    """
    count = len(next(iter(columns.values())))
    labels: Sequence[object] = [""] * count if label is None else columns[label]
    for name, number in sorted(Counter(labels).items()):
        if number < folds:
            subject = "the training data" if label is None else f"label {name!r}"
            raise DataError(f"{subject} has {counted(number, 'example')}, fewer than the {folds} folds")
    # the sort is stable: the records of a label stay shuffled
    shuffled = sorted(permutation(count, seed, _KEY).tolist(), key=lambda row: str(labels[row]))
    tested = set(shuffled[fold - 1 :: folds])  # from label to label without a break, so that folds are of one size
    return [row for row in range(count) if row not in tested], sorted(tested)


Divided = tuple[list[int], list[int]]


def by_group(
    columns: Mapping[str, list[object]], group: str | None, divide: Callable[[Mapping[str, list[object]]], Divided]
) -> Divided:
    """Return two parts of the records as `divide` makes them, so that equal values of a column are in one part.

    Args:
        columns: values by name, of equal length.
        group: name of that column, whose different values are divided; None: records are.
        divide: the numbers of records of each part.
    """
    if group is None:
        return divide(columns)
    values = list(dict.fromkeys(columns[group]))
    first, second = ({values[row] for row in rows} for rows in divide({group: values}))
    rows = list(enumerate(columns[group]))
    return [row for row, value in rows if value in first], [row for row, value in rows if value in second]
