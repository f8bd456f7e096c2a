"""Scoring a model on labelled data with its task's metrics and their intervals."""

import inspect
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Unpack

from atento.config.decoding import DecodingOptions
from atento.config.formats import FORMATS, columns_of_source, format_of
from atento.config.recipe import SourceConfig
from atento.config.tasks import TASKS, scored
from atento.data.memory import MemoryRecords
from atento.data.records import Records, Split, joined, read_records, records_in_memory
from atento.data.source_lines import open_binary
from atento.data.source_records import columns_of
from atento.errors import AtentoWarning, CapabilityError, UsageError
from atento.metrics import METRICS, Score, metric_named
from atento.model import Model, load
from atento.models.configuration import answering_config
from atento.precision import threads as thread_scope
from atento.tasks.answering import readable_questions
from atento.tasks.evaluation import scores_by_prefix
from atento.tasks.table import VERBS, labels_of, usual_metrics

Paths = str | Path | Sequence[str | Path]


def source_of(data: Paths, task: str) -> SourceConfig:
    """Return the source for files of labelled data: one file with columns, or two parallel files.

    The columns of a table have the names of the task's fields in its first line, or their order. An optional field is
    read if it is named, or if the table has exactly one column for each field.
    """
    paths = [str(data)] if isinstance(data, str | Path) else [str(path) for path in data]
    names = [field.name for field in TASKS[task].fields if not field.optional]
    parallel = TASKS[task].records == "pairs"
    if len(paths) == 2 and parallel:
        return SourceConfig(source=paths[0], target=paths[1])
    if len(paths) != 1:
        files = "one file with two columns, or two parallel files" if parallel else "one file with columns"
        raise UsageError(f"give {files}: got {len(paths)} files")
    form = format_of(paths[0], None, TASKS[task].fields)
    if form is None or set(names) <= FORMATS[form].columns.keys():  # no format: an error is raised when it is read
        return SourceConfig(file=paths[0])
    first: list[str] = []
    if FORMATS[form].table and Path(paths[0]).expanduser().is_file():  # errors are raised when it is read
        with open_binary(Path(paths[0]).expanduser(), paths[0]) as stream:
            first = columns_of(form, stream, paths[0])
    if not FORMATS[form].by_number or set(names) <= set(first):  # keys, or a header line
        names += [field.name for field in TASKS[task].fields if field.optional and field.name in first]
        return SourceConfig(file=paths[0], **{name: name for name in names})  # type: ignore[arg-type]
    if len(first) > len(names) and len(first) < len(TASKS[task].fields):
        fields = ", ".join(field.name for field in TASKS[task].fields)
        raise UsageError(f"{paths[0]} has {len(first)} columns: its first line must name them, of {fields}")
    if len(first) == len(TASKS[task].fields):
        names = [field.name for field in TASKS[task].fields]
    columns: dict[str, Any] = {name: number for number, name in enumerate(names)}
    return SourceConfig(file=paths[0], **columns)


def fields_of(data: Paths, task: str) -> set[str]:
    """Return the fields that `evaluate` reads from files."""
    source, fields = source_of(data, task), TASKS[task].fields
    form = format_of(source.file or "", None, fields)
    return set() if form is None else set(columns_of_source(form, source, fields))


def task_of(model: Model, task: str | None) -> str:
    """Return the task to score a model on: `task`, else its own.

    Raises:
        CapabilityError: the task has no metrics.
    """
    return _known(task or str(model.config.get("task")))


def _known(task: str) -> str:
    if task not in scored():
        raise CapabilityError(f"this version evaluates {', '.join(scored())}: got {task!r}")
    return task


