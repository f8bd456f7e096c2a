"""Reading a recipe: its files, the environment and the overrides, joined, checked and resolved; torch-free."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from atento.config.reading import checks, fitting, inherited, layers, replaced, schema, task_defaults
from atento.config.reading.dumping import dump_recipe, recipe_difference, recipe_schema, recipe_values
from atento.config.reading.yaml12 import Node
from atento.config.recipe import Recipe
from atento.errors import RecipeError

__all__ = ["LoadedRecipe", "dump_recipe", "load_recipe", "recipe_difference", "recipe_schema", "recipe_values"]

COMMAND_LINE = "command line"
IN_MEMORY = "data in memory"  # the position of records in memory


@dataclass(frozen=True)
class LoadedRecipe:
    """A recipe and its origins.

    Attributes:
        recipe: resolved and checked.
        folder: what relative data paths start at: `data.folder`, itself relative to `home`, else `home`.
        home: the folder of the recipe file; the current directory for a shipped recipe and for standard input.
        path: the recipe file, or None for a shipped recipe and for standard input.
        origins: dotted key -> `my.yaml:3:5`, `command line`, `ATENTO_TRAINING__SEED`, `preset transformer-tiny`,
            `task language-modeling`, `file name`, `default`, or, where training chooses the value,
            `fitting.FITTED` (by the data) or `inherited.INHERITED` (by the initial model); for every value of the
            recipe in its order.
        warnings: one sentence for every option that was written and has no effect or an unlikely value, and for data
            that was left out.
    """

    recipe: Recipe
    folder: Path
    home: Path
    path: Path | None
    origins: dict[str, str]
    warnings: list[str]


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
        file, tree, homes = layers.read_mapping(path_or_name)
    else:
        file = layers.open_recipe(path_or_name)
        tree, homes = layers.read_files(file)
    for name, key, value in layers.environment(os.environ if environment is None else environment):
        tree = layers.apply(tree, layers.settings([f"{key}={value}"], name), name)
    tree = layers.apply(tree, layers.settings(overrides, COMMAND_LINE), COMMAND_LINE)
    memory_sources = {f"data.{split}": {"memory": split} for split in memory}
    tree = layers.apply(tree, layers.settings(memory_sources, IN_MEMORY), IN_MEMORY)
    for key, node in searched:
        tree = layers.apply(tree, [(key, node)], node.key_position or node.position)
    if "name" not in tree.value:
        tree = replace(tree, value={**tree.value, "name": Node(file.stem, "file name", key_position="file name")})

    checks.check_task(tree)
    tree, warnings = replaced.without_foreign(tree, list(homes), COMMAND_LINE)
    tree = task_defaults.with_defaults(tree)
    reader = schema.Reader()
    recipe: Recipe = reader.build(Recipe, tree, "")
    checks.check(recipe, reader)
    defaulted = reader.positions.get("network.heads", "").startswith("task ")
    recipe = task_defaults.with_objective_heads(recipe, written=not defaulted)

    home = homes.get(reader.origins.get("data.folder", "").rsplit(":", 2)[0], file.home)
    origins = {key: reader.origins.get(key, "default") for key in schema.flatten(recipe)}
    return LoadedRecipe(
        recipe=recipe,
        folder=home / (recipe.data.folder or ""),
        home=file.home,
        path=file.path,
        origins=origins
        | dict.fromkeys(fitting.to_fit(recipe, origins), fitting.FITTED)
        | dict.fromkeys(inherited.to_inherit(recipe, origins), inherited.INHERITED),
        warnings=warnings + checks.doubtful(recipe, reader),
    )
