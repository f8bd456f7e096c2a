"""Cross-validation: a recipe trained on all folds of its training data but one, for each fold in turn."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from atento.base.errors import UsageError
from atento.base.limits import path_of, read_plain_text
from atento.config.reading.loading import load_recipe
from atento.config.tables.tasks import TASKS
from atento.data.records.memory import MemoryRecords, by_split
from atento.metrics import METRICS, Score
from atento.runs.folder import OUTPUTS
from atento.runs.train import TrainedRun, train
from atento.storage.atomic_files import write_atomically
from atento.tasks.split_evaluation import metric_scores

_LABELLED = ("classes", "class sets", "numbers", "tags")


@dataclass(frozen=True)
class CrossValidation:
    """The result of `cross_validate`."""

    folder: Path  # holds the runs `fold-1` to `fold-N` and the summary `folds.json`
    runs: tuple[TrainedRun, ...]  # the run of each fold
    scores: Mapping[str, tuple[float, ...]]  # the score of each fold by metric
    pooled: Mapping[str, Score]  # the score of the outputs of all folds together, with its interval, by metric

    def to_dict(self) -> dict[str, Any]:
        """Return folder and scores as plain data: of each fold, their mean and standard deviation, and pooled."""
        metrics = {
            name: {
                "folds": list(values),
                "mean": mean(values),
                "standard_deviation": stdev(values),
                "pooled": self.pooled[name].value,
                "interval": list(self.pooled[name].interval()),
            }
            for name, values in self.scores.items()
        }
        return {"folder": str(self.folder), "folds": len(self.runs), "metrics": metrics}

    def __str__(self) -> str:
        """A line for each metric."""
        lines = []
        for name, values in self.scores.items():
            pooled = self.pooled[name]
            digits, (low, high) = pooled.digits, pooled.interval()
            lines.append(
                f"{name}: mean {mean(values):.{digits}f}, standard deviation {stdev(values):.{digits}f} over "
                f"{len(values)} folds ({', '.join(f'{value:.{digits}f}' for value in values)}); pooled "
                f"{pooled.value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"
            )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def cross_validate(
    recipe: str | Path | Mapping[str, object],
    overrides: Sequence[str] | Mapping[str, object] = (),
    *,
    folds: int = 5,
    data: MemoryRecords | Mapping[str, MemoryRecords] | None = None,
    out: str | Path | None = None,
    **options: Any,
) -> CrossValidation:
    """Train a recipe once for each fold of its training data, and score each run on the fold that it did not train on.

    The folds are dealt by `training.seed`, label by label where each text has one label. The validation data of the
    recipe, if it has any, stay as they are: they choose the best checkpoint of each run. The call can be repeated after
    a stop: finished folds are not trained again.

    Args:
        recipe: as in `atento.train`, without `data.test`.
        overrides: as in `atento.train`.
        folds: number of folds, at least 2.
        data: as in `atento.train`.
        out: the folder of the runs `fold-1` to `fold-N`; `runs/NAME` by default.
        options: `force`, `device`, `precision`, `seed` and `threads` of `atento.train`.

    Raises UsageError: fewer than 2 folds, a recipe with test data, or a task without labels. DataError: a label has
    fewer examples than there are folds; and what `atento.train` raises.
    """
    if folds < 2:
        raise UsageError(f"`folds` must be at least 2: got {folds}")
    changes = dict(overrides) if isinstance(overrides, Mapping) else list(overrides)
    loaded = load_recipe(recipe, changes, memory=by_split(data)).one_task("--folds").recipe
    if loaded.data.test:
        raise UsageError("each fold is tested on the records that it did not train on: take `data.test` out")
    if TASKS[loaded.task].outputs not in _LABELLED or not loaded.metrics:
        raise UsageError(f"folds are for labelled data with a metric: got task {loaded.task}")
    folder = Path("runs") / loaded.name if out is None else path_of(out, "out", "a folder")
    if (folder / "run.json").exists():  # a run of the same recipe, not of its folds
        raise UsageError(f"{folder} holds a run; give another folder for the folds with --out")
    runs = []
    for fold in range(1, folds + 1):
        keys = {"data.folds": folds, "data.fold": fold}
        with_fold = (
            changes | keys if isinstance(changes, dict) else [*changes, *(f"{key}={n}" for key, n in keys.items())]
        )
        runs.append(train(recipe, with_fold, data=data, out=folder / f"fold-{fold}", **options))
    # of all folds together: each record is scored once
    records = [json.loads(line) for run in runs for line in read_plain_text(run.folder / OUTPUTS).splitlines()]
    outputs, gold = ([record[name] for record in records] for name in ("output", "right"))
    tests = [run.test or {} for run in runs]
    names = [name for name in tests[0] if name in METRICS]
    scores = {name: tuple(test[name] for test in tests) for name in names}
    result = CrossValidation(folder, tuple(runs), scores, metric_scores(outputs, gold, names))
    write_atomically(folder / "folds.json", json.dumps(result.to_dict(), ensure_ascii=False, indent=2) + "\n")
    return result
