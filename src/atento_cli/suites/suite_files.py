"""The files of a row in a data folder, and what stands in them: records to train on and to score, texts to label."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atento.base.errors import DataError
from atento.config.recipe import SourceConfig
from atento.config.tables.task_spec import Field
from atento.data.files.source_lines import open_binary
from atento.data.files.source_records import rows_in
from atento.data.records.reader import read_records
from atento.data.records.splits import Split, split_of
from atento.data.records.values import Converter
from atento_cli.suites.row import Row

HELD_OUT = 2000  # records of the training data that are scored, where a row has no other labelled file


@dataclass(frozen=True)
class RowFiles:
    """The files of a row."""

    row: Row  # the row
    folder: Path  # the data folder; the paths below are relative to it
    train: Path | None  # its training file; None: the row is missing
    # the labelled file of validation; None: records of `train` are held out, or nothing is validated
    valid: Path | None
    scored: Mapping[str, Path | None]  # part -> the labelled file that is scored; None: the held-out records
    on: str  # which split is scored: "test", "dev" or "held out"
    unlabelled: Mapping[str, Path]  # part -> its test file without labels, where it is there


def files_of(row: Row, folder: Path) -> RowFiles:
    """Find the files of a row in a data folder."""
    train = next(filter(None, (located(folder, row.files, name) for name in row.train)), None)
    labelled = [part for part in row.scored if part.valid]
    valid = {part.name: located(folder, row.files, part.valid) for part in labelled}
    test = {part.name: located(folder, part.files or row.files, part.test) for part in row.scored if part.test}
    first = next(filter(None, valid.values()), None)
    if row.labelled_test and all(test.values()):  # scored where nothing is chosen by them
        return RowFiles(row, folder, train, first, test, "test", {})
    unlabelled = {} if row.labelled_test else {name: path for name, path in test.items() if path is not None}
    if first is None:  # a part of the training data is scored
        return RowFiles(row, folder, train, None, {labelled[0].name: None}, "held out", unlabelled)
    return RowFiles(row, folder, train, first, {name: path for name, path in valid.items() if path}, "dev", unlabelled)


def located(folder: Path, patterns: Sequence[str], split: str) -> Path | None:
    """The first file of these patterns below a folder, whatever its case, `.gz` too, relative to it; None: none."""
    for pattern in patterns:
        for ending in ("", ".gz"):
            path = _entry(folder, (pattern.format(split=split) + ending).split("/"))
            if path is not None and path.is_file():
                return path.relative_to(folder)
    return None


def _entry(folder: Path, names: Sequence[str]) -> Path | None:
    """A path below a folder by the names of its folders and its file, whatever their case."""
    if not names:
        return folder
    if not folder.is_dir():
        return None
    entries = sorted(entry for entry in folder.iterdir() if entry.name.lower() == names[0].lower())
    return next(filter(None, (_entry(entry, names[1:]) for entry in entries)), None)


def source(row: Row, path: Path) -> dict[str, Any]:
    """A labelled file of a row as a source of a recipe, relative to the data folder."""
    form = {} if row.format is None else {"format": row.format}
    return {"file": str(path), **form, **row.columns}


def labelled_records(row: Row, path: Path, folder: Path) -> Split:
    """The records of a labelled file of a data folder.
    Raises DataError: names file and line; also for a label that is not one of the row's.
    """
    fields = [field for field in row.spec.fields if not field.optional or field.name in row.columns]
    skip_bad = bool(row.recipe.get("data", {}).get("skip_bad"))
    records = read_records(SourceConfig(**source(row, path)), fields, folder, skip_bad=skip_bad)
    for number, label in enumerate(records.columns.get("label", ())):
        if row.labels and label not in row.labels:
            expected = ", ".join(map(repr, row.labels))
            raise DataError(
                f"{records.where(number)}: label {label!r} is not one of {row.name}'s, which are {expected}"
            )
    for number, score in enumerate(records.columns.get("score", ())):
        if row.range is not None and not row.range[0] <= score <= row.range[1]:
            low, high = row.range
            raise DataError(f"{records.where(number)}: scores of {row.name} lie in {low:g} to {high:g}: got {score:g}")
    split = split_of([records])
    assert split is not None
    return split


def unlabelled_records(row: Row, path: Path, folder: Path) -> tuple[list[str], list[Any]]:
    """The numbers and the texts, or pairs of texts, of a test file without labels, also of records with a blank text.
    Raises DataError: names file and line.
    """
    fields = [Field(name) for name in ("text", "pair") if name in row.columns]
    columns: list[int | str] = [row.index]
    columns += [row.test_columns.get(field.name, row.columns[field.name]) for field in fields]
    name, numbers, texts = str(path), [], []
    with open_binary(folder / path, name) as stream:
        converter = Converter((Field("index"), *fields))
        for item in rows_in("tsv", stream, name, columns, converter):
            if isinstance(item, DataError):
                raise item
            number, *sides = item[1]
            if not number:
                continue  # a blank line
            numbers.append(number)
            texts.append(sides[0] if len(sides) == 1 else tuple(sides))
    if not numbers:
        raise DataError(f"{name}: holds no example")
    return numbers, texts
