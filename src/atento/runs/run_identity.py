"""The identity of a run: recipe, data and machine, written when it starts and compared when it is resumed."""

import json
import re
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from atento.attention.cuda_kernels import has_rows
from atento.base.errors import UsageError, counted
from atento.base.limits import read_plain_text
from atento.base.precision import training_precision
from atento.config.reading.loading import LoadedRecipe, dump_recipe, load_recipe, recipe_difference
from atento.config.recipe import DataConfig, Recipe, SourceConfig
from atento.config.sections.network import NetworkConfig
from atento.data.batches.batch import Batches
from atento.data.batches.planning import CPU_PARTS, GPU_PARTS
from atento.networks.stack.stack import without_padding
from atento.runs.prepare import Data, Report
from atento.runs.setup import Setup
from atento.storage.atomic_files import write_atomically

# Keys of a recipe that may change between the start of a run and its resumption.
MAY_CHANGE = (
    "name",
    "data.folder",
    "data.store",
    "data.store_folder",
    "init.cache",
    "network.features.cache",
    "teacher.model",
    "teacher.cache",  # each checkpoint knows its teachers by their hashes
    "training.steps",
    "training.epochs",
    "training.minutes",
    "training.log_every",
    "training.checkpoint_every",
    "training.keep",
    "training.average",
    "training.baseline",
    "training.non_finite",
    "training.async_checkpoints",
    "training.parallel.replicate",
    "training.parallel.shard",
    "training.parallel.timeout",
    "training.log_gradient_noise",
    "training.log_update_ratios",
    "training.samples",
    "training.report_to",
)

_OF_TASK = re.compile(r"^tasks\.\d+\.")  # before a key of one of several tasks
_SHOWN = 3  # differences that a message lists


def with_absolute_paths(loaded: LoadedRecipe) -> Recipe:
    """Return the recipe with absolute paths, as the run folder stores it."""
    recipe, home = loaded.recipe, loaded.home
    data, tokenizer, init, teacher = recipe.data, recipe.tokenizer, recipe.init, recipe.teacher
    network, features = recipe.network, recipe.network.features
    if any(source.world is None for source in (*data.train, *data.valid, *data.test)):  # the micro-world has no files
        data = replace(data, folder=str(loaded.folder.resolve()))
    if recipe.tasks:
        own = [replace(part.recipe.data, folder=str(part.folder.resolve())) for part in loaded.by_task()]
        recipe = replace(recipe, tasks=tuple(replace(task, data=data) for task, data in zip(recipe.tasks, own)))

    def absolute(path: str) -> str:
        return str((home / path).resolve())

    def found(model: str) -> str:  # else a name on the hub, or a shipped model
        return absolute(model) if (home / model).exists() else model

    if tokenizer.path is not None:
        tokenizer = replace(tokenizer, path=absolute(tokenizer.path))
    if init is not None:
        cache = None if init.cache is None else absolute(init.cache)
        init = replace(init, model=found(init.model), cache=cache)
    if features is not None:
        cache = None if features.cache is None else absolute(features.cache)
        network = replace(network, features=replace(features, model=found(features.model), cache=cache))
    if teacher is not None:
        cache = None if teacher.cache is None else absolute(teacher.cache)
        teacher = replace(teacher, model=tuple(map(found, teacher.model)), cache=cache)
    return replace(recipe, data=data, tokenizer=tokenizer, init=init, network=network, teacher=teacher)


def identity_of(setup: Setup) -> dict[str, Any]:
    """Return the identity of a run: written to `run.json` at its start, compared with it on resumption.

    A folder without a checkpoint (a command was refused or killed early) may take another recipe. A process that is not
    the first one compares itself with what the first one has written.

    Raises:
        UsageError: the folder holds a run with another recipe, data or branch point; the message names the difference.
    """
    folder, device, threads, processes = setup.folder, setup.device, setup.threads, setup.replica.size
    path, recipe = folder / "run.json", with_absolute_paths(setup.loaded)
    branch = None if setup.branch is None else setup.branch.to_dict()
    if path.exists():
        saved = _read(path)
        error = _difference(saved, recipe, setup.data, folder, setup.report)
        if error is None and branch is not None and saved.get("from") != branch:
            error = f"{folder} is a run that did not start from that checkpoint (--from). Use another --out or --force"
        if error is None:
            training_precision(str(saved["precision"]), device)  # which it was trained in so far
            before = int(saved.pop("processes", 1))  # no part of the identity: any number gives the same updates
            same = before == processes or recipe.training.parallel.exact
            if not same:
                threads = threads or torch.get_num_threads()
                first, present = (counted(number, "process", "processes") for number in (before, processes))
                setup.report(_rounding(f"with {first}", f"with {present}"))
            threads = threads or int(saved["threads"])
            for condition, was, now in (  # each prevents bit-exact resumption
                ("with {} threads", saved["threads"], threads),
                ("on {}", saved["device"], device),
                ("with torch {}", saved["deterministic_from"], torch.__version__),
            ):
                if was != now:
                    setup.report(_rounding(condition.format(was), condition.format(now)))
            return saved | {"threads": threads, "device": device}
        if has_begun(folder) or not setup.replica.main:
            raise UsageError(error)
        shutil.rmtree(folder / "tokenizer", ignore_errors=True)
    if not setup.replica.main:
        raise UsageError(f"{path} is missing, which the first process has written: all need the same run folder")
    identity = {
        "run_id": uuid.uuid4().hex,
        "data": setup.data.fingerprint,
        "precision": training_precision(recipe.training.precision, device),
        "threads": threads or torch.get_num_threads(),
        "device": device,
        "deterministic_from": torch.__version__,
    } | ({} if branch is None else {"from": dict(branch)})
    identity |= parts_on(device, str(identity["precision"]), processes)
    write_atomically(folder / "recipe.yaml", dump_recipe(recipe))
    started_with = {} if processes == 1 else {"processes": processes}
    write_atomically(path, json.dumps(identity | started_with, indent=2) + "\n")
    return identity


