"""`atento baseline`: simple learners on the splits of a recipe, with its metrics and their intervals."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

from atento.base.errors import MissingPartError, RecipeError
from atento.base.splitmix import permutation
from atento.config.reading.loading import LoadedRecipe, load_recipe
from atento.config.recipe import Recipe
from atento.config.tables.tasks import TASKS
from atento.data.records.memory import MemoryRecords, by_split
from atento.metrics import Score
from atento.metrics.metric_table import quality, signed
from atento.runs.baseline_learners import learners_of
from atento.runs.prepare import Data, read_data
from atento.runs.task_heads import training_labels
from atento.tasks.learned_metrics import load_learned
from atento.tasks.split_evaluation import metric_scores, prefixes_of, scores_by_prefix, sources_of, usual_metrics
from atento.tasks.verb_table import VERBS

Scores = Mapping[str, Score]


@dataclass(frozen=True)
class Baseline:
    """The result of `baseline`."""

    task: str  # of the recipe
    scores: Mapping[str, Mapping[str, Scores]]  # split ("valid", "test") -> learner -> metric -> score
    missing: str  # why learners were left out; empty: none was
    seconds: float  # what it took to fit and to score

    def best(self, split: str) -> tuple[str, Scores]:
        """The learner with the best score in the first metric, of equal ones in the next, and its scores."""
        learners = self.scores[split]
        values = {name: {metric: score.value for metric, score in of.items()} for name, of in learners.items()}
        name = max(learners, key=lambda name: quality(values[name], [*values[name]]))
        return name, learners[name]

    def to_dict(self) -> dict[str, object]:
        """Plain data."""
        scores = {
            split: {
                learner: {
                    name: {"value": score.value, "interval": list(score.interval()), "settings": score.settings}
                    for name, score in of_learner.items()
                }
                for learner, of_learner in learners.items()
            }
            for split, learners in self.scores.items()
        }
        return {"task": self.task, "scores": scores, "missing": self.missing, "seconds": self.seconds}

    def __str__(self) -> str:
        """A line for each split, learner and metric."""
        return "\n".join(
            f"{split}: {learner}: {name} {with_interval(score)}"
            for split, learners in self.scores.items()
            for learner, of_learner in learners.items()
            for name, score in of_learner.items()
        )

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def baseline(
    recipe: str | Path | Mapping[str, object],
    overrides: Sequence[str] | Mapping[str, object] = (),
    *,
    data: MemoryRecords | Mapping[str, MemoryRecords] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Baseline:
    """Fit the simple learners of a recipe's task to its training data, and score them on its validation and test data.

    Args:
        recipe: as in `atento.train`.
        overrides: as in `atento.train`.
        data: as in `atento.train`.
        say: called with each warning of the recipe and the data.

    Raises RecipeError: the task has no baseline, or the recipe neither validation nor test data. DataError: names file
    and line. MissingPartError: every learner of the task needs scikit-learn, which is not installed.
    """
    loaded = load_recipe(recipe, overrides, memory=(memory := by_split(data))).one_task("atento baseline")
    spec = TASKS[loaded.recipe.task]
    if not learners_of(spec.outputs, ()):
        having = ", ".join(name for name, other in TASKS.items() if learners_of(other.outputs, ()))
        raise RecipeError(
            f"{loaded.origins['task']}: task {loaded.recipe.task} has no simple learner to compare with; these have: "
            f"{having}"
        )
    for warning in loaded.warnings:
        say(f"warning: {warning}")
    read = read_data(loaded.recipe, loaded.folder, say, memory)
    if read.valid is None and read.test is None:
        raise RecipeError(
            f"{loaded.origins['task']}: the recipe has no data to score on: give data.valid, data.test or data.held_out"
        )
    result = baseline_of(with_usual_metrics(loaded, read).recipe, read)
    if result.missing and not any(result.scores.values()):
        raise MissingPartError(result.missing)
    return result


def baseline_of(recipe: Recipe, data: Data, most: int | None = None) -> Baseline:
    """Fit and score the learners of a recipe whose data are read; those without their library are left out.

    Args:
        recipe: with metrics.
        most: characters of training records; of more, a part is drawn by the recipe's seed.
    """
    started, spec, prefixes = time.monotonic(), TASKS[recipe.task], prefixes_of(recipe)
    train, missing = data.train, ""
    if most is not None and (characters := sum(train.characters().values())) > most:
        rows = permutation(len(train), recipe.training.seed)[: max(1, int(len(train) * most / characters))]
        train = train.taken(sorted(rows.tolist()))
    splits = {name: split for name in ("valid", "test") if (split := getattr(data, name)) is not None}
    scores: dict[str, dict[str, Scores]] = {name: {} for name in splits}
    for learner in learners_of(spec.outputs, prefixes):
        if not learner.applies(train):
            continue
        try:
            predict = learner.fit(train)
        except MissingPartError as error:
            missing = f"{learner.name} is left out: {error}"
            continue
        for name, split in splits.items():
            outputs, gold = predict(split), VERBS[str(spec.verb)].gold(split)
            by_prefix = scores_by_prefix(outputs, gold, recipe.metrics, split, prefixes)
            all_scores = metric_scores(outputs, gold, recipe.metrics, sources=sources_of(split, prefixes))
            scores[name][learner.name] = all_scores | by_prefix
    return Baseline(recipe.task, scores, missing, time.monotonic() - started)


def with_usual_metrics(loaded: LoadedRecipe, data: Data) -> LoadedRecipe:
    """Choose the metrics by the tags of the training data and the scores of any, where the recipe names none.

    The models of learned metrics are loaded here, before anything is computed.
    """
    recipe, spec = loaded.recipe, TASKS[loaded.recipe.task]
    load_learned(recipe.deciding)
    if not (spec.plain_metrics or spec.scored_metrics) or not loaded.origins["metrics"].startswith("task "):
        return loaded
    columns = {name for split in (data.train, data.valid, data.test) if split is not None for name in split.columns}
    metrics = usual_metrics(spec, training_labels(recipe, data.train), columns)
    return replace(loaded, recipe=replace(recipe, metrics=metrics))


def compared(result: Baseline, split: str, scores: Mapping[str, float]) -> list[str]:
    """The best simple learner beside the final scores of a model, in a line; and a warning if the model is no better.

    Args:
        split: what the model was scored on.
        scores: those of the model by metric.
    """
    learner, of_learner = result.best(split)
    metric, own = next(iter(of_learner.items()))
    lines = [
        f"baseline on {split}: {metric} {with_interval(own)} ({learner}), the model {scores[metric]:.{own.digits}f}"
    ]
    if signed(metric, scores[metric]) <= signed(metric, own.value):
        lines.append(f"warning: the model does not beat the baseline, {learner}; `atento baseline` shows its scores")
    return [*lines, *([f"a stronger baseline, {result.missing}"] if result.missing else [])]


def with_interval(score: Score) -> str:
    """The value of a score and its 95 % interval."""
    low, high = score.interval()
    return f"{score.value:.{score.digits}f} [{low:.{score.digits}f}, {high:.{score.digits}f}]"
