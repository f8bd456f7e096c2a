"""Reading a recipe: its files, the environment and the overrides, joined, checked and resolved; torch-free."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from atento.base.errors import RecipeError
from atento.config.reading import checks, initial_keys, recipe_layers, schema, sizes_by_data, task_defaults, task_list
from atento.config.reading.dumping import dump_recipe, recipe_difference, recipe_schema, recipe_values
from atento.config.reading.yaml12 import Node
from atento.config.recipe import Recipe

__all__ = ["LoadedRecipe", "dump_recipe", "load_recipe", "recipe_difference", "recipe_schema", "recipe_values"]

COMMAND_LINE = "command line"
_HELD_OUT = 500  # records, where validation data are left out; never more than a tenth of the training data
IN_MEMORY = "data in memory"  # the position of records in memory


@dataclass(frozen=True)
class LoadedRecipe:
    """A recipe and its origins."""

    recipe: Recipe  # resolved and checked
    folder: Path  # what relative data paths start at: `data.folder`, itself relative to `home`, else `home`
    home: Path  # the folder of the recipe file; the current directory for a shipped recipe and for standard input
    path: Path | None  # the recipe file, or None for a shipped recipe and for standard input
    # dotted key -> `my.yaml:3:5`, `command line`, `ATENTO_TRAINING__SEED`, `preset transformer-tiny`, `task
    # language-modeling`, `file name`, `default`, or, where training chooses the value, `sizes_by_data.FITTED` (by the
    # data) or `initial_keys.INHERITED` (by the initial model); for every value of the recipe in its order
    origins: dict[str, str]
    # one sentence for every option that was written and has no effect or an unlikely value, and for data that was left
    # out
    warnings: list[str]

    def by_task(self) -> list["LoadedRecipe"]:
        """The recipe of each of several tasks; of a recipe with `task`, this one alone."""
        parts = []
        for number in range(len(self.recipe.tasks)):
            recipe, origins = task_list.of_task(self.recipe, number), task_list.own_keys(self.origins, number)
            folder = self.home / (recipe.data.folder or "")
            parts.append(replace(self, recipe=recipe, folder=folder, origins=origins))
        return parts or [self]

    def one_task(self, what: str) -> "LoadedRecipe":
        """This recipe, for a command of that name, which takes one task. Raises RecipeError: it has several."""
        if self.recipe.tasks:
            names = ", ".join(task.name for task in self.recipe.tasks)
            raise RecipeError(f"{what} takes a recipe with `task`: {self.recipe.name} has the tasks {names}")
        return self

    def later(self) -> dict[str, str]:
        """The keys whose values are known when training begins, and what they are, as `dump_recipe` takes them."""
        known_later = {initial_keys.INHERITED: "the initial model's", sizes_by_data.FITTED: "fitted to the data"}
        later = {key: known_later[origin] for key, origin in self.origins.items() if origin in known_later}
        fitted = [key for key in later if self.origins[key] == sizes_by_data.FITTED]
        return later | dict.fromkeys(sizes_by_data.beside(fitted, self.origins), "left open")


def load_recipe(
    path_or_name: str | Path | Mapping[str, Any],
    overrides: Sequence[str] | Mapping[str, object] = (),
    *,
    environment: Mapping[str, str] | None = None,
    memory: Iterable[str] = (),
    searched: Iterable[tuple[str, Node]] = (),
) -> LoadedRecipe:
    """Read, join, check and resolve a recipe; later wins: default, file (its `extends` first), environment, overrides.

    Args:
        path_or_name: a YAML 1.2 file, a run folder, `-` for standard input, the name of a shipped recipe, or a mapping
            of the same form in Python.
        overrides: `key=value` texts with dotted keys and YAML values (`data.valid.0.file=x`; `~key` goes back to
            the default), or a mapping of dotted keys to Python values.
        memory: the splits whose data are records in memory, instead of the recipe's.
        searched: dotted keys and values with positions of their own, applied last: those of a search.
        environment: variables such as ATENTO_TRAINING__LEARNING_RATE; None means those of this process.

    Raises:
        RecipeError: any error of the recipe; one sentence with file, line and column, the key and the rule.
    """
    if not isinstance(path_or_name, str | Path | Mapping):
        raise RecipeError(f"a recipe is a file, a name or a mapping: got {type(path_or_name).__name__}")
    if isinstance(path_or_name, Mapping):
        file, tree, homes = recipe_layers.read_mapping(path_or_name)
    else:
        file = recipe_layers.open_recipe(path_or_name)
        tree, homes = recipe_layers.read_files(file)
    for name, key, value in recipe_layers.environment(os.environ if environment is None else environment):
        tree = recipe_layers.apply(tree, recipe_layers.settings([f"{key}={value}"], name), name)
    tree = recipe_layers.apply(tree, recipe_layers.settings(overrides, COMMAND_LINE), COMMAND_LINE)
    # above the command line: `data` of a call replaces any
    memory_sources = {f"data.{split}": {"memory": split} for split in memory}
    tree = recipe_layers.apply(tree, recipe_layers.settings(memory_sources, IN_MEMORY), IN_MEMORY)
    for key, node in searched:
        tree = recipe_layers.apply(tree, [(key, node)], node.key_position or node.position)
    if "name" not in tree.value:
        tree = replace(tree, value={**tree.value, "name": Node(file.stem, "file name", key_position="file name")})

    tree = task_list.expanded(tree)
    checks.check_task(tree)  # the defaults of the task need its name
    tree, warnings = _without_foreign(tree, list(homes), COMMAND_LINE)
    tree = task_defaults.with_defaults(tree)
    reader = schema.Reader()
    try:
        recipe: Recipe = reader.build(Recipe, tree, "")
        parts = task_list.views(recipe, reader)
        for one, own in parts:
            with task_list.task_named(one.head):
                checks.check(one, own)
                task_list.check(one, own)
    except RecipeError as error:
        raise RecipeError(_as_written(str(error), reader.alone)) from None
    # heads that nobody wrote; the objectives add theirs
    defaulted = reader.positions.get("network.heads", "").startswith("task ")
    recipe = task_defaults.with_objective_heads(recipe, written=not defaulted)

    # FILE of FILE:LINE:COLUMN; `data.folder` is relative to the file that writes it
    home = homes.get(reader.origins.get("data.folder", "").rsplit(":", 2)[0], file.home)
    origins = {key: reader.origins.get(key, "default") for key in schema.flatten(recipe)}
    return LoadedRecipe(
        recipe=recipe,
        folder=home / (recipe.data.folder or ""),
        home=file.home,
        path=file.path,
        origins=origins
        | dict.fromkeys(sizes_by_data.to_fit(recipe, origins), sizes_by_data.FITTED)
        | dict.fromkeys(initial_keys.to_inherit(recipe, origins), initial_keys.INHERITED),
        warnings=warnings
        + [_as_written(one, reader.alone) for one in task_list.agreed([checks.doubtful(*part) for part in parts])],
    )


def _as_written(message: str, alone: Iterable[str]) -> str:
    """Return a message without the numbers of sections that are alone in their lists: data.train.0 is data.train."""
    for path in alone:
        message = re.sub(rf"\b{re.escape(path)}\.0\b", path, message)
    return message


def _without_foreign(tree: Node, files: Sequence[str], command_line: str) -> tuple[Node, list[str]]:
    """Leave out validation and test data of another kind than a `data.train` from a higher layer.

    The kinds are the micro-world and files. A shipped recipe validates on the micro-world; if the command line, or a
    recipe that extends it, names other training data, these scores do not measure that data. Validation and test data
    of the same layer as `data.train`, or of a higher one, are kept.

    Args:
        tree: the recipe as written, all layers joined.
        files: the labels of the recipe's file and then of those that it extends.
        command_line: the position of overrides of the command line; other positions are environment variables.

    Returns:
        The recipe, with `data.held_out` if validation data were left out; and the warnings.
    """
    data = tree.value.get("data")
    if data is None or not isinstance(data.value, dict) or "train" not in data.value:
        return tree, []

    def layer(node: Node) -> int:
        """Return the highest layer of any of its parts; 0 is the command line."""
        # FILE of FILE:LINE:COLUMN; 1: the environment
        ranks = {command_line: 0} | {label: number for number, label in enumerate(files, start=2)}
        return min(ranks.get(position, ranks.get(position.rsplit(":", 2)[0], 1)) for position in _positions(node))

    train = data.value["train"]
    foreign = [
        name
        for name in ("valid", "test")
        if name in data.value
        and layer(train) < layer(data.value[name])
        and [_kinds(train), _kinds(data.value[name])] in ([{"world"}, {"file"}], [{"file"}, {"world"}])
    ]
    if not foreign:
        return tree, []
    remaining = {key: value for key, value in data.value.items() if key not in foreign}
    instead = ""
    if "valid" in foreign:
        position = "in place of the data.valid left out"
        remaining.setdefault("held_out", Node(_HELD_OUT, position, key_position=position))
        instead = (
            f"; up to {remaining['held_out'].value} training records are held out for validation "
            "(data.held_out=N takes another number, data.valid=... other data)"
        )
    kinds = ("files", "the micro-world")
    training_kind, other_kind = kinds if _kinds(train) == {"file"} else kinds[::-1]
    if any(_has(source, "memory") for source in _maps(train)):
        training_kind = "in memory"
    names = " and ".join(f"data.{name}" for name in foreign)
    warning = (
        f"{train.position}: data.train is {training_kind}, so the recipe's {names} ({other_kind}) "
        f"{'are' if len(foreign) > 1 else 'is'} left out{instead}"
    )
    return replace(tree, value={**tree.value, "data": replace(data, value=remaining)}), [warning]


def _kinds(sources: Node) -> set[str]:
    """Return the kinds of the sources of a split: `world`, `file` or both."""
    return {"world" if _has(source, "world") else "file" for source in _maps(sources)}


def _maps(sources: Node) -> list[dict[str, object]]:
    """Return the keys of each source of a split."""
    every = sources.value if isinstance(sources.value, list) else [sources]
    maps = ({"file": source} if isinstance(source.value, str) else source.value for source in every)
    return [source for source in maps if isinstance(source, dict) and source]


def _has(source: dict[str, Any], key: str) -> bool:
    return key in source and source[key].value is not None


def _positions(node: Node) -> Iterator[str]:
    """Yield the positions of a value and its parts."""
    yield node.position
    parts = node.value.values() if isinstance(node.value, dict) else node.value if isinstance(node.value, list) else ()
    for part in parts:
        yield from _positions(part)
