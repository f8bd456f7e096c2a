"""Files with labels, for a model that is scored or fitted: which source they are, and what says how they are read."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from atento.base.errors import UsageError
from atento.config.recipe import READING, SourceConfig
from atento.config.tables.formats import DATASETS, FORMATS, Column, format_of
from atento.config.tables.tasks import TASKS
from atento.data.files.dialect import first_of

Paths = str | Path | Sequence[str | Path]


def source_of(
    data: Paths,
    task: str,
    columns: Mapping[str, Column] | None = None,
    reading: Mapping[str, Any] = MappingProxyType({}),
) -> SourceConfig:
    """Return the source for files of labelled data: one file with columns, or two parallel files.

    Args:
        data: the paths.
        task: the task of the records.
        columns: the column of each field, by name or number, as in a recipe; None: the columns of a table have the
            names of the task's fields in its first line, or their order. An optional field is read if it is named, or
            if the table has exactly one column for each field.
    """
    paths = [str(data)] if isinstance(data, str | Path) else [str(path) for path in data]
    names = [field.name for field in TASKS[task].fields if not field.optional]
    parallel = TASKS[task].records == "pairs"
    if len(paths) == 2 and parallel:
        if columns:
            raise UsageError("`columns` is for one file: parallel files have one text a line")
        return SourceConfig(source=paths[0], target=paths[1])
    if len(paths) != 1:
        files = "one file with two columns, or two parallel files" if parallel else "one file with columns"
        raise UsageError(f"give {files}: got {len(paths)} files")
    if columns:
        unknown = sorted(columns.keys() - {field.name for field in TASKS[task].fields})
        if unknown:
            known = ", ".join(field.name for field in TASKS[task].fields)
            raise UsageError(f"`columns` names fields of {task} ({known}): got {', '.join(unknown)}")
        key = "dataset" if paths[0].endswith(DATASETS) else "file"
        return SourceConfig(**{key: paths[0]}, **columns)  # type: ignore[arg-type]
    if paths[0].endswith(DATASETS):
        return SourceConfig(dataset=paths[0])
    form = format_of(paths[0], reading.get("format"), TASKS[task].fields)
    if form is None or set(names) <= FORMATS[form].columns.keys():  # no format: an error is raised when it is read
        return SourceConfig(file=paths[0])
    first: list[str] = []
    if FORMATS[form].table and Path(paths[0]).expanduser().is_file():  # errors are raised when it is read
        first = first_of(SourceConfig(file=paths[0], **reading_of(paths[0], reading)), form)
    if not FORMATS[form].by_number or set(names) <= set(first):  # keys, or a header line
        names += [field.name for field in TASKS[task].fields if field.optional and field.name in first]
        return SourceConfig(file=paths[0], **{name: name for name in names})  # type: ignore[arg-type]
    if len(first) > len(names) and len(first) < len(TASKS[task].fields):
        fields = ", ".join(field.name for field in TASKS[task].fields)
        raise UsageError(
            f"{paths[0]} has {len(first)} columns: its first line, or `columns`, must name them, of {fields}"
        )
    if len(first) == len(TASKS[task].fields):
        names = [field.name for field in TASKS[task].fields]
    by_order: dict[str, Any] = {name: number for number, name in enumerate(names)}
    return SourceConfig(file=paths[0], **by_order)


def reading_of(file: str, reading: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of `reading` that are for the format of a file.
    Raises UsageError: a key that says nothing of how a file is read.
    """
    if wrong := sorted(reading.keys() - {*READING, "sheet"}):
        raise UsageError(f"`reading` takes {', '.join(READING)}, sheet: got {', '.join(wrong)}")
    cells = {"csv": ("sheet",), "tsv": ("sheet",), "xlsx": ("delimiter", "encoding")}
    form = format_of(file, reading.get("format"), ())
    unfit = cells.get(form or "", ("delimiter", "decimal", "separator", "header", "sheet"))
    unfit = (*unfit, *(() if file else ("format",)))
    plain = {"true": True, "false": False}  # as a command has them
    switches = {name: plain.get(reading[name], reading[name]) for name in ("header", "paragraphs") if name in reading}
    return {name: value for name, value in {**reading, **switches}.items() if name not in unfit}
