"""The splits of a recipe: records of its sources joined, parts, folds, those in two, the documents of each query."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import islice
from typing import Any

import numpy as np

from atento.base.errors import DataError, counted
from atento.base.splitmix import permutation
from atento.data.records.reader import Origins, Records, fingerprint
from atento.data.records.values import as_text, characters_of, compared, shortened
from atento.data.store.token_store import TokenStore

HIGHEST_GRADE = 30.0  # grade: gains are 2 to the power of it
_GRADED, _TRIPLES = ("query", "document", "grade"), ("query", "positive", "negative")
Documents = dict[str, tuple[float, int]]  # text -> its grade, and the number of a record that has it


@dataclass(frozen=True)
class Split:
    """One split of a recipe, all its sources joined, as columns of equal length."""

    columns: Mapping[str, list[Any]]
    fingerprint: str
    parts: tuple[Origins, ...] = ()  # the position of the records of each source; empty where it is not known
    rows: Sequence[int] | None = None  # of a part of the records, their numbers in `parts`; None: all
    # the name of each source and the number of its records, in their order; empty: there is one source
    sources: tuple[tuple[str, int], ...] = ()
    tokens: TokenStore | None = None  # the store of the texts' ids, where they are on disk; the columns are then empty

    def __getitem__(self, column: str) -> list[Any]:
        return self.columns[column]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.tokens is None else len(self.tokens)

    def texts(self, names: Sequence[str]) -> Iterator[str]:
        """Yield the texts of the named columns that the split has, record by record; the words of a sentence as one."""
        read = [column for name, column in self.columns.items() if name in names]
        return (as_text(value) for record in zip(*read) for value in record)

    def characters(self) -> dict[str, int]:
        """The number of characters of each column: of strings and words; of numbers and answers, none."""
        if self.tokens is not None:
            return {"text": self.tokens.characters}
        return {name: sum(map(characters_of, column)) for name, column in self.columns.items()}

    def where(self, index: int) -> str:
        """Return file and line of a record, or its number from 1 if they are unknown, for messages."""
        row = index if self.rows is None else self.rows[index]
        for part in self.parts:
            if row < len(part.lines):
                return part.where(row)
            row -= len(part.lines)  # from the start of the next part
        return f"record {index + 1}"

    def taken(self, rows: Sequence[int], sources: tuple[tuple[str, int], ...] = ()) -> "Split":
        """Return the records with these numbers, in this order, which know where they stood."""
        columns = {name: [column[row] for row in rows] for name, column in self.columns.items()}
        positions = rows if self.rows is None else [self.rows[row] for row in rows]
        return Split(columns, fingerprint(*columns.values()), self.parts, positions, sources)


def split_of(parts: Sequence[Records], files: Sequence[int] = ()) -> Split | None:
    """Concatenate the records of several sources; return None if there are none.

    Args:
        parts: the records of each source, or of each file of it.
        files: how many parts each source has; by default one.

    Raises:
        DataError: one has a field that another lacks.
    """
    if not parts:
        return None
    for part in parts[1:]:  # each source is compared with the first
        for having, lacking in ((parts[0], part), (part, parts[0])):  # either may have more
            for name in having.columns:
                if name not in lacking.columns:
                    raise DataError(
                        f"{' / '.join(lacking.origins.names)} has no `{name}`, and "
                        f"{' / '.join(having.origins.names)} has"
                    )
    columns = {name: [value for part in parts for value in part[name]] for name in parts[0].columns}
    digest = sha256("\n".join(part.fingerprint for part in parts).encode()).hexdigest()
    sources, following = [], iter(parts)  # a source takes as many parts as it has files
    for count in files or [1] * len(parts):
        group = list(islice(following, count))
        name = " / ".join(group[0].origins.names) + (f" and {count - 1} more" if count > 1 else "")
        sources.append((name, sum(map(len, group))))
    return Split(columns, digest, tuple(part.origins for part in parts), sources=tuple(sources))


def by_source(split: Split) -> list[tuple[str, Split]]:
    """Return the name and the records of each source."""
    if split.tokens is not None:
        return [
            (name, Split(split.columns, split.fingerprint, tokens=split.tokens.of_source(number)))
            for number, (name, _) in enumerate(split.sources)
        ]
    splits, begin = [], 0
    for name, count in split.sources or (("", len(split)),):
        splits.append((name, replace(split.taken(range(begin, begin + count)), fingerprint=split.fingerprint)))
        begin += count
    return splits


def subset(split: Split, rows: Sequence[int]) -> Split:
    """Return the records with these numbers, which rise, as those that are held out or left."""
    ends = np.cumsum([0, *(count for _, count in split.sources)])
    counts = np.diff(np.searchsorted(np.asarray(rows, dtype=np.int64), ends)).tolist()
    sources = tuple((name, count) for (name, _), count in zip(split.sources, counts))
    return split.taken(rows, sources)


_KEY = 3


def fold_of(
    columns: Mapping[str, list[object]],
    folds: int,
    fold: int,
    seed: int,
    label: str | None,
    where: Callable[[int], str] | None = None,
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
        where: the place of a record, for the message.

    Raises:
        DataError: a label, or the data, has fewer records than there are folds.
    """
    count = len(next(iter(columns.values())))
    labels: Sequence[object] = [""] * count if label is None else columns[label]
    for name, number in sorted(Counter(labels).items()):
        if number < folds:
            place = "" if where is None or label is None else f"{where(labels.index(name))}: "
            subject = "the training data" if label is None else f"{place}label {name!r}"
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
    values = list(dict.fromkeys(columns[group]))  # each value once
    first, second = ({values[row] for row in rows} for rows in divide({group: values}))
    rows = list(enumerate(columns[group]))
    return [row for row, value in rows if value in first], [row for row, value in rows if value in second]


