"""Fine-tune a model on every task of a suite (`atento.glue`): the recipe of each row, its outputs and its score."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from atento.base.errors import DataError, UsageError, counted
from atento.base.limits import path_of
from atento.base.precision import threads as thread_scope
from atento.config.reading.loading import load_recipe
from atento.config.reading.sizes_by_data import FITTED
from atento.data.records.reader import fingerprint
from atento.data.records.splits import Split
from atento.model import Model, load
from atento.runs.prepare import read_data
from atento.runs.run_record import read_object, read_run
from atento.runs.train import TrainedRun, train
from atento.storage.atomic_files import write_atomically
from atento.tasks.verb_table import VERBS, Verb
from atento_cli.suites.row import Row
from atento_cli.suites.scores import SuiteResult, TaskResult, result_of
from atento_cli.suites.suite_files import HELD_OUT, RowFiles, files_of, labelled_records, source, unlabelled_records
from atento_cli.suites.suite_table import rows_named, suite_named

EPOCHS = 3
MAX_LEN = 128  # tokens of a text or a pair
_WARMUP = 0.1  # share of the updates
_TRAINING = {"learning_rate": 5e-5, "schedule": "linear", "checkpoint_every": 500, "keep": 1}
_AT_THE_END = 10**9  # validations only after the last update: no checkpoint is chosen by the data that are scored

Overrides = Sequence[str] | Mapping[str, object]


@dataclass(frozen=True)
class Plan:
    """How a row is trained and scored."""

    files: RowFiles  # its files, which have been read and checked
    recipe: Mapping[str, Any]  # the recipe, without the user's changes
    overrides: Overrides  # the user's changes

    @property
    def row(self) -> Row:
        """The row."""
        return self.files.row

    def split(self, part: str) -> Split:
        """The labelled records that a part is scored on."""
        path = self.files.scored[part]
        if path is not None:
            return labelled_records(self.row, path, self.files.folder)
        loaded = load_recipe(self.recipe, self.overrides)
        valid = read_data(loaded.recipe, loaded.folder, lambda _: None).valid
        if valid is None:
            raise DataError(f"{self.row.name} has no dev file, and `data.held_out` 0 holds out no training records")
        return valid


def planned(files: RowFiles, model: str | Path, overrides: Overrides) -> Plan:
    """Read and check all files of a row, and write its recipe.

    Args:
        files: with a training file.
        model: the model to start from.
        overrides: changes of the recipe, as for `atento.train`.

    Raises DataError, RecipeError: a file is not in the published layout, or a change is not valid. UsageError: a change
    is of what the data and the model of the command decide.
    """
    row = files.row
    assert files.train is not None
    train = labelled_records(row, files.train, files.folder)
    recipe = _recipe(files, files.train, model)
    for path in dict.fromkeys(path for path in (files.valid, *files.scored.values()) if path is not None):
        labelled_records(row, path, files.folder)
    for path in files.unlabelled.values():
        unlabelled_records(row, path, files.folder)
    # what `batch_tokens` counts: words of tagged sentences, else examples
    targets = sum(map(len, train["tokens"])) if "tokens" in train.columns else len(train)
    loaded = load_recipe(recipe, overrides)
    # a change is of the task, its files or the model, so the table would be of something else
    own = load_recipe(recipe, []).recipe
    assert own.init is not None
    kept = {
        "init.model": (own.init.model, None if loaded.recipe.init is None else loaded.recipe.init.model),
        "task": (own.task, loaded.recipe.task),
        "data.train": (own.data.train, loaded.recipe.data.train),
        "data.valid": (own.data.valid, loaded.recipe.data.valid),
    }
    for key, (given, other) in kept.items():
        if other != given:
            raise UsageError(
                f"`{key}` follows from the DATA and MODEL of the command, and cannot be changed beside them"
            )
    training, steps = loaded.recipe.training, float(loaded.recipe.training.steps)
    if training.epochs is not None or loaded.origins["training.steps"] in ("default", FITTED):
        epochs = recipe["training"]["epochs"] = training.epochs or EPOCHS
        steps = epochs * targets / training.batch_tokens
    recipe["training"]["warmup"] = max(1, round(_WARMUP * steps))
    return Plan(files, recipe, overrides)


def _recipe(files: RowFiles, train: Path, model: str | Path) -> dict[str, Any]:
    """The recipe of a row, without the length of training."""
    row, training = files.row, dict(_TRAINING)
    path = Path(model).expanduser()
    data: dict[str, object] = {
        "folder": str(files.folder.absolute()),
        "train": source(row, train),
        **row.recipe.get("data", {}),
    }
    if "text" in row.columns:
        data["max_len"] = MAX_LEN
    recipe = {
        "task": row.task,
        "name": row.name,
        "init": {"model": str(path.absolute()) if path.exists() else str(model)},
        "data": data,
        "training": training,
    }
    if files.valid is not None:
        data["valid"] = source(row, files.valid)
    elif files.on == "held out":
        data["held_out"] = HELD_OUT
    if "valid" in data or "held_out" in data:
        training["validate_every"] = _AT_THE_END
        recipe["metrics"] = [row.measures[0].metric]
    return recipe


FOLDER = "outputs"


@dataclass(frozen=True)
class Outputs:
    """What a model gives for the records of a part; `gold` is what is right, or the numbers of unlabelled records."""

    outputs: list[Any]
    gold: list[Any]


@dataclass
class Predictor:
    """The model of a finished run, which is loaded when an output is not in the run folder yet."""

    run: TrainedRun
    device: str = "auto"
    precision: str = "float32"
    threads: int | None = None
    model: Model | None = None

    def outputs(self, name: str, data: str, compute: Callable[[Model], list[object]]) -> list[Any]:
        """The outputs for data with this fingerprint: from the file of an earlier call, or computed and written."""
        path = self.run.folder / FOLDER / f"{name}.json"
        key = {"run": str(read_object(self.run.folder / "run.json").get("run_id")), "step": self.run.step, "data": data}
        written = read_object(path)
        if {name: written.get(name) for name in key} == key:
            return list(written["outputs"])
        with thread_scope(self.threads):
            self.model = self.model or load(self.run.folder, device=self.device, precision=self.precision)
            outputs = compute(self.model)
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, json.dumps(key | {"outputs": outputs}, ensure_ascii=False) + "\n")
        return outputs


def labelled_outputs(predictor: Predictor, plan: Plan) -> dict[str, Outputs]:
    """The outputs for each part that is scored."""
    verb = VERBS[str(plan.row.spec.verb)]
    results = {}
    for part in plan.files.scored:
        split = plan.split(part)
        outputs = predictor.outputs(part, split.fingerprint, partial(_of_split, verb, split))
        results[part] = Outputs(outputs, list(verb.gold(split)))
    return results


def unlabelled_outputs(predictor: Predictor, plan: Plan) -> dict[str, Outputs]:
    """The outputs for each test file without labels, with the numbers of its records."""
    results = {}
    for part, path in plan.files.unlabelled.items():
        numbers, texts = unlabelled_records(plan.row, path, plan.files.folder)
        data = fingerprint(numbers, [text if isinstance(text, str) else "\t".join(text) for text in texts])
        compute = partial(_UNLABELLED[str(plan.row.spec.outputs)], texts)
        results[part] = Outputs(predictor.outputs(f"{part}-test", data, compute), numbers)
    return results


def _of_split(verb: Verb, split: Split, model: Model) -> list[object]:
    return list(verb.call(model, split, {}))


_UNLABELLED: Mapping[str, Callable[[list[Any], Model], list[object]]] = {
    "classes": lambda texts, model: [label.name for label in model.classify(texts)],
    "numbers": lambda pairs, model: list(model.similarity(*([pair[side] for pair in pairs] for side in (0, 1)))),
}


def write_submission(folder: Path, part: str, row: Row, numbers: Sequence[str], outputs: Sequence[Any]) -> Path:
    """Write `PART.tsv` for GLUE's site: a header, then the number of each record and its label, or a score."""
    lines = ["index\tprediction"]
    for number, output in zip(numbers, outputs, strict=True):
        low, high = row.range or (output, output)  # of a score
        lines.append(f"{number}\t{output if isinstance(output, str) else f'{min(max(output, low), high):.3f}'}")
    path = folder / "submission" / f"{part}.tsv"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, "\n".join(lines) + "\n")
    return path


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
    write_atomically(target / RESULTS, json.dumps(suite_result.to_dict(), ensure_ascii=False, indent=2) + "\n")
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
