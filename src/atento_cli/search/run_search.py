"""Search hyper-parameters: draw trials from a space, train each in a run folder of its own (`atento.search`)."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atento.base.errors import AtentoError, RecipeError, TrainingStopped, UsageError, counted
from atento.base.limits import path_of
from atento.config.reading.dumping import recipe_values, scalar_text
from atento.config.reading.loading import LoadedRecipe, load_recipe
from atento.config.reading.schema import as_node
from atento.storage.lock import RunLock
from atento.training.progress import Reporter, StopRequest
from atento_cli.search.process import TrialWorker, run_trial
from atento_cli.search.result import RungScore, SearchResult, Trial, importance_of
from atento_cli.search.search_folder import (
    differences,
    open_search,
    read_results,
    write_best,
    write_picture,
    write_results,
)
from atento_cli.search.search_strategies import Rung, Values, rungs_of, trials_of
from atento_cli.search.space import Dimension, Range, read_space, size


@dataclass(frozen=True)
class _Plan:
    """What a search does, checked before it begins."""

    recipe: str | Mapping[str, Any]  # as `load_recipe` takes it: a file, a name or a mapping
    overrides: list[str]  # `key=value` texts
    loaded: LoadedRecipe  # the recipe with these, and without the values of a trial
    dimensions: list[Dimension]  # the space
    values: list[Values]  # those of each trial
    refused: dict[int, str]  # number of a trial -> why the recipe refuses its values together
    rungs: list[Rung]  # which share of its steps each trial trains
    settings: dict[str, Any]  # strategy, seed, eta and the requested number of trials

    @property
    def identity(self) -> dict[str, Any]:
        """What must be the same when the search is resumed, as plain data."""
        recipe = {key: value for key, value in recipe_values(self.loaded.recipe).items() if key != "name"}
        space = {dimension.key: dimension.to_dict() for dimension in self.dimensions}
        return {**self.settings, "space": space, "recipe": recipe}


def search(
    recipe: str | Path | Mapping[str, object],
    space: str | Path | Mapping[str, object],
    *,
    trials: int | None = None,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    strategy: str = "random",
    seed: int = 1,
    eta: int = 3,
    out: str | Path | None = None,
    device: str = "auto",
    precision: str | None = None,
    threads: int | None = None,
) -> SearchResult:
    """Search the values of recipe keys; an unfinished search is resumed exactly.

    Each trial is an ordinary run, `out/trial-0001` and so on, trained in a process of its own. A trial that fails is
    recorded, and the search continues.

    Args:
        recipe: a file, the name of a shipped recipe, or a mapping with the keys of a recipe file.
        space: a YAML file, or a mapping: dotted key -> a list of choices, or {"low": ..., "high": ...} with "log",
            "integer" or "step".
        trials: number of trials; with "grid" the maximum, None: all combinations.
        overrides: values that replace the recipe's, as for `atento.train`.
        strategy: "random"; "grid", all combinations in order; or "halving", successive halving (Jamieson & Talwalkar
            2016): random trials train a share of their steps, and the best 1/eta of them go on to eta times as many.
        seed: of the random values. The seed of training is `training.seed` of the recipe.
        eta: of "halving".
        out: the folder of the search; `runs/NAME-search` by default.
        device: "auto", "cpu" or "cuda".
        precision: "auto", "float32", "bfloat16" or "float16"; replaces `training.precision`.
        threads: number of CPU threads.

    Returns:
        The trials with their scores, the best one, and what each key explains.

    Raises:
        RecipeError, UsageError: wrong recipe, space or options, before any work; or the folder holds another search.
        TrainingStopped: a signal stopped the search; the same call resumes it.
        AtentoError: every trial failed.
    """
    plan = _plan(recipe, space, overrides, {"strategy": strategy, "seed": seed, "eta": eta, "trials": trials})
    name = plan.loaded.recipe.name
    folder = Path("runs") / f"{name}-search" if out is None else path_of(out, "out", "a folder")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"the folder of the search {folder} is a file; give another with --out")
    request = {"device": device, "precision": precision, "threads": threads}
    with RunLock(folder, "the folder of the search"), ExitStack() as files:
        resumed = open_search(folder, plan.identity)
        # bytes: the processes of the trials write here too
        log = files.enter_context((folder / "search.log").open("ab"))
        text_log = files.enter_context((folder / "search.log").open("a", encoding="utf-8", newline="\n"))
        reporter = Reporter(0, log=text_log, bar=False)
        stop = files.enter_context(StopRequest())
        _report_plan(plan, folder, resumed, reporter)
        return _Search(plan, folder, request, reporter, files.enter_context(TrialWorker(stop, log))).run()


def _plan(
    recipe: str | Path | Mapping[str, object],
    space: str | Path | Mapping[str, object],
    overrides: Sequence[str] | Mapping[str, object],
    settings: dict[str, Any],
) -> _Plan:
    """Read recipe and space, draw the trials, and check the recipe of each. Does not load torch."""
    if str(recipe) == "-":
        raise UsageError("the recipe of a search must be a file or a name, since each trial reads it: got -")
    if isinstance(overrides, Mapping):
        overrides = [f"{key}={scalar_text(as_node(value, '').bare())}" for key, value in overrides.items()]
    texts = list(overrides)
    loaded = load_recipe(recipe, texts).one_task("atento search")
    if not loaded.recipe.data.valid and not loaded.recipe.data.held_out:
        raise RecipeError(
            f"recipe {loaded.recipe.name} has no data.valid (and no data.held_out): a search compares trials by their "
            "validation scores"
        )
    dimensions = read_space(space)
    rungs_of(settings["strategy"], 1, settings["eta"])  # refuses a wrong eta
    values = trials_of(settings["strategy"], dimensions, settings["trials"], settings["seed"])
    refused = _refused(recipe, texts, dimensions, values)
    plain = recipe if isinstance(recipe, Mapping) else str(recipe)
    rungs = rungs_of(settings["strategy"], len(values), settings["eta"])
    return _Plan(plain, texts, loaded, dimensions, values, refused, rungs, settings)


def _refused(
    recipe: str | Path | Mapping[str, object], texts: list[str], dimensions: list[Dimension], values: list[Values]
) -> dict[int, str]:
    """Return why the recipe refuses the values of a trial, by the number of the trial.
    Raises RecipeError: a value that the recipe refuses alone and in each trial that has it; or every trial is refused.
    """
    refused: dict[int, str] = {}
    accepted: set[tuple[str, str]] = set()
    for number, nodes in enumerate(values, start=1):
        try:
            load_recipe(recipe, texts, searched=nodes.items())
        except RecipeError as error:
            refused[number] = str(error)
        else:
            accepted |= {(key, scalar_text(node.bare())) for key, node in nodes.items()}
    for dimension in dimensions:
        for node in dimension.checked:
            if (dimension.key, scalar_text(node.bare())) not in accepted:  # no trial that was accepted has it
                try:
                    load_recipe(recipe, texts, searched=[(dimension.key, node)])
                except RecipeError as error:  # it is wrong alone
                    if str(error).startswith(node.position):
                        raise
                    value = f"{dimension.key} {scalar_text(node.bare())}"
                    raise RecipeError(f"{node.position}: the recipe refuses {value}: {error}") from None
    if len(refused) == len(values):
        raise RecipeError(f"the recipe refuses every trial; the first: {refused[1]}")
    return refused


def _report_plan(plan: _Plan, folder: Path, resumed: bool, reporter: Reporter) -> None:
    """Report warnings, the number of trials and the rungs."""
    for warning in plan.loaded.warnings:
        reporter.line(f"warning: {warning}")
    strategy, requested = plan.settings["strategy"], plan.settings["trials"]
    combinations, count = size(plan.dimensions), len(plan.values)
    of = "" if combinations is None else f" of {counted(combinations, 'combination')}"
    reporter.line(
        f"{'resuming' if resumed else 'searching'} {folder}: {counted(count, 'trial')}{of} of "
        f"{', '.join(dimension.key for dimension in plan.dimensions)}, strategy {strategy}"
    )
    if requested is not None and requested > count:
        reporter.line(f"the space has {counted(count, 'combination')} only, so --trials {requested} is {count}")
    if len(plan.rungs) > 1:
        parts = [f"{counted(rung.n_trials, 'trial')} to {rung.share} of the steps" for rung in plan.rungs[:-1]]
        reporter.line(f"rungs: {', '.join(parts)}, {counted(plan.rungs[-1].n_trials, 'trial')} to the end")


class _Search:
    """A search under way: its plan, its folder, and its trials."""

    def __init__(
        self, plan: _Plan, folder: Path, request: Mapping[str, object], reporter: Reporter, trainer: TrialWorker
    ) -> None:
        self.plan, self.folder, self.request = plan, folder, request
        self.reporter, self.trainer = reporter, trainer
        trials = [
            Trial(number, {key: node.bare() for key, node in nodes.items()})
            for number, nodes in enumerate(plan.values, start=1)
        ]
        self.trials = read_results(folder, trials)
        self.data_varies = any(dimension.key.startswith("data") for dimension in plan.dimensions)

    def run(self) -> SearchResult:
        """Run the trials rung by rung, then write the result.
        Raises TrainingStopped: a signal. AtentoError: every trial failed.
        """
        for number, reason in self.plan.refused.items():
            trial = self.trials[number - 1]
            if trial.state == "waiting":
                self._fail(trial, reason)
        alive = list(self.trials)
        for level, rung in enumerate(self.plan.rungs):
            if level:  # the best trials go on, in their order; the others are dropped, unless they have finished
                better = sorted(alive, key=lambda trial: ([-value for value in trial.quality], trial.number))
                for trial in better[rung.n_trials :]:
                    trial.state = "finished" if trial.state == "finished" else "dropped"
                alive = sorted(better[: rung.n_trials], key=lambda trial: trial.number)
            for trial in alive:
                if trial.state != "failed" and len(trial.rungs) <= level:  # resumed: it has this rung's score already
                    self._train(trial, rung)
            alive = [trial for trial in alive if trial.state != "failed"]
        return self._finish()

    @property
    def metric(self) -> str | None:
        """Name of the score; None: no trial has one."""
        return next((trial.metric for trial in self.trials if trial.metric is not None), None)

    def _train(self, trial: Trial, rung: Rung) -> None:
        if trial.state == "finished":  # it stopped early at a rung before
            assert trial.score is not None
            trial.rungs.append(RungScore(str(rung.share), trial.step, trial.score))
            return
        if (signal := self.trainer.stop.by) is not None:
            raise TrainingStopped(f"stopped by {signal.name} before {trial.name}; run the same command to resume")
        # refuse a recipe that has changed since the search began, since each trial reads it again
        loaded = load_recipe(self.plan.recipe, self.plan.overrides)
        now = {key: value for key, value in recipe_values(loaded.recipe).items() if key != "name"}
        changed = differences(self.plan.identity, self.plan.identity | {"recipe": now})
        if changed:
            raise UsageError(f"the recipe has changed during the search: {changed[0]}")
        values = ", ".join(f"{key} {scalar_text(value)}" for key, value in trial.values.items())
        share = "" if rung.share == 1 else f", to {rung.share} of the steps"
        self.reporter.line(f"trial {trial.number} of {len(self.trials)}: {values}{share}")
        changes = [f"{key}={scalar_text(value)}" for key, value in trial.values.items()]
        request = {
            **self.request,
            "recipe": self.plan.recipe,
            "overrides": [*self.plan.overrides, *changes],
            "folder": str(self.folder / trial.name),
            "share": str(rung.share),
        }
        error = run_trial(self.trainer, trial, request, data_varies=self.data_varies)
        if error is not None:
            self._fail(trial, error)
            return
        assert trial.score is not None
        trial.rungs.append(RungScore(str(rung.share), trial.step, trial.score))
        write_results(self.folder, self.trials)
        best = max((trial for trial in self.trials if trial.score is not None), key=lambda trial: trial.quality)
        self.reporter.line(
            f"{trial.name}: {trial.metric} {trial.score:.6g} at step {trial.step:,}; best so far {best.name}, "
            f"{best.score:.6g}"
        )

    def _fail(self, trial: Trial, reason: str) -> None:
        trial.state, trial.error, trial.score = "failed", reason, None
        write_results(self.folder, self.trials)
        self.reporter.line(f"warning: {trial.name} failed: {reason}")

    def _finish(self) -> SearchResult:
        write_results(self.folder, self.trials)
        ranges = {dimension.key: isinstance(dimension, Range) for dimension in self.plan.dimensions}
        logs = [dimension.key for dimension in self.plan.dimensions if isinstance(dimension, Range) and dimension.log]
        result = SearchResult(
            self.folder,
            self.plan.settings["strategy"],
            self.metric,
            tuple(self.trials),
            importance_of(self.trials, ranges),
        )
        if result.best is None:
            first = self.trials[0]
            raise AtentoError(f"every trial failed; {first.name}: {first.error}")
        write_best(result)
        write_picture(result, ranges, logs)
        return result
