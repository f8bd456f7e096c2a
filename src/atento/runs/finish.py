"""The end of a run: train, average checkpoints, score the test data, calibrate and compare, write the last event."""

from dataclasses import replace

import torch

from atento.base.errors import DataError, counted
from atento.config.reading.loading import dump_recipe, recipe_values
from atento.config.reading.task_defaults import counted_targets
from atento.config.tables.tasks import TASKS
from atento.metrics.metric_table import quality, signed
from atento.models.load import read_model
from atento.networks import parameter_count
from atento.networks.adapters import without_effect
from atento.runs.baseline_scores import baseline_of, compared
from atento.runs.classifier import classifier_of, fit_classifier
from atento.runs.folder import end_event, scores_on_test, write_environment, write_outputs
from atento.runs.run_identity import with_absolute_paths
from atento.runs.setup import Setup
from atento.storage.atomic_files import write_atomically
from atento.storage.average_weights import average_run
from atento.tasks.calibrating import keep_confidence
from atento.tasks.split_evaluation import confidence_of, evaluation_of, joined_scores, validation_scores
from atento.training.loop import fit
from atento.training.progress import Reporter
from atento.training.run_state import Run
from atento.training.trackers import TrackedRun, Trackers

_CHARACTERS = 6_000_000  # of training records that a simple learner takes seconds for
_CALIBRATED = 200  # validation records that a temperature is fitted to at least
RunResult = tuple[Run, dict[str, float] | None, bool]  # run, test scores, whether it had already finished


def has_more_steps(run: Run) -> bool:
    """Whether the recipe has more steps than the run; a run that stopped early is not extended."""
    return run.progress.step < run.steps and not (run.config.early_stop and run.progress.stale >= run.config.early_stop)


def already_finished(run: Run) -> RunResult:
    """Return a run that has already finished, with the test scores of its last event."""
    end = end_event(run.folder)
    return run, None if end is None else scores_on_test(end), True


def train_and_finish(setup: Setup, run: Run) -> RunResult:
    """Train to the last step and take the steps after it, as above, to the event `end`. Trackers get it all."""
    recipe, run_id = setup.recipe, str(run.identity["run_id"])
    tracked = TrackedRun(run.folder, recipe.name, run_id, run.progress.step, recipe_values(recipe))
    names = recipe.training.report_to if setup.replica.main else ()
    with Trackers(names, tracked, lambda line: run.reporter.line(line)) as trackers:
        run.journal.listener = trackers.log if names else None
        if not run.progress.finished or has_more_steps(run):
            sizes = {"parameters": parameter_count(setup.network), "examples": len(run.batches), "steps": run.steps}
            if setup.replica.main:
                write_atomically(setup.folder / "recipe.yaml", dump_recipe(with_absolute_paths(setup.loaded)))
                write_environment(setup.folder, **sizes)
            log, quiet = setup.reporter.log, not setup.replica.main
            writes = any(head.kind == "reconstruction" for head in setup.config.heads)
            targets = "tokens" if writes else counted_targets(recipe)
            run.reporter = Reporter(run.steps, run.progress.step, log, targets=targets, quiet=quiet)
            classifier = classifier_of(recipe)
            try:
                fit(run) if classifier is None else fit_classifier(run, classifier)
            finally:
                run.reporter.close()
                run.reporter = setup.reporter
            run.updater.release()
        if not run.progress.finished or not setup.replica.main:
            return run, None, False  # paused, or the first process does what is left
        if recipe.training.average > 1:
            _average(setup, run)
        tested = [(part.data.test, part.recipe) for part in setup.parts or [setup] if part.data.test is not None]
        test = None
        if tested:  # by the checkpoint that `atento.load` reads: the best, else the last
            setup.network.load_state_dict(read_model(setup.folder).weights | without_effect(setup.network))
            evaluations = [evaluation_of(setup.network, setup.tokenizer, *one) for one in tested]
            test = joined_scores([(evaluation.scores, part) for evaluation, (_, part) in zip(evaluations, tested)])
            for evaluation in evaluations if recipe.data.folds else ():
                write_outputs(setup.folder, evaluation.outputs, evaluation.gold)
            shown = ", ".join(f"{name} {value:.2f}" for name, value in test.items() if name not in ("loss", "nll"))
            setup.report(f"test: {shown}")
        _calibrate(setup)
        for part in setup.parts or [setup]:
            _compare(part, run, test)
        scores = {f"test_{name}": value for name, value in (test or {}).items()}
        run.journal.append({"event": "end", "step": run.progress.step, **scores})
        return run, test, False


def _calibrate(setup: Setup) -> None:
    """Fit the probabilities of a classifier to its validation data, if these are enough, and keep that in the run."""
    valid = setup.data.valid
    if valid is None or len(valid) < _CALIBRATED or TASKS[setup.recipe.task].outputs not in ("classes", "class sets"):
        return
    files = read_model(setup.folder)
    setup.network.load_state_dict(files.weights | without_effect(setup.network))
    try:
        found = confidence_of(setup.network, setup.tokenizer, valid, setup.recipe)
    except DataError as error:  # of several labels, none is predicted
        setup.report(f"warning: probabilities are not calibrated: {error}")
        return
    keep_confidence(files.path, found.config)
    for line in (found.line(), *(f"warning: {doubt}" for doubt in found.doubts())):
        setup.report(line)


def _compare(setup: Setup, run: Run, test: dict[str, float] | None) -> None:
    """Report the best simple learner beside the final score: of the test data, or of the best validation."""
    recipe, best = setup.recipe, run.progress.best
    decided = {} if best is None else dict(zip(run.deciding, [best, *run.progress.best_ties]))
    scores = test or {name: signed(name.partition("[")[0], value) for name, value in decided.items()}
    name, ends = recipe.deciding[0], f"[{recipe.head}]" if recipe.head else ""
    scores = {name.removesuffix(ends): value for name, value in scores.items() if name.endswith(ends)}
    if not recipe.training.baseline or name not in recipe.metrics or name not in scores:
        return
    split = "valid" if test is None else "test"
    data = replace(setup.data, valid=None) if split == "test" else replace(setup.data, test=None)
    result = baseline_of(recipe, data, most=_CHARACTERS)
    for line in compared(result, split, scores) if result.scores[split] else ():
        setup.report(line)


def _average(setup: Setup, run: Run) -> None:
    """Average the last checkpoints, and score the average on the validation data, if there are any."""
    network, name = setup.network, run.score_name
    valid = [(part.data.valid, part.recipe) for part in setup.parts or [setup] if part.data.valid is not None]

    def score(weights: dict[str, torch.Tensor]) -> tuple[float, ...]:
        """Return the validation scores of other weights; the network's own are restored."""
        # cloned, for the tensors of a state are the network's own
        original = {key: value.clone() for key, value in network.state_dict().items()}
        network.load_state_dict(weights)
        scores = validation_scores(network, setup.tokenizer, *valid[0], others=valid[1:])
        network.load_state_dict(original)
        return quality(scores, run.deciding)

    averaged = average_run(run.folder, setup.recipe.training.average, score=score if valid else None)
    score_text = "" if averaged.score is None else f": {name} {signed(name, averaged.score):.2f}"
    setup.report(f"averaged the last {counted(len(averaged.names), 'checkpoint')}{score_text}")
