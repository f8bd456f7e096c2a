"""A run from its recipe: the folder, what makes it the same run, and going on exactly where it stopped."""

import os
import reprlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

import torch

import atento
from atento.config.fitting import FITTED, fitted
from atento.config.loading import LoadedRecipe, dump_recipe, load_recipe
from atento.config.network import NetworkConfig, network_to_dict
from atento.config.recipe import Recipe
from atento.config.renamed import VERSION
from atento.config.tasks import RULES
from atento.data.memory import Records, by_split
from atento.errors import CheckpointError, TokenizerError, UsageError, counted, path_of
from atento.metrics.table import signed
from atento.models.initial import fine_tuned, initial_model, lengthened
from atento.models.read import ModelFiles, check_weights, read_model
from atento.models.write import terms
from atento.networks import Network, build_network, parameter_count
from atento.precision import resolve_device
from atento.precision import threads as thread_scope
from atento.runs.branch import BranchPoint, begin_at, branch_point, check_network
from atento.runs.folder import end_event, open_folder, scores_on_test, write_environment
from atento.runs.run_identity import has_begun, identity_of, located, write_whole
from atento.storage.average import average_run
from atento.storage.catalogue import clean, newest
from atento.storage.lock import RunLock
from atento.tasks.language_modeling import template_for
from atento.tasks.prepare import Data, network_for, read_data, tokenizer_for
from atento.tasks.strategies import constraints_of
from atento.tasks.table import TASKS
from atento.text.tokenizer import Tokenizer
from atento.training.allocator import check_memory, keep_freed_memory, keep_programs
from atento.training.journal import Journal
from atento.training.loop import Progress, Run, complete_save, fit, restore
from atento.training.progress import Reporter
from atento.training.step import Updater


@dataclass(frozen=True)
class TrainedRun:
    """A run that has ended (or had already): its folder, its last step, its best validation score and test scores."""

    folder: Path
    step: int
    best: float | None
    best_step: int
    test: dict[str, float] | None
    task: str
    already_finished: bool = False

    def __repr__(self) -> str:
        best = "" if self.best is None else f", best {self.best:.2f} at step {self.best_step}"
        return f"TrainedRun({reprlib.repr(str(self.folder))}, step {self.step}{best})"

    def _repr_html_(self) -> str:
        """A table for notebooks: folder, task, last step, best validation score, test scores."""
        rows = [("run", str(self.folder)), ("task", self.task), ("last step", f"{self.step:,}")]
        if self.best is not None:
            rows.append(("best validation score", f"{self.best:.2f} at step {self.best_step:,}"))
        rows += [(f"test {name}", f"{value:.2f}") for name, value in (self.test or {}).items()]
        cells = (f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in rows)
        return f"<table>{''.join(cells)}</table>"


def train(
    recipe: str | Path | Mapping[str, Any],
    overrides: Sequence[str] | Mapping[str, Any] = (),
    *,
    data: Records | Mapping[str, Records] | None = None,
    out: str | Path | None = None,
    force: bool = False,
    device: str = "auto",
    precision: str | None = None,
    seed: int | None = None,
    threads: int | None = None,
    from_: str | None = None,
) -> TrainedRun:
    """Train what the recipe says, into a run folder; an unfinished run is continued exactly.

    Args:
        recipe: a file, the name of a shipped recipe, a run folder, which goes on, or a mapping of the form of a file:
            {"task": "translation", ...}.
        overrides: {"training.steps": 1000} or ["training.steps=1000"].
        data: records in memory for the splits that it names, in place of the recipe's: {"train": pairs, "valid": ...},
            or the training records alone. Pairs are tuples (source, target), dicts with these keys, or a tuple of two
            lists; texts are str, or dicts with the key "text". A run goes on only with the same records.
        out: the run folder; `runs/NAME` by default. force: move a folder of another run aside.
        device, precision, seed, threads: win over the recipe.
        from_: "RUN@STEP": a new run begins at that checkpoint of another one.

    Raises:
        RecipeError, DataError, UsageError: before long work. TrainingStopped: by a signal, checkpoint saved.
    """
    if isinstance(overrides, str) or not isinstance(overrides, Mapping | Sequence):
        raise UsageError(f"`overrides` must be a mapping or a list of key=value: got {overrides!r:.60}")
    given = dict(overrides) if isinstance(overrides, Mapping) else list(overrides)
    for key, value in (("training.precision", precision), ("training.seed", seed)):
        if value is not None and isinstance(given, dict):
            given[key] = value
        elif value is not None and isinstance(given, list):
            given.append(f"{key}={value}")
    memory = by_split(data)
    loaded = load_recipe(recipe, given, memory=memory)
    device = resolve_device(device)
    begins = None if from_ is None else branch_point(from_)
    default: str | Path = Path("runs") / loaded.recipe.name
    if isinstance(recipe, str | Path) and loaded.path is not None and Path(recipe).is_dir():
        default = recipe  # a run, which goes on
    folder = Path(default) if out is None else path_of(out, "out", "a folder")
    if folder.name in ("", ".."):  # a folder is moved aside by its name
        folder = folder.resolve()
    if force:  # found wrong before anything is moved
        read_data(loaded.recipe, loaded.folder, lambda _: None, memory)
    aside = open_folder(folder, force, [*_files(loaded, folder), *([] if begins is None else [begins.path])])
    with RunLock(folder), thread_scope(threads), ExitStack() as files:
        log = files.enter_context((folder / "train.log").open("a", encoding="utf-8", newline="\n"))
        reporter = Reporter(0, log=log, bar=False)
        for line in [f"moved the old folder to {aside}"] if aside else []:
            reporter.line(line)
        keep_programs()
        return _train(loaded, memory, begins, folder, device, threads, reporter, files)


