"""The form of a source of data in a recipe: which keys it may have, by the records that the task reads."""

from collections.abc import Iterable

from atento.config.recipe import COLUMNS, SourceConfig
from atento.config.tables.formats import (
    FORMATS,
    LABELLINGS,
    columns_of_source,
    endings_for,
    format_of,
    holds,
    labellings_for,
    rule_of_endings,
)
from atento.config.tables.task_spec import Field
from atento.config.tables.tasks import TASKS

_FORMS = {
    "pairs": "give `source` and `target` paths, or `file` with `source` and `target` columns, or `world` with the name "
    "of a split",
    "texts": "give `file` (one text per line, or with `text`, its column), or `world` with the name of a split",
    "examples": "give `file` and the column of each field: {}{}{}",
}
_TABLES = tuple(ending for form in FORMATS.values() if form.table for ending in form.endings)
_WORLD = "is a split of the micro-world"
_LANGUAGES = ("pt", "en")  # of the micro-world


def forms(task: str) -> str:
    """Return how to write a source for this task, for messages."""
    fields = TASKS[task].fields
    own = [ending for ending in endings_for(fields) if ending not in _TABLES]
    return _FORMS[TASKS[task].records].format(
        ", ".join(f"`{field.name}`" for field in fields if not field.optional),
        f" (or a file that ends in {' or '.join(own)})" if own else "",
        ", or `world` and `labels`" if labellings_for(fields) else "",
    )


def source_problem(task: str, source: SourceConfig) -> tuple[str, str] | None:
    """Return the key at fault and the message for a source of this task, or None if the source has one valid form."""
    return (
        _memory_problem(source)
        or _dataset_problem(source)
        or _records_problem(task, source)
        or _reading_problem(task, source)
    )


def _reading_problem(task: str, source: SourceConfig) -> tuple[str, str] | None:
    """As `source_problem`, for keys that say how a file is read and have no effect on this one."""
    files = source.memory is None and source.dataset is None and source.world is None
    form = format_of(source.file, source.format, TASKS[task].fields) if files and source.file else None
    for key, forms_read, what in (
        ("delimiter", ("tsv", "csv"), "of .csv and .tsv files"),
        ("decimal", ("tsv", "csv", "xlsx"), "of numbers in .csv, .tsv and .xlsx files"),
        ("header", ("tsv", "csv", "xlsx"), "of .csv, .tsv and .xlsx files"),
        ("sheet", ("xlsx",), "of .xlsx files"),
    ):
        if getattr(source, key) is not None and form not in forms_read:
            return key, f"has a `{key}`, which is {what}: got {getattr(source, key)!r}"
    if source.encoding is not None and (not files or form == "xlsx"):
        return "encoding", f"has an `encoding`, which is of text files: got {source.encoding!r}"
    return None


def _records_problem(task: str, source: SourceConfig) -> tuple[str, str] | None:
    """Return the key at fault and the message for a source of this task, or None."""
    spec = TASKS[task]
    if source.labels is not None and (source.world is None or spec.records != "examples"):
        if source.world is None:
            return "labels", "has `labels`, which are of the micro-world and need `world`"
        return "labels", f"has `labels`, and this task reads {spec.records} without labels: {forms(task)}"
    if spec.records == "examples" and source.world is not None and source.memory is None and source.dataset is None:
        return _labelled_problem(task, source)
    for key in COLUMNS:
        if key not in spec.columns and getattr(source, key) is not None and spec.records == "examples":
            return key, f"has a `{key}`, and this task reads {', '.join(spec.columns)}: {forms(task)}"
        if key not in ("source", "target", "text", *spec.columns) and getattr(source, key) is not None:
            return key, f"has a `{key}`, and this task reads {spec.records}: {forms(task)}"
    if source.memory is not None or source.dataset is not None:
        return None
    if spec.records == "pairs":
        return _pairs_problem(source)
    return _text_problem(source) if spec.records == "texts" else _columns_problem(task, source)


def _labelled_problem(task: str, source: SourceConfig) -> tuple[str, str] | None:
    """As `source_problem`, for a split of the micro-world with gold labels."""
    fitting = labellings_for(TASKS[task].fields)
    choices = f"use `labels: {'`, `'.join(fitting)}`" if fitting else forms(task)
    if source.labels is None:
        return "world", f"is a split of the micro-world without labels, and this task reads {_listed(task)}: {choices}"
    if source.labels not in fitting:
        theirs = f"has the labels {source.labels}, which are of records with {', '.join(LABELLINGS[source.labels])}"
        return "labels", f"{theirs}, and this task reads {_listed(task)}: {choices}"
    others = ("file", "paragraphs", *(column for column in COLUMNS if column != "text"))
    if combined := _combined(source, _WORLD, "world", others):
        return combined
    if source.labels == "question" and source.world == "structures":
        return "labels", "is the split structures, which has no questions: use another split or other labels"
    return _language_problem(source)


def _combined(source: SourceConfig, what: str, own: str, others: Iterable[str]) -> tuple[str, str] | None:
    """As `source_problem`, for the first of `others` that the source has beside its `own` key."""
    for key in others:
        if (value := getattr(source, key)) is not None and value is not False:
            return key, f"{what}, so `{key}` cannot be combined with `{own}`: got {value!r}"
    return None


def _listed(task: str) -> str:
    return ", ".join(TASKS[task].columns)


def _language_problem(source: SourceConfig) -> tuple[str, str] | None:
    if source.text not in (None, *_LANGUAGES):
        return "text", f"is a split of the micro-world, so `text` must be pt or en: got {source.text!r}"
    return None