def overlap(train: Iterable[Records], valid: Records) -> int:
    """Count the validation records that are also in the training data, with all fields equal."""
    validation_records = [compared(record) for record in valid]
    repeated = {record for records in train for record in set(validation_records).intersection(map(compared, records))}
    return sum(record in repeated for record in validation_records)


_BLOCK = 25  # neighbouring records are held out together, since those of a book are related
_SEED = 20


def held_out(
    columns: Mapping[str, list[object]], count: int, labels: Sequence[Collection[str]] = ()
) -> tuple[list[int], list[int]]:
    """Return the numbers of the training records and of the held-out ones, both rising.

    At most `count` records and at most a tenth of all are held out (at least one), in blocks of up to 25 neighbours at
    random places. Where each record has one label, the labels have the shares that they have in all records, also in a
    file that is sorted by them. Training records that are equal to a held-out one are dropped. A record whose label no
    training record would have is not held out.

    Args:
        columns: values by name, of equal length.
        count: maximum number of records to hold out.
        labels: the labels of each record; none: the records have no labels.

    Raises:
        DataError: nothing is left to train on or to hold out.
    """
    records = [compared(record) for record in zip(*columns.values())]  # accented letters in one piece
    valid = held_out_rows(len(records), count, labels)
    valid = _of_known_labels(records, valid, labels) if labels else valid
    equal = {records[row] for row in valid}
    train = [row for row, record in enumerate(records) if record not in equal]  # an equal one would be known
    if not train or not valid:
        left, of = "train on" if valid else "hold out (each label needs a training record)", len(records)
        different = len(set(records))
        same = "" if different == of else f" ({different:,} different)" if different > 1 else ", which are all equal"
        raise DataError(
            f"`data.held_out` {count} leaves nothing to {left} of {counted(of, 'training record')}{same}; give more "
            "data, or `data.valid`"
        )
    return train, valid