def _files(loaded: LoadedRecipe, folder: Path) -> list[Path]:
    """The recipe's own file, unless it is that of the run in `folder`, those of its data, and its `init`."""
    data = loaded.recipe.data
    names = (
        name
        for source in (*data.train, *data.valid, *data.test)
        for name in ((source.source, source.target) if source.file is None else (source.file,))
    )
    own = [] if loaded.path is None or loaded.path.resolve() == (folder / "recipe.yaml").resolve() else [loaded.path]
    start = [] if loaded.recipe.init is None else [loaded.home / loaded.recipe.init]
    return own + start + [loaded.folder / name for name in names if isinstance(name, str)]


def _check_network(recipe: Recipe, config: NetworkConfig, device: str) -> None:
    """Raises UsageError: the task has no use for the network, or the machine no room."""
    rules = RULES[recipe.task]
    if config.architecture not in rules.architectures:  # of the model that training starts from
        raise UsageError(
            f"{recipe.init} is of architecture {config.architecture!r}, and task {recipe.task} needs "
            f"{' or '.join(rules.architectures)}, which {rules.why}"
        )
    with torch.device("meta"):
        check_memory(parameter_count(build_network(config)), device)


def _train(
    loaded: LoadedRecipe,
    memory: Mapping[str, Records],
    begins: BranchPoint | None,
    folder: Path,
    device: str,
    threads: int | None,
    reporter: Reporter,
    files: ExitStack,
) -> TrainedRun:
    keep_freed_memory()
    recipe, say = loaded.recipe, reporter.line
    task = TASKS[recipe.task]
    for warning in loaded.warnings:
        say(f"warning: {warning}")
    data = read_data(recipe, loaded.folder, say, memory)
    loaded = _fitted(loaded, data, folder, say)
    recipe = loaded.recipe
    identity = identity_of(loaded, data, folder, device, threads, say, None if begins is None else begins.to_dict())
    torch.set_num_threads(int(identity["threads"]))
    for part in ("checkpoints", "averaged"):
        clean(folder / part)
    start = None if recipe.init is None else _start(folder, recipe.init, loaded.home)
    ready = start.path if start is not None else begins.path if begins is not None else None
    tokenizer = _tokenizer(recipe, loaded.home, folder, data, ready, say)
    config = network_for(recipe, tokenizer) if start is None else fine_tuned(start, recipe.network, tokenizer)
    _check_network(recipe, config, device)
    batches = task.batches(recipe, config, tokenizer, data.train, say)
    task.check_held_out(recipe, config, tokenizer, data)
    constraints_of(recipe.decoding, tokenizer.target)  # refuses words that the vocabulary cannot write
    steps = recipe.training.steps
    if recipe.training.epochs is not None:
        steps = max(1, round(recipe.training.epochs * batches.updates_per_epoch))
    network = _network(recipe, config, start).to(device)
    valid = data.valid
    run = Run(
        folder=folder,
        config=recipe.training,
        steps=steps,
        updater=Updater(network, recipe.training, str(identity["precision"]), task.loss),
        batches=batches,
        validate=None if valid is None else lambda: task.validate(network, tokenizer, valid, recipe),
        score_name=recipe.metrics[0] if recipe.metrics else "nll",
        model_config=model_config(recipe, network_to_dict(config), template_for(recipe.task, tokenizer)),
        model_files=tokenizer.files() | terms(None if start is None else start.path),
        identity={**identity, "tokenizer": tokenizer.fingerprint},
        journal=files.enter_context(Journal(folder / "metrics.jsonl")),
        reporter=reporter,
    )
    if _go_on(run):
        if run.progress.finished and not _extends(run, steps):
            end = end_event(folder)
            if end is not None:
                say(f"already finished: {folder}, step {run.progress.step}")
                return _result(run, scores_on_test(end), already=True)
            say(f"going on with {folder} behind its last step, {run.progress.step}")
            run.journal.cut(run.progress.step)
            complete_save(run)
            return _finish(run, recipe, data, tokenizer)
        say(f"going on with {folder} from step {run.progress.step}")
        run.journal.cut(run.progress.step)
        complete_save(run)
    else:
        _begin(run, recipe, config, begins)
    write_whole(folder / "recipe.yaml", dump_recipe(located(loaded)))
    write_environment(folder, parameters=parameter_count(network), examples=len(batches), steps=steps)
    run.reporter = Reporter(steps, run.progress.step, reporter.log)
    try:
        fit(run)
    finally:
        run.reporter.close()
        run.reporter = reporter
    return _finish(run, recipe, data, tokenizer)


