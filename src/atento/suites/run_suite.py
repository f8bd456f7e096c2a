"""Fine-tune a model on every task of a suite and score it (`atento.glue`)."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from atento.errors import DataError, UsageError, counted
from atento.limits import path_of
from atento.runs.run_record import read_run
from atento.runs.train import train
from atento.storage.whole_file import write_whole
from atento.suites.row import Row
from atento.suites.row_recipe import Overrides, Plan, planned
from atento.suites.scores import SuiteResult, TaskResult, result_of
from atento.suites.submission import Outputs, Predictor, labelled_outputs, unlabelled_outputs, write_submission
from atento.suites.suite_files import RowFiles, files_of
from atento.suites.suite_table import rows_named, suite_named

RESULTS = "results.json"
_FIRST_SEED = 1  # whose run folder has the name of the task alone


def glue(
    data: str | Path,
    model: str | Path,
    overrides: Overrides = (),
    *,
    table: str = "glue",
    tasks: str | Sequence[str] | None = None,
    seeds: Sequence[int] = (1,),
    out: str | Path | None = None,
    force: bool = False,
    device: str = "auto",
    precision: str | None = None,
    threads: int | None = None,
    say: Callable[[str], None] | None = None,
) -> SuiteResult:
    """Fine-tune a model on each task of a table, and score it; finished runs are not trained again.

    All files are read and checked before the first run. Each run is an ordinary run folder, `OUT/TASK`, or
    `OUT/TASK-seed-N` for another seed than 1. `OUT/submission` gets the predictions for test files without labels, of
    the seed with the best score, and `OUT/results.json` the scores.

    Args:
        data: the folder with a folder for each task, as published.
        model: a run folder, a model folder or a hub name.
        overrides: changes of every recipe, as for `atento.train`: {"training.steps": 100}.
        table: "glue", or "pt" for the Portuguese sets.
        tasks: names of tasks, as a list or with commas; None: all that are there.
        seeds: of training; scores are means over them.
        out: folder of the runs; `runs/glue-MODEL` or `runs/glue-pt-MODEL` by default.
        force: move runs that are there aside.
        device: as for `atento.train`.
        precision: as for `atento.train`.
        threads: as for `atento.train`.
        say: called with a line before each run.

    Raises:
        UsageError, DataError, RecipeError: before any long work.
        TrainingStopped: a signal stopped training; the same call resumes it.
    """
    suite = suite_named(table)
    rows = rows_named(suite, tasks)
    numbers = tuple(seeds)
    if not numbers or len(set(numbers)) < len(numbers) or any(not isinstance(n, int) or n < 0 for n in numbers):
        raise UsageError(f"`seeds` must be different whole numbers of 0 or more, at least one: got {list(numbers)}")
    files, missing = _found(rows, path_of(data, "data", "a folder"), tasks is not None)
    path = Path(model).expanduser()
    name = (path.resolve() if path.exists() else path).name
    default = Path("runs") / f"glue-{'' if suite.name == 'glue' else f'{suite.name}-'}{name}"
    target = default if out is None else path_of(out, "out", "a folder")
    plans = [planned(of_row, model, overrides) for of_row in files]
    results = []
    submission: list[Path] = []
    for plan in plans:
        runs, labelled, unlabelled = {}, {}, {}
        for seed in numbers:
            name = plan.row.name if seed == _FIRST_SEED else f"{plan.row.name}-seed-{seed}"
            if say is not None:
                say(f"{name}: {plan.row.about}; scored on {plan.files.on}")
            run = train(
                plan.recipe,
                overrides,
                out=target / name,
                force=force,
                device=device,
                precision=precision,
                seed=seed,
                threads=threads,
            )
            runs[seed] = run.folder
            predictor = Predictor(run, device, threads=threads)
            labelled[seed] = labelled_outputs(predictor, plan)
            unlabelled[seed] = unlabelled_outputs(predictor, plan)
        result = _scored(plan, runs, labelled)
        results.append(result)
        best = unlabelled[max(numbers, key=result.of_seed)]  # the test files are labelled by one seed
        submission += [write_submission(target, part, plan.row, one.gold, one.outputs) for part, one in best.items()]
    suite_result = SuiteResult(suite, target, numbers, tuple(results), missing, tuple(submission))
    write_whole(target / RESULTS, json.dumps(suite_result.to_dict(), ensure_ascii=False, indent=2) + "\n")
    return suite_result


def _scored(plan: Plan, runs: Mapping[int, Path], outputs: Mapping[int, Mapping[str, Outputs]]) -> TaskResult:
    """The scores of a task from the outputs of each seed."""
    results = [
        result_of(
            part,
            measure.label,
            measure.scale,
            {seed: measure.score(of_seed[part].outputs, of_seed[part].gold) for seed, of_seed in outputs.items()},
        )
        for part in plan.files.scored
        for measure in plan.row.measures
    ]
    seconds = {seed: read_run(folder).seconds for seed, folder in runs.items()}
    return TaskResult(plan.row, plan.files.on, tuple(results), seconds, runs)


def _found(rows: Sequence[Row], folder: Path, requested: bool) -> tuple[list[RowFiles], dict[str, str]]:
    """The files of the rows that are in a folder, and for each other row the file that is missing.
    Raises UsageError: no such folder. DataError: none of the rows is there, or not all of those that were requested.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; it must have a folder for each task, such as {_expected(rows[0])}")
    files = [files_of(row, folder) for row in rows]
    missing = {of_row.row.name: _expected(of_row.row) for of_row in files if of_row.train is None}
    if missing and (requested or len(missing) == len(rows)):  # asked for by name, or nothing at all is there
        name, file = next(iter(missing.items()))
        more = f", nor files of {counted(len(missing) - 1, 'more task')}" if len(missing) > 1 else ""
        swapped = "; it is a model, and the data come before the model" if (folder / "config.json").is_file() else ""
        raise DataError(f"{folder} has no {file} for the task {name}{more}{swapped}")
    return [of_row for of_row in files if of_row.train is not None], missing


def _expected(row: Row) -> str:
    return row.files[0].format(split=row.train[0])
