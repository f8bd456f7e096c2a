"""The recipe of a row: an ordinary recipe that fine-tunes a model on the row's files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atento.config.reading.loading import load_recipe
from atento.config.reading.sizes_by_data import FITTED
from atento.data.records.splits import Split
from atento.errors import DataError, UsageError
from atento.runs.prepare import read_data
from atento.suites.row import Row
from atento.suites.suite_files import HELD_OUT, RowFiles, labelled_records, source, unlabelled_records

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