def _begin(run: Run, recipe: Recipe, config: NetworkConfig, begins: BranchPoint | None) -> None:
    """Say what will be done; a run that begins at a checkpoint of another one is brought there."""
    batches, told = run.batches, run.identity
    examples = counted(len(batches), RULES[recipe.task].data.removesuffix("s"))
    run.reporter.line(
        f"{recipe.name}: {parameter_count(run.updater.network):,} parameters, {examples}, "
        f"{counted(batches.updates_per_epoch, 'update')} an epoch of about "
        f"{counted(recipe.training.batch_tokens, 'token')}, {counted(run.steps, 'step')}; {told['device']}, "
        f"{told['precision']}, {counted(int(told['threads']), 'thread')}; run folder {run.folder}"
    )
    run.journal.cut(0)
    if begins is not None:
        check_network(begins, config)
        begin_at(run, begins)
        run.reporter.line(f"begins at step {begins.step} of {begins.said.rpartition('@')[0]}")


def _fitted(loaded: LoadedRecipe, data: Data, folder: Path, say: Callable[[str], None]) -> LoadedRecipe:
    """The recipe with the sizes that it leaves open chosen by the amount of training text."""
    keys = [key for key, origin in loaded.origins.items() if origin == FITTED]
    if not keys:
        return loaded
    lengths = {name: sum(map(len, texts)) for name, texts in data.train.columns.items()}
    targets = lengths.get("target", lengths.get("text", 0))
    recipe, sentence = fitted(loaded.recipe, keys, sum(lengths.values()), targets)
    if not has_begun(folder):
        say(sentence)
    return replace(loaded, recipe=recipe)