def _columns_problem(task: str, source: SourceConfig) -> tuple[str, str] | None:
    """As `source_problem`, for a task with one file with a column per field."""
    if not source.file:
        return "", f"names no data: {forms(task)}"
    if source.paragraphs:
        return "paragraphs", "is a file with columns: `paragraphs` joins the lines of a text file"
    fields = TASKS[task].fields
    kind = format_of(source.file, source.format, fields)
    required = [field.name for field in fields if not field.optional]
    if kind is None or not holds(kind, fields):
        if source.format is not None:
            return "format", f"is {kind}, which has no `{required[-1]}`: {forms(task)}"
        return "file", f"{rule_of_endings(source.file, fields)}: `file` is {source.file!r}"
    form, columns = FORMATS[kind], columns_of_source(kind, source, fields)
    for name, column in columns.items():
        if column is None:
            return "", f"is one file with columns, so `{name}` is missing"
    if form.any_field and len({isinstance(column, int) for column in columns.values()}) > 1:
        key = next(iter(columns))
        return key, f"must name all columns by number (no header) or all by name (a header): got {columns}"
    for name, column in columns.items():
        if isinstance(column, int) and not form.by_number:
            return name, f"is in the format {kind}, whose columns have names: `{name}` is {column}"
        if isinstance(column, str) and not form.by_name:
            return name, f"is in the format {kind}, whose columns have numbers: `{name}` is {column!r}"
        if isinstance(column, int) and column < 0 and not form.from_end:
            return name, f"must count its columns from 0: `{name}` is {column}"
        if list(columns.values()).count(column) > 1:
            return name, f"must have a column for each field: {column!r} appears twice"
    return None


def _memory_problem(source: SourceConfig) -> tuple[str, str] | None:
    """As `source_problem`, for a source that names records in memory and something else."""
    if source.memory is None:
        return None
    others = ("world", "labels", "file", "dataset", "source", "target", "text")
    unnamed = None if source.memory else ("memory", "must name the records: `memory` is ''")
    return _combined(source, "names records in memory", "memory", others) or unnamed


def _dataset_problem(source: SourceConfig) -> tuple[str, str] | None:
    """As `source_problem`, for a data set of the library `datasets`."""
    if source.dataset is None:
        return None if source.split is None else ("split", "has a `split`, which needs `dataset`")
    if combined := _combined(source, "is a data set", "dataset", ("world", "labels", "file", "format")):
        return combined
    for key in COLUMNS:
        if isinstance(column := getattr(source, key), int):
            return key, f"is a data set, whose columns have names: `{key}` is {column}"
    return None if source.dataset else ("dataset", "must name a folder or a data set: `dataset` is ''")


def _pairs_problem(source: SourceConfig) -> tuple[str, str] | None:
    """Return the key at fault and the message, or None if the source has exactly one form."""
    columns = {"source": source.source, "target": source.target}
    if source.paragraphs:
        return "paragraphs", "has `paragraphs`, and line N of one side must correspond to line N of the other"
    if source.text is not None:
        return "text", f"has a `text`, and this task reads pairs: {_FORMS['pairs']}"
    if source.world is not None:
        return _combined(source, _WORLD, "world", ("file", *columns))
    missing = [key for key, value in columns.items() if value is None]
    if source.file is None and len(missing) == 2:
        return "", f"names no data: {_FORMS['pairs']}"
    if missing:
        kind = "is two parallel files" if source.file is None else "is one file with columns"
        return "", f"{kind}, so `{missing[0]}` is missing"
    for key, value in columns.items():
        if source.file is None and not isinstance(value, str):
            return key, f"is two parallel files, so `{key}` must be a path: got {value!r} (a column needs `file`)"
        if isinstance(value, int) and value < 0:
            return key, f"must count its columns from 0: `{key}` is {value}"
        if value == "":
            return key, f"must name a path or a column: `{key}` is ''"
    if source.file == "":
        return "file", "must name a path: `file` is ''"
    if source.file is not None and source.source == source.target:
        return "target", f"must have two columns: `source` and `target` are both {source.target!r}"
    if source.file is not None and isinstance(source.source, int) != isinstance(source.target, int):
        values = f"{source.source!r} and {source.target!r}"
        return "target", f"must name both columns by number (no header) or both by name (a header): got {values}"
    return None


def _text_problem(source: SourceConfig) -> tuple[str, str] | None:
    """As `source_problem`, for a task that reads texts."""
    for key in ("source", "target"):
        if getattr(source, key) is not None:
            return key, f"has a `{key}`, and this task reads texts: {_FORMS['texts']}"
    kind = format_of(source.file or "", source.format, (Field("text"),))
    table = kind is not None and FORMATS[kind].table
    if source.documents != "lines" and (source.paragraphs or source.world is not None or table):
        return "documents", f"has `documents: {source.documents}`, which is for text files without `paragraphs`"
    if source.paragraphs and (source.world is not None or table):
        data = "the micro-world" if source.world is not None else "a file with columns"
        return "paragraphs", f"is {data}: `paragraphs` joins the lines of a text file"
    if source.world is not None:
        return _combined(source, _WORLD, "world", ("file",)) or _language_problem(source)
    if not source.file:
        return "", f"names no data: {_FORMS['texts']}"
    if not table and kind != "text":
        return "format", f"is {kind}, and this task reads texts: {_FORMS['texts']}"
    if table and source.text is None:
        return "", "is one file with columns, so `text` is missing"
    if not table and source.text is not None:
        return "text", f"has one text per line, so it has no column `text`: got {source.text!r}"
    if isinstance(source.text, int) and source.text < 0:
        return "text", f"must count its columns from 0: `text` is {source.text}"
    return None
