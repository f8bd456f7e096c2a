"""Scoring a model on labelled data with its task's metrics and their intervals."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from atento.config.recipe import SourceConfig
from atento.data.sources import read_pairs
from atento.errors import CapabilityError, UsageError
from atento.metrics import Score, metric_named
from atento.model import Model, load

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


def evaluate(
    model: Model | str | Path,
    data: Paths | SourceConfig,
    task: str = "translation",
    *,
    metrics: Sequence[str] = ("bleu", "chrf", "exact-match"),
    skip_bad: bool = False,
    say: Callable[[str], None] | None = None,
    **decoding: Any,
) -> dict[str, Score]:
    """Translate the sources and score against the targets; each `Score` has value, settings and interval.

    What was left out (pairs with an empty side, bad records with `skip_bad`) is counted in a sentence given to `say`.

    Raises:
        CapabilityError: no such task here. DataError: names file and line.
    """
    if task != "translation":
        raise CapabilityError(f"this version evaluates translation: got {task!r}")
    scorers = {name: metric_named(name) for name in metrics}
    source = data if isinstance(data, SourceConfig) else source_of(data)
    pairs = read_pairs(source, Path(), skip_bad=skip_bad)
    if say is not None:
        for warning in pairs.warnings():
            say(f"warning: {warning}")
    model = model if isinstance(model, Model) else load(model)
    outputs = model.translate(pairs.source, **decoding)
    return {name: scorer(outputs, pairs.target) for name, scorer in scorers.items()}