def _network(recipe: Recipe, config: NetworkConfig, start: ModelFiles | None) -> Network:
    """The network with its first weights: drawn by the run's seed, or those of the model that it starts from."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.training.seed)
        network = build_network(config)
        start = None if start is None else lengthened(start, network, recipe.network)
    if start is not None:
        check_weights(network, start)
        network.load_state_dict(start.weights)
    return network


def _go_on(run: Run) -> bool:
    """Bring the run to its newest good checkpoint; False if it has none yet.

    Raises:
        CheckpointError: all its checkpoints are damaged. UsageError: it has more steps than it is to have.
    """
    last = newest(run.checkpoints)
    if last is not None:
        restore(run, last)
        if run.progress.step > run.steps:
            raise UsageError(
                f"{run.folder} has {counted(run.progress.step, 'step')}; `training.steps` {run.steps} is fewer. "
                "Use --force to begin anew"
            )
        return True
    if damaged := sorted(path.name for path in run.checkpoints.glob("*.bad*")):
        raise CheckpointError(
            f"every checkpoint of {run.folder} is damaged ({', '.join(damaged)}); --force begins anew beside it"
        )
    return False


def _extends(run: Run, steps: int) -> bool:
    """More steps than before extend a run that reached its end; one that stopped early has ended."""
    early = run.config.early_stop and run.progress.stale >= run.config.early_stop
    return run.progress.step < steps and not early


def _start(folder: Path, init: str, home: Path) -> ModelFiles:
    """The model that a run starts from; once the run has a checkpoint, that one, whatever became of the model."""
    own = newest(folder / "checkpoints")
    return initial_model(init, home) if own is None else read_model(own)


def _tokenizer(
    recipe: Recipe, home: Path, folder: Path, data: Data, ready: Path | None, say: Callable[[str], None]
) -> Tokenizer:
    """The run's own tokenizer; made once (or taken from the model it starts from, `ready`), kept in the run folder."""
    kept = folder / "tokenizer"
    if kept.exists():
        tokenizer = Tokenizer.load(kept)
        given = None if recipe.tokenizer.path is None else home / recipe.tokenizer.path
        if given is None or not given.exists() or Tokenizer.load(given).fingerprint == tokenizer.fingerprint:
            return tokenizer
        if has_begun(folder):
            raise TokenizerError(
                f"{folder} was trained with another tokenizer: {given} has changed. Use --out or --force"
            )
        shutil.rmtree(kept)
    made = ready is None or (recipe.tokenizer.path is not None and recipe.init is None)
    tokenizer = tokenizer_for(recipe, home, data.train.texts(), say) if made else Tokenizer.load(ready or folder)
    for left in folder.glob(".tokenizer-*"):  # by a command that was killed
        shutil.rmtree(left, ignore_errors=True)
    partial = folder / f".tokenizer-{os.getpid()}"
    tokenizer.save(partial)
    partial.rename(kept)
    return tokenizer


def model_config(recipe: Recipe, network: dict[str, Any], template: str | None = None) -> dict[str, Any]:
    """`config.json` of a model: everything needed to use it; `template` names the marks around its texts."""
    config = {
        "model_type": "atento",
        "version": VERSION,
        "atento_version": atento.__version__,
        "task": recipe.task,
        "name": recipe.name,
        "network": network,
        "decoding": asdict(recipe.decoding),
        "max_len": recipe.data.max_len,
    }
    return config if template is None else config | {"template": template}


def _finish(run: Run, recipe: Recipe, data: Data, tokenizer: Tokenizer) -> TrainedRun:
    """Average, score on the test data with the best weights, and write the event that says that all is done."""
    progress, network, say = run.progress, run.updater.network, run.reporter.line
    if recipe.training.average > 1:
        averaged = average_run(
            run.folder,
            recipe.training.average,
            score=None
            if data.valid is None
            else lambda weights: _score_of(network, weights, tokenizer, data, recipe, run.score_name),
        )
        score = "" if averaged.score is None else f": {run.score_name} {signed(run.score_name, averaged.score):.2f}"
        say(f"averaged the last {counted(len(averaged.names), 'checkpoint')}{score}")
    test = None
    event: dict[str, Any] = {"event": "end", "step": progress.step}
    if data.test is not None:
        network.load_state_dict(read_model(run.folder).weights)  # what `load` would take: the best, else the last
        test = TASKS[recipe.task].validate(network, tokenizer, data.test, recipe)
        event |= {f"test_{name}": value for name, value in test.items()}
        say("test: " + ", ".join(f"{name} {value:.2f}" for name, value in test.items() if name not in ("loss", "nll")))
    run.journal.append(event)
    return _result(run, test)


def _score_of(
    network: Any, weights: dict[str, torch.Tensor], tokenizer: Tokenizer, data: Data, recipe: Recipe, name: str
) -> float:
    """The validation score of other weights in the same network, which gets its own back."""
    own = {key: value.clone() for key, value in network.state_dict().items()}
    network.load_state_dict(weights)
    assert data.valid is not None
    scores = TASKS[recipe.task].validate(network, tokenizer, data.valid, recipe)
    network.load_state_dict(own)
    return signed(name, scores[name])


def _result(run: Run, test: dict[str, float] | None, already: bool = False) -> TrainedRun:
    progress: Progress = run.progress
    best = None if progress.best is None else signed(run.score_name, progress.best)
    task = str(run.model_config["task"])
    return TrainedRun(run.folder, progress.step, best, progress.best_step, test, task, already)