def evaluate(
    model: Model | str | Path,
    data: Paths | SourceConfig | MemoryRecords,
    task: str | None = None,
    *,
    metrics: str | Sequence[str] | None = None,
    language: str | None = None,
    skip_bad: bool = False,
    say: Callable[[str], None] | None = None,
    device: str | None = None,
    precision: str | None = None,
    threads: int | None = None,
    **decoding: Unpack[DecodingOptions],
) -> dict[str, Score]:
    """Score the outputs of a model on labelled data; each `Score` has value, settings and interval.

    Args:
        model: a model, or what `load` takes.
        data: a file with columns, or two parallel files of sources and targets, by their paths; or records in memory:
            tuples (source, target), (text, label), (text, pair, label) or (tokens, tags), dicts with these keys, or a
            tuple of lists.
        task: the model's own if not given.
        metrics: names as a list or separated by commas; the default ones of the task if not given: for tags, entity
            F1, or the accuracy of plain tags such as parts of speech.
        language: of the answers, en or pt: `squad` leaves out its articles. en if not given.
        skip_bad: leave out broken records.
        say: called with each warning about records that were left out; Python warnings if not given.
        device, precision: for a model that is loaded here. threads: number of CPU threads of this call.
        decoding: options as in `Model.translate`.

    Raises:
        CapabilityError: the task has no metrics. DataError: names file and line, or the record.
        UsageError: an option without effect.

    If the model was trained on data with several prefixes, `METRIC[PREFIX]` is the score of the records of one of them.
    """
    requested = metrics.split(",") if isinstance(metrics, str) else metrics
    chosen = None if requested is None else {name: metric_named(name) for name in requested}
    if task is not None:
        _known(task)
    if "n_best" in decoding:
        raise UsageError("`n_best` has no effect in an evaluation: one output is scored for each source")
    if isinstance(model, Model) and (device or precision):
        raise UsageError("`device` and `precision` are for a model that is loaded here; this one has `.to(...)`")
    with thread_scope(threads):
        if not isinstance(model, Model):
            model = load(model, device or "auto", precision or "float32")
        task = task_of(model, task)
    records = _records(data, task, skip_bad)
    for warning in records.warnings():
        if say is None:
            warnings.warn(warning, stacklevel=2)
        else:
            say(f"warning: {warning}")
    spec = TASKS[task]
    names = list(chosen or usual_metrics(spec, labels_of(model.network.config), records.columns))
    for name in names:
        if METRICS[name].outputs != spec.outputs:
            raise UsageError(f"metric {name} does not score {task}, whose outputs are {spec.outputs}")
    if language is not None and not any(_options(name, language) for name in names):
        raise UsageError(f"`language` has no effect on {', '.join(names)}")
    split = joined([records])
    assert split is not None and spec.verb is not None
    if skip_bad:
        split = _readable(model, split, say)
    verb = VERBS[spec.verb]
    with thread_scope(threads):
        outputs = verb.call(model, split, decoding)
    gold = verb.gold(split)
    scores = {name: metric_named(name)(outputs, gold, **_options(name, language)) for name in names}
    prefixes = [prefix for prefix in model.config.get("prefixes", []) if isinstance(prefix, str)]
    return scores | scores_by_prefix(outputs, gold, names, split, prefixes)


def _readable(model: Model, split: Split, say: Callable[[str], None] | None) -> Split:
    """Return a split without the questions that are too long for the model, after a warning that counts them."""
    if "question" not in split.columns or model.tokenizer is None:
        return split
    answering = answering_config(model.config, model.path or Path())
    template, longest = model.config.get("template"), model.trained_length
    readable, warning = readable_questions(split, model.tokenizer, template, longest, answering.stride)
    if warning and say is None:
        warnings.warn(warning, AtentoWarning, stacklevel=3)
    elif warning and say is not None:
        say(f"warning: {warning}")
    return readable


def _options(metric: str, language: str | None) -> dict[str, str]:
    """Return the options of a metric: the language, for those that depend on it."""
    depends = "language" in inspect.signature(METRICS[metric].score).parameters
    return {"language": language} if depends and language is not None else {}


def _records(data: Paths | SourceConfig | MemoryRecords, task: str, skip_bad: bool) -> Records:
    """Return the records of files, if `data` is their paths, else the records in memory."""
    fields = TASKS[task].fields
    if isinstance(data, SourceConfig):
        return read_records(data, fields, skip_bad=skip_bad)
    if isinstance(data, str | Path):
        return read_records(source_of(data, task), fields, skip_bad=skip_bad)
    paths = [item for item in data if isinstance(item, str | Path)] if isinstance(data, list | tuple) else []
    if paths and isinstance(data, list | tuple) and len(paths) == len(data):
        return read_records(source_of(paths, task), fields, skip_bad=skip_bad)
    return records_in_memory(data, fields, "data", skip_bad=skip_bad)
