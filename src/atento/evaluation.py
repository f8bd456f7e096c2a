"""Scoring a model on labelled data with its task's metrics and their intervals."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeGuard, Unpack

from atento.base.errors import AtentoWarning, CapabilityError, DataError, UsageError, counted, listed
from atento.base.precision import threads as thread_scope
from atento.config.recipe import READING, SourceConfig
from atento.config.tables.formats import DATASETS, FORMATS, Column, format_of
from atento.config.tables.task_spec import Field
from atento.config.tables.tasks import TASKS
from atento.config.tables.tasks import scored as scored_tasks
from atento.data.files.dialect import first_of
from atento.data.files.hub import opened
from atento.data.files.source_lines import iter_lines, open_binary
from atento.data.files.source_records import header_hint
from atento.data.files.translation_units import fitting
from atento.data.objectives.sequence_to_sequence import within_positions
from atento.data.records.labelled_data import Paths, reading_of, source_of
from atento.data.records.memory import MemoryRecords
from atento.data.records.reader import Records, read_records, records_in_memory
from atento.data.records.splits import Split, split_of
from atento.data.records.values import as_written
from atento.metrics import Score, metric_named
from atento.metrics.label_counts import class_name
from atento.metrics.metric_table import row_named
from atento.model import Model, load
from atento.models.model_folder import AnsweringConfig, section_of
from atento.tasks.calibrating import Confidence, fit_confidence
from atento.tasks.question_answering import readable_questions
from atento.tasks.split_evaluation import metric_options, scored, usual_metrics
from atento.tasks.task_model import check_flags, for_head, labels_of
from atento.tasks.translation_languages import EvaluationOptions


def columns_learned(
    model: Model, data: Paths, task: str, reading: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Column] | None:
    """Return the columns that the recipe of the model named, if this one file has them and does not name the fields.

    So a file laid out as the training data is read as these were. None: as `source_of` says.
    """
    learned = model.config.get("columns") if task == model.config.get("task") else None
    paths = [data] if isinstance(data, str | Path) else list(data)
    fields, path = TASKS[task].fields, Path(paths[0]).expanduser()
    if not isinstance(learned, dict) or len(paths) != 1 or not path.is_file():
        return None
    form = None if path.suffix in DATASETS else format_of(str(path), reading.get("format"), fields)
    numbers = [column for column in learned.values() if isinstance(column, int)]
    by_number = form is not None and FORMATS[form].by_number
    if form is not None and FORMATS[form].from_end:  # words and tags, whose columns have no names
        return dict(learned) if len(numbers) == len(learned) else None
    if path.suffix in DATASETS:
        first = opened(SourceConfig(dataset=str(path)), Path()).column_names
    elif form is not None and FORMATS[form].table:
        first = first_of(SourceConfig(file=str(path), **reading_of(str(path), reading)), form)
    else:
        return None
    if {field.name for field in fields if not field.optional} <= set(first):
        return None
    if numbers:
        return dict(learned) if by_number and len(numbers) == len(learned) and max(numbers) < len(first) else None
    if form is not None and FORMATS[form].languages:
        return dict(learned) if all(fitting(str(one), first) for one in learned.values()) else None
    names = [as_written(column, first) for column in learned.values()]
    keys = {name if by_number or name in first else name.split(".")[0] for name in names}
    return dict(learned) if keys <= set(first) else None


def task_of(model: Model | None, task: str | None) -> str:
    """Return the task to score a model on: `task`, else its own; None: a task alone is checked.
    Raises CapabilityError: the task has no metrics.
    """
    task = task or str(None if model is None else model.config.get("task"))
    if task not in scored_tasks():
        texts = task in TASKS and TASKS[task].records == "texts"
        hint = "; `atento perplexity MODEL FILE` measures it on text" if texts else ""
        raise CapabilityError(f"this version evaluates {', '.join(scored_tasks())}: got {task!r}{hint}")
    return task


def evaluate(
    model: Model | str | Path,
    data: Paths | SourceConfig | MemoryRecords,
    task: str | None = None,
    *,
    metrics: str | Sequence[str | None] | None = None,
    columns: Mapping[str, Column] | None = None,
    language: str | None = None,
    skip_bad: bool | None = None,
    reading: Mapping[str, Any] | None = None,
    say: Callable[[str], None] | None = None,
    device: str | None = None,
    precision: str | None = None,
    threads: int | None = None,
    **decoding: Unpack[EvaluationOptions],
) -> dict[str, Score]:
    """Score the outputs of a model on labelled data; each `Score` has value, settings and interval.

    Args:
        model: a model, or what `load` takes.
        data: a file with columns, or parallel files, by their paths: of sources, of targets, and of more targets, which
            are then several references; or records in memory:
            tuples (source, target), (text, label), (text, pair, label) or (tokens, tags), dicts with these keys, or a
            tuple of lists.
        task: the model's own if not given.
        metrics: names as a list or separated by commas; the default ones of the task if not given, or in the place of
            None in a list: for tags, entity F1, or the accuracy of plain tags such as parts of speech.
        columns: of one file, the column of each field by name or number, as in a recipe. If not given: the names of the
            fields in its first line; else those of the recipe that the model was trained by, where the file has them;
            else their order.
        language: of the answers, en or pt: `squad` leaves out its articles. en if not given.
        skip_bad: leave out broken records; as in training if not given.
        reading: how a file is read, by keys of a source: `format`, `separator`, `delimiter`, `decimal`, `encoding`,
            `paragraphs`, `documents`, `sheet`. Keys that are not given are as in the training data; {}: none of them.
        say: called with each warning about records that were left out; Python warnings if not given.
        device: of a model that is loaded here.
        precision: of a model that is loaded here.
        threads: number of CPU threads of this call.
        decoding: options as in `Model.translate`, but those of terms; and `head`, the name of one of several heads.

    Raises:
        CapabilityError: the task has no metrics, or the model no head of it. DataError: names file and line, or record.
        UsageError: an option without effect.

    If the model was trained on data with several prefixes, `METRIC[PREFIX]` is the score of the records of one of them.
    """
    requested = metrics.split(",") if isinstance(metrics, str) else (metrics or [None])
    for name in filter(None, requested):
        metric_named(str(name))
    if task is not None:
        task_of(None, task)
    if "n_best" in decoding:
        raise UsageError("`n_best` has no effect in an evaluation: one output is scored for each source")
    if isinstance(model, Model) and bool(device or precision):
        raise UsageError("`device` and `precision` are for a model that is loaded here; this one has `.to(...)`")
    with thread_scope(threads):
        if not isinstance(model, Model):
            model = load(model, device or "auto", precision or "float32")
        model = for_head(model, decoding.pop("head", None), None if task is None else TASKS[task].verb)
        task = task_of(model, task)
        if TASKS[task].verb in ("classify", "tag"):
            getattr(model, str(TASKS[task].verb))([])  # refuses a model without the head, before labels are compared
    skip_bad, reading = _chosen_reading(model, data, task, skip_bad, reading, say)
    columns = _chosen_columns(model, data, task, columns, reading, say)
    files, more = _references(data, task)
    fields = TASKS[task].fields if model.whole is None else TASKS[task].partly_labelled
    records = _labelled_records(files, task, fields, skip_bad, columns, reading)
    labels = labels_of(model.network.config)
    _tell(records.warnings(), say)
    _refuse_unknown_labels(records, task, labels)
    usual = usual_metrics(TASKS[task], labels, records.columns)
    names = list(dict.fromkeys(name for given in requested for name in (usual if given is None else [given])))
    # a metric does not score the outputs of the task, or the language has no effect
    outputs = TASKS[task].outputs
    for name in names:
        if not row_named(name).scores(outputs):
            raise UsageError(f"metric {name} does not score {task}, whose outputs are {outputs}")
    if language is not None and not any(metric_options(name, language) for name in names):
        raise UsageError(f"`language` has no effect on {', '.join(names)}")
    split = split_of([records])
    assert split is not None
    split = _readable(model, split, say, questions=skip_bad, pairs=not more)  # more references are read by their lines
    lines = [_lines_of(records, name, reading) for name in more]
    with thread_scope(threads):
        return scored(model, task, split, names, decoding, more=lines, language=language)[0]


def calibrate(
    model: Model,
    data: Paths | SourceConfig | MemoryRecords,
    *,
    fit: bool = True,
    columns: Mapping[str, Column] | None = None,
    skip_bad: bool | None = None,
    reading: Mapping[str, Any] | None = None,
    say: Callable[[str], None] | None = None,
) -> Confidence:
    """Fit the probabilities of a loaded classifier to labelled data that it was not trained on; it has them then.

    Args:
        model: a classifier.
        data, columns, skip_bad, reading, say: as in `evaluate`.
        fit: false: the probabilities are measured as they are, and the model stays as it is.

    Raises CapabilityError: the model gives no labels. DataError: names file and line.
    """
    check_flags(fit=fit, skip_bad=skip_bad)
    if fit and model.whole is not None:
        raise CapabilityError("what is fitted is kept with a model of one head: `atento convert --head NAME` makes one")
    model.classify([])  # a model of another task is refused
    task = task_of(model, None)
    skip_bad, reading = _chosen_reading(model, data, task, skip_bad, reading, say)
    columns = _chosen_columns(model, data, task, columns, reading, say)
    right = _references(data, task)[0]
    split = split_of([_labelled_records(right, task, TASKS[task].fields, skip_bad, columns, reading)])
    assert split is not None
    found = fit_confidence(model, split, None if fit else model.confidence.temperature)
    _tell(found.doubts(), say)
    if fit:
        model.config["confidence"] = asdict(found.config)
    return found


def _are_paths(data: Paths | SourceConfig | MemoryRecords) -> TypeGuard[Paths]:
    """Whether the data are files, by their paths."""
    if isinstance(data, list | tuple):
        return len(data) > 0 and all(isinstance(item, str | Path) for item in data)
    return isinstance(data, str | Path)


def _labelled_records(
    data: Paths | SourceConfig | MemoryRecords,
    task: str,
    fields: Sequence[Field],
    skip_bad: bool,
    columns: Mapping[str, Column] | None,
    reading: Mapping[str, Any],
) -> Records:
    """Return the records of files, if `data` is their paths, else the records in memory."""
    if isinstance(data, SourceConfig):
        return read_records(data, fields, skip_bad=skip_bad)
    if _are_paths(data):
        source = source_of(data, task, columns, reading)
        return read_records(replace(source, **reading_of(source.file or "", reading)), fields, skip_bad=skip_bad)
    assert not isinstance(data, str | Path)
    return records_in_memory(data, fields, "data", skip_bad=skip_bad)


def _refuse_unknown_labels(records: Records, task: str, known: set[str]) -> None:
    """Raises DataError: right labels that the model does not have, so that it cannot predict them."""
    known = set(map(class_name, known))
    for field in TASKS[task].fields:
        if field.kind not in ("class", "classes") or field.name not in records.columns or not known:
            continue
        sets = [[value] if field.kind == "class" else value for value in records[field.name]]
        rows = [row for row, labels in enumerate(sets) if not known >= set(labels)]
        if rows:
            label = next(label for label in sets[rows[0]] if label not in known)
            where, also = records.where(rows[0]), f", the first of {len(rows):,} such records" if rows[1:] else ""
            labels = listed(label, sorted(known), what="the model's labels")
            raise DataError(f"{where}: unknown label {label!r}{also}{labels}{header_hint(where)}")


def _chosen_columns(
    model: Model,
    data: Paths | SourceConfig | MemoryRecords,
    task: str,
    columns: Mapping[str, Column] | None,
    reading: Mapping[str, Any],
    say: Callable[[str], None] | None,
) -> Mapping[str, Column] | None:
    """Return the columns of a file: those of the call, else those of the recipe; None: `source_of` chooses."""
    if not _are_paths(data):
        if columns is not None:
            raise UsageError("`columns` is for a file: records in memory have the names of the fields")
        return None
    if columns is None and (columns := columns_learned(model, data, task, reading)) is not None and say is not None:
        say("columns as in training: " + ", ".join(f"{name} {column!r}" for name, column in columns.items()))
    return columns


def _chosen_reading(
    model: Model,
    data: Paths | SourceConfig | MemoryRecords,
    task: str,
    skip_bad: bool | None,
    reading: Mapping[str, Any] | None,
    say: Callable[[str], None] | None,
) -> tuple[bool, Mapping[str, object]]:
    """Return whether broken records are left out, and how files are read: as the call says, else as in training."""
    check_flags(skip_bad=skip_bad)
    of_model = model.config.get("reading") if task == model.config.get("task") else None
    learned: Mapping[str, Any] = of_model if isinstance(of_model, dict) else {}
    if (form := (reading or {}).get("format", "tsv")) not in FORMATS:
        raise UsageError(f"`format` must be {', '.join(FORMATS)}: got {form!r}")
    stays = reading is None or len(reading) > 0
    kept = {name: learned[name] for name in READING if stays and name in learned and name not in (reading or {})}
    path = str(data if isinstance(data, str | Path) else data[0]) if _are_paths(data) else ""
    if path and (path.endswith(DATASETS) or format_of(path, None, ()) not in (None, "tsv")):  # it says its format
        kept.pop("format", None)
    here = reading_of(path, kept) if path else {}
    if here and say is not None:
        say("read as in training: " + ", ".join(f"{name} {value!r}" for name, value in here.items()))
    return bool(learned.get("skip_bad")) if skip_bad is None else skip_bad, kept | dict(reading or {})


def _tell(sentences: Sequence[str], say: Callable[[str], None] | None) -> None:
    """Say warnings, or warn of them as Python does."""
    for sentence in sentences:
        if say is None:
            warnings.warn(sentence, AtentoWarning, stacklevel=4)
        else:
            say(f"warning: {sentence}")


def _references(data: Any, task: str) -> tuple[Any, list[str]]:
    """Return the files of sources and of targets, and those of more references."""
    if _are_paths(data) and not isinstance(data, str | Path) and len(data) > 2 and TASKS[task].records == "pairs":
        return list(data)[:2], [str(name) for name in data[2:]]
    return data, []


def _lines_of(records: Records, name: str, reading: Mapping[str, Any]) -> list[str]:
    """Return the lines of a file of references that stand where these records stand in theirs.
    Raises DataError: it is shorter.
    """
    with open_binary(Path(name).expanduser(), name, encoding=reading.get("encoding")) as stream:
        lines = list(iter_lines(stream, name))
    last = max(records.origins.lines)
    if len(lines) < last:
        raise DataError(
            f"{name}: has {counted(len(lines), 'line')}, and {records.where(len(records) - 1)} needs line {last}"
        )
    return [lines[line - 1] for line in records.origins.lines]


def _readable(model: Model, split: Split, say: Callable[[str], None] | None, *, questions: bool, pairs: bool) -> Split:
    """Return a split without the questions or pairs that are too long for the model, after a warning that counts them.

    Questions, and pairs of sources and targets, are left out where `questions` and `pairs` say so.
    """
    tokenizer, network = model.tokenizer, model.network.config
    if tokenizer is None:
        return split
    limited = pairs and network.position_limit is not None
    readable, warning = within_positions(split, network, tokenizer) if limited else (split, None)
    if questions and "question" in split.columns:
        stride = section_of(AnsweringConfig, model.config, model.path or Path()).stride
        template, longest = model.config.get("template"), model.trained_length
        readable, warning = readable_questions(split, tokenizer, template, network, longest, stride)
    _tell([warning] if warning else [], say)
    return readable