def parts_on(device: str, precision: str, processes: int) -> dict[str, Any]:
    """Return the size of the parts of updates on a CUDA device, and whether layers compute them as rows; else nothing.

    Parts are fewer and larger there; of several processes, each has its share.
    """
    if not device.startswith("cuda"):
        return {}
    tokens = GPU_PARTS.tokens * (2 if torch.cuda.mem_get_info(device)[1] >= 40 << 30 else 1)
    rows = precision != "float32" and has_rows(torch.device(device))
    return {"part_tokens": max(CPU_PARTS.tokens, tokens // processes), "rows": rows}


def keep_parts(batches: Batches, identity: Mapping[str, Any], config: NetworkConfig) -> None:
    """Cut updates into parts of the size that a run on a GPU began with, whatever the device is now."""
    if "part_tokens" in identity:
        rows = identity.get("rows", False) and without_padding(config) and not config.reads_source
        batches.resize(GPU_PARTS._replace(tokens=int(identity["part_tokens"]), padded=not rows))


def has_begun(folder: Path) -> bool:
    """Whether the folder has a checkpoint, sound or damaged."""
    return any((folder / "checkpoints").glob("step-*"))


def data_fingerprint(folder: Path) -> str:
    """Return the fingerprint of the data of the run in a folder."""
    return str(_read(folder / "run.json")["data"])


def _read(path: Path) -> dict[str, Any]:
    try:
        saved = json.loads(read_plain_text(path))
    except ValueError:
        saved = None
    required = {"run_id", "data", "precision", "threads", "device", "deterministic_from"}
    if not isinstance(saved, dict) or not required <= saved.keys():
        raise UsageError(f"{path} is damaged, so this run cannot be identified; --force moves it aside and starts over")
    return saved


def _difference(saved: dict[str, object], recipe: Recipe, data: Data, folder: Path, report: Report) -> str | None:
    before = load_recipe(folder / "recipe.yaml", environment={}).recipe
    if _moved(before.tokenizer.path, recipe.tokenizer.path):
        recipe = replace(recipe, tokenizer=replace(recipe.tokenizer, path=before.tokenizer.path))
    if before.init is not None and recipe.init is not None and _moved(before.init.model, recipe.init.model):
        recipe = replace(recipe, init=replace(recipe.init, model=before.init.model))
    was, now = before.network.features, recipe.network.features
    if was is not None and now is not None and _moved(was.model, now.model):
        recipe = replace(recipe, network=replace(recipe.network, features=replace(now, model=was.model)))
    if recipe.embedding is None:  # that of the initial model, which a run of vectors stores
        recipe = replace(recipe, embedding=before.embedding)
    tests = [line for line in recipe_difference(before, recipe) if _OF_TASK.sub("", line).startswith("data.test")]
    recipe = _with_files_of(before, recipe, equal=saved["data"] == data.fingerprint)
    different = [one for one in recipe_difference(before, recipe) if not _OF_TASK.sub("", one).startswith(MAY_CHANGE)]
    if different:
        n_more = len(different) - _SHOWN
        more = f"; and {n_more} more (its recipe is {folder / 'recipe.yaml'})" if n_more > 0 else ""
        return (
            f"{folder} is a run of another recipe: {'; '.join(different[:_SHOWN])}{more}. Give another folder with "
            "--out, or --force to move it aside"
        )
    if saved["data"] != data.fingerprint:
        return f"{folder} was trained on other data: the records have changed. Use --out or --force"
    if tests:
        report(f"warning: {'; '.join(tests)}: test records are not compared, so the last scores may be of others")
    return None


def _with_files_of(before: Recipe, recipe: Recipe, *, equal: bool) -> Recipe:
    """The recipe with another's paths of data, where the records are equal: files may be moved or renamed.

    The fingerprint holds no test records: a test file is known by its place alone, and changes no weight.
    """
    if not equal:
        return recipe

    def paths(before: Sequence[SourceConfig], sources: Sequence[SourceConfig]) -> tuple[SourceConfig, ...]:
        return tuple(map(_with_path, before, sources)) if len(before) == len(sources) else tuple(sources)

    def moved(was: DataConfig, now: DataConfig) -> DataConfig:
        train, valid, test = (paths(was.train, now.train), paths(was.valid, now.valid), paths(was.test, now.test))
        return replace(now, train=train, valid=valid, test=test)

    tasks = tuple(replace(now, data=moved(was.data, now.data)) for was, now in zip(before.tasks, recipe.tasks))
    return replace(recipe, data=moved(before.data, recipe.data), tasks=tasks + recipe.tasks[len(tasks) :])


def _with_path(before: SourceConfig, source: SourceConfig) -> SourceConfig:
    """The source with the path of another, or, of two parallel files, its paths."""
    if None not in (before.file, source.file):
        return replace(source, file=before.file)
    parallel = all(one.file is one.dataset is one.world is one.memory is None for one in (before, source))
    return replace(source, source=before.source, target=before.target) if parallel else source


def _moved(before: str | None, now: str | None) -> bool:
    """Whether two paths have the same name in different folders; the content is compared elsewhere."""
    was, is_now = Path(str(before)), Path(str(now))
    return None not in (before, now) and was.is_absolute() and was.name == is_now.name


def _rounding(first: str, present: str) -> str:
    """Return the warning that a run continues under other conditions than it started with."""
    return f"warning: the run started {first} and continues {present}: results agree up to rounding only"