def held_out_lines(valid: int, total: int, noun: str, asked: int, equal: int) -> Iterator[str]:
    """What a run says of its held-out records: `valid` of `total`, of `asked`; `equal` are equal to one of them."""
    also = f"; {equal} equal to one of them {'are' if equal > 1 else 'is'} not trained on" if equal else ""
    yield f"{valid:,} of {total:,} training {noun} held out for validation{also}"
    if asked > max(1, total // 10):
        yield f"`data.held_out` {asked} holds out at most a tenth; `data.valid` takes records of your own"


def _of_known_labels(
    records: Sequence[tuple[object, ...]], valid: Sequence[int], labels: Sequence[Collection[str]]
) -> list[int]:
    """Return the numbers of held-out records without the first of each label that no other record would teach."""
    held_out_records = {records[row] for row in valid}
    known = {label for row, record in enumerate(records) if record not in held_out_records for label in labels[row]}
    kept: set[tuple[object, ...]] = set()
    for row in valid:
        if not known.issuperset(labels[row]):
            known.update(labels[row])
            kept.add(records[row])
    return [row for row in valid if records[row] not in kept]


def held_out_rows(records: int, count: int, labels: Sequence[Collection[str]] = ()) -> list[int]:
    """Return the numbers of the records to hold out, in order.

    Args:
        records: how many there are.
        count: maximum number to hold out.
        labels: the labels of each record; where each has one, each label has its share.
    """
    size = min(count, max(1, records // 10))
    block = max(1, min(_BLOCK, size // 4))  # records that are held out together
    one_each = [next(iter(own)) for own in labels if len(own) == 1]  # of records with one label
    has_labels = bool(labels) and len(one_each) == records  # else there is no list as long as the data, which are large
    left, chosen = _shares(one_each, size) if has_labels else Counter({"": size}), list[int]()
    for number in permutation(-(-records // block), _SEED).tolist():  # ceil: the last block may be short
        for row in range(number * block, min((number + 1) * block, records)):
            label = one_each[row] if has_labels else ""
            if left[label]:
                left[label] -= 1
                chosen.append(row)
        if len(chosen) == size:
            break
    return sorted(chosen)


def _shares(labels: Sequence[str], size: int) -> Counter[str]:
    """How many of `size` records each label has, in proportion; the largest remainders are rounded up."""
    exact = {label: divmod(size * number, len(labels)) for label, number in Counter(labels).items()}
    shares = Counter({label: whole for label, (whole, _) in exact.items()})
    shares.update(sorted(exact, key=lambda label: -exact[label][1])[: size - shares.total()])  # the largest remainders
    return shares


def qrels_of(split: Split) -> dict[str, Documents]:
    """Return the documents of each query, each once, in the order of the records.

    Of triples, a positive has the grade 1 and a negative 0.
    Raises DataError: records with other fields; a grade out of range; a document of a query with two grades. Names file
    and line.
    """
    queries: dict[str, Documents] = {}
    columns = split.columns
    if set(columns) not in (set(_GRADED), set(_TRIPLES)):
        raise DataError(
            f"{split.where(0)}: a record for ranking has {', '.join(_GRADED)}, or {', '.join(_TRIPLES)}: got "
            f"{', '.join(columns)}"
        )
    if "grade" in columns:
        judged = [[(document, grade)] for document, grade in zip(columns["document"], columns["grade"])]
    else:
        judged = [[(right, 1.0), (wrong, 0.0)] for right, wrong in zip(columns["positive"], columns["negative"])]
    for row, (query, documents) in enumerate(zip(columns["query"], judged)):
        for document, grade in documents:
            if not 0 <= grade <= HIGHEST_GRADE:
                raise DataError(f"{split.where(row)}: the grade must lie in 0 to {HIGHEST_GRADE:g}: got {grade:g}")
            first, at = queries.setdefault(query, {}).setdefault(document, (grade, row))  # of its first record
            if first != grade:
                raise DataError(
                    f"{split.where(row)}: document {shortened(document)!r} of query {shortened(query)!r} has the grade "
                    f"{grade:g}, and {first:g} in {split.where(at)}"
                )
    return queries


def pairs_of(queries: dict[str, Documents]) -> list[tuple[str, str]]:
    """Return query and document of each document."""
    return [(query, document) for query, documents in queries.items() for document in documents]
