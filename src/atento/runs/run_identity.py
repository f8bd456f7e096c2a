"""What makes a run the same run: its identity, written when it begins and compared when it goes on."""

import json
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from atento.config.loading import LoadedRecipe, dump_recipe, load_recipe, recipe_difference
from atento.config.recipe import Recipe
from atento.errors import TrainingError, UsageError
from atento.precision import best_precision
from atento.runs.prepare import Data

# What may differ between the command that began a run and the one that goes on with it.
MAY_CHANGE = (
    "name",
    "data.folder",
    "training.steps",
    "training.epochs",
    "training.log_every",
    "training.keep",
    "training.average",
)

SHOWN = 3  # differences that a refusal names


def located(loaded: LoadedRecipe) -> Recipe:
    """The recipe with the paths that it names made absolute: what a run keeps, to be used again from anywhere."""
    recipe, home = loaded.recipe, loaded.home
    data, tokenizer, init = recipe.data, recipe.tokenizer, recipe.init
    if any(source.world is None for source in (*data.train, *data.valid, *data.test)):
        data = replace(data, folder=str(loaded.folder.resolve()))
    if tokenizer.path is not None:
        tokenizer = replace(tokenizer, path=str((home / tokenizer.path).resolve()))
    if init is not None and (home / init).exists():
        init = str((home / init).resolve())
    return replace(recipe, data=data, tokenizer=tokenizer, init=init)


def identity_of(
    loaded: LoadedRecipe,
    data: Data,
    folder: Path,
    device: str,
    threads: int | None,
    say: Callable[[str], None],
    begins: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What a run is: kept in `run.json` when it begins, compared when it goes on.

    A folder in which nothing was trained yet (a command was refused, or killed early) is free for another recipe.
    `begins` is the checkpoint of another run that this one begins at.

    Raises:
        UsageError: the folder holds a run of another recipe, data or beginning; names the difference.
    """
    path, recipe = folder / "run.json", located(loaded)
    if path.exists():
        kept = _read(path)
        refusal = _difference(kept, recipe, data, folder)
        if refusal is None and begins is not None and kept.get("from") != begins:
            refusal = f"{folder} is a run that did not begin at that checkpoint (--from). Use another --out or --force"
        if refusal is None:
            return kept | _warned(kept, device, threads, say)
        if has_begun(folder):
            raise UsageError(refusal)
        shutil.rmtree(folder / "tokenizer", ignore_errors=True)
    auto = best_precision(device)
    identity = {
        "run_id": uuid.uuid4().hex,
        "data": data.fingerprint,
        "precision": auto if recipe.training.precision == "auto" else recipe.training.precision,
        "threads": threads or torch.get_num_threads(),
        "device": device,
        "deterministic_from": torch.__version__,
    } | ({} if begins is None else {"from": dict(begins)})
    write_whole(folder / "recipe.yaml", dump_recipe(recipe))
    write_whole(path, json.dumps(identity, indent=2) + "\n")
    return identity


def has_begun(folder: Path) -> bool:
    """Whether anything was trained there: a checkpoint stands in it, sound or damaged."""
    return any((folder / "checkpoints").glob("step-*"))


def write_whole(path: Path, text: str) -> None:
    """Replace a small file whole.

    Raises:
        TrainingError: the system does not let us.
    """
    partial = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8", newline="\n")
        partial.replace(path)
    except OSError as error:
        raise TrainingError(f"{path} cannot be written: {error.strerror}") from error


def _read(path: Path) -> dict[str, Any]:
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        kept = None
    wanted = {"run_id", "data", "precision", "threads", "device", "deterministic_from"}
    if not isinstance(kept, dict) or not wanted <= kept.keys():
        raise UsageError(f"{path} is damaged, so nobody can tell what this run is; --force begins anew beside it")
    return kept


def _difference(kept: dict[str, Any], recipe: Recipe, data: Data, folder: Path) -> str | None:
    before = load_recipe(folder / "recipe.yaml", environment={}).recipe
    if _moved(before.tokenizer.path, recipe.tokenizer.path):
        recipe = replace(recipe, tokenizer=replace(recipe.tokenizer, path=before.tokenizer.path))
    if _moved(before.init, recipe.init):
        recipe = replace(recipe, init=before.init)
    different = [line for line in recipe_difference(before, recipe) if not line.startswith(MAY_CHANGE)]
    if different:
        rest = len(different) - SHOWN
        more = f"; and {rest} more (its recipe is {folder / 'recipe.yaml'})" if rest > 0 else ""
        return (
            f"{folder} is a run of another recipe: {'; '.join(different[:SHOWN])}{more}. Give another folder with "
            "--out, or --force to move it aside"
        )
    if kept["data"] != data.fingerprint:
        return f"{folder} was trained on other data: the records have changed. Use --out or --force"
    return None


def _moved(before: str | None, now: str | None) -> bool:
    """Whether two paths name the same thing in another folder; its content is compared elsewhere."""
    return (
        None not in (before, now) and Path(str(before)).is_absolute() and Path(str(before)).name == Path(str(now)).name
    )


def _warned(kept: dict[str, Any], device: str, threads: int | None, say: Callable[[str], None]) -> dict[str, Any]:
    """What this start may do otherwise, each with a warning that it is not bit-exact any more."""
    threads = threads or int(kept["threads"])
    for what, before, now in (
        ("with {} threads", kept["threads"], threads),
        ("on {}", kept["device"], device),
        ("with torch {}", kept["deterministic_from"], torch.__version__),
    ):
        if before != now:
            begun, going_on = what.format(before), what.format(now)
            say(f"warning: the run was begun {begun}, now {going_on}: the same to rounding, not bit-exact")
    return {"threads": threads, "device": device}
