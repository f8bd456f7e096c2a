"""Scoring a model on labelled data with its task's metrics and their intervals."""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Unpack

from atento.config.decoding import DecodingOptions
from atento.config.recipe import SourceConfig
from atento.data.memory import Records
from atento.data.sources import Parallel, pairs_in_memory, read_pairs
from atento.errors import CapabilityError, UsageError
from atento.metrics import Score, metric_named
from atento.model import Model, load
from atento.precision import threads as thread_scope

METRICS_OF = {"translation": ("bleu", "chrf", "exact-match"), "summarization": ("rouge",)}
Paths = str | Path | Sequence[str | Path]


def source_of(data: Paths) -> SourceConfig:
    """Two parallel files are one pair; one file has the source in its first column and the target in its second."""
    paths = [str(data)] if isinstance(data, str | Path) else [str(path) for path in data]
    if len(paths) == 2:
        return SourceConfig(source=paths[0], target=paths[1])
    if len(paths) != 1:
        raise UsageError(f"give one file with two columns, or two parallel files: got {len(paths)} files")
    name = paths[0].removesuffix(".gz")
    if name.endswith((".json", ".jsonl")):
        return SourceConfig(file=paths[0], source="source", target="target")
    return SourceConfig(file=paths[0], source=0, target=1)


def task_of(model: Model, task: str | None) -> str:
    """The task a model is scored on: as given, else its own (a text-to-text model's: translation).

    Raises:
        CapabilityError: nothing that is scored here.
    """
    own = str(model.config.get("task"))
    return _known(task or ("translation" if own == "text-to-text" else own))


def _known(task: str) -> str:
    if task not in METRICS_OF:
        raise CapabilityError(f"this version evaluates {' and '.join(METRICS_OF)}: got {task!r}")
    return task


def evaluate(
    model: Model | str | Path,
    data: Paths | SourceConfig | Records,
    task: str | None = None,
    *,
    metrics: str | Sequence[str] | None = None,
    skip_bad: bool = False,
    say: Callable[[str], None] | None = None,
    device: str | None = None,
    precision: str | None = None,
    threads: int | None = None,
    **decoding: Unpack[DecodingOptions],
) -> dict[str, Score]:
    """Write an output for each source and score it against its target; each `Score` has value, settings and interval.

    Args:
        model: a model, or what `load` takes.
        data: a file with two columns or two parallel files, by their paths; or records in memory: pairs (source,
            target), dicts with these keys, or the tuple (sources, references) of two lists.
        task: the model's own if not given (a text-to-text model's: translation).
        metrics: their names, as a list or with commas between them; the usual ones of the task if not given.
        skip_bad: leave out broken records.
        say: is told what was left out (pairs with an empty side, broken records); a Python warning if not given.
        device, precision: for a model that is loaded here. threads: of the processor, for this call.
        decoding: options as in `Model.translate`.

    Raises:
        CapabilityError: no such task here. DataError: names file and line, or the record.
        UsageError: an option that has no meaning here.
    """
    asked = metrics.split(",") if isinstance(metrics, str) else metrics
    given = None if asked is None else {name: metric_named(name) for name in asked}
    if task is not None:
        _known(task)
    if "n_best" in decoding:
        raise UsageError("`n_best` has no part in an evaluation: one output is scored for each source")
    if isinstance(model, Model) and (device or precision):
        raise UsageError("`device` and `precision` are for a model that is loaded here; this one has `.to(...)`")
    pairs = _pairs(data, skip_bad)
    for warning in pairs.warnings():
        if say is None:
            warnings.warn(warning, stacklevel=2)
        else:
            say(f"warning: {warning}")
    with thread_scope(threads):
        if not isinstance(model, Model):
            model = load(model, device or "auto", precision or "float32")
        task = task_of(model, task)
        scorers = given or {name: metric_named(name) for name in METRICS_OF[task]}
        write = model.summarize if task == "summarization" else model.translate
        outputs = write(pairs.source, **decoding)
    return {name: scorer(outputs, pairs.target) for name, scorer in scorers.items()}


def _pairs(data: Paths | SourceConfig | Records, skip_bad: bool) -> Parallel:
    """The pairs of files, if `data` is their paths, else of the records themselves."""
    if isinstance(data, SourceConfig):
        return read_pairs(data, Path(), skip_bad=skip_bad)
    if isinstance(data, str | Path):
        return read_pairs(source_of(data), Path(), skip_bad=skip_bad)
    paths = [one for one in data if isinstance(one, str | Path)] if isinstance(data, list | tuple) else []
    if paths and len(paths) == len(data):  # type: ignore[arg-type]  # a list or tuple
        return read_pairs(source_of(paths), Path(), skip_bad=skip_bad)
    return pairs_in_memory(data, "data", skip_bad=skip_bad)
