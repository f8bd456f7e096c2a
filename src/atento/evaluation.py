"""Scoring a model on labelled data with its task's metrics and their intervals."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from atento.config.recipe import SourceConfig
from atento.data.sources import read_pairs
from atento.errors import CapabilityError, UsageError
from atento.metrics import Score, metric_named
from atento.model import Model, load

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
    data: Paths | SourceConfig,
    task: str | None = None,
    *,
    metrics: Sequence[str] | None = None,
    skip_bad: bool = False,
    say: Callable[[str], None] | None = None,
    **decoding: Any,
) -> dict[str, Score]:
    """Write an output for each source and score it against its target; each `Score` has value, settings and interval.

    `task` is the model's own if not given (a text-to-text model's: translation), `metrics` the usual ones of it. What
    was left out (pairs with an empty side, bad records with `skip_bad`) is counted in a sentence given to `say`.

    Raises:
        CapabilityError: no such task here. DataError: names file and line.
    """
    given = None if metrics is None else {name: metric_named(name) for name in metrics}
    if task is not None:
        _known(task)
    source = data if isinstance(data, SourceConfig) else source_of(data)
    pairs = read_pairs(source, Path(), skip_bad=skip_bad)
    if say is not None:
        for warning in pairs.warnings():
            say(f"warning: {warning}")
    model = model if isinstance(model, Model) else load(model)
    task = task_of(model, task)
    scorers = given or {name: metric_named(name) for name in METRICS_OF[task]}
    write = model.summarize if task == "summarization" else model.translate
    outputs = write(pairs.source, **decoding)
    return {name: scorer(outputs, pairs.target) for name, scorer in scorers.items()}
