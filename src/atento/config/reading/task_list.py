"""Recipes of several tasks over one encoder: `tasks` as it is written, and each of its items as a recipe. No torch."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from atento.base.errors import RecipeError, UsageError, nearest
from atento.config.reading import schema
from atento.config.reading.recipe_layers import merge
from atento.config.reading.schema import Reader
from atento.config.reading.yaml12 import Node
from atento.config.recipe import DataConfig, Recipe
from atento.config.tables.objective import ObjectiveConfig
from atento.config.tables.tasks import TASKS

T = TypeVar("T")
_OF_ONE = ("task", "metrics", "objective", "teacher")  # keys that do not stand beside `tasks`


@contextmanager
def task_named(head: str) -> Iterator[None]:
    """Errors of one of several tasks name it; those of the only task, which has no head, stay as they are."""
    try:
        yield
    except UsageError as error:
        error.args = (f"{error} (task {head!r})",) if head else error.args
        raise


def expanded(tree: Node) -> Node:
    """Return a recipe with `tasks` in the form of its sections; one with `task` is unchanged.

    Each task gets what it does not write: keys of the recipe's `data`, the size of its updates, its usual metrics.
    Raises RecipeError: fewer than two tasks, two of one name, a task that has no head for an encoder, or `task` too.
    """
    tasks, training = tree.value.get("tasks"), tree.value.get("training")
    if tasks is None or tasks.value in (None, []):
        return tree
    for key in _OF_ONE:
        if (beside := tree.value.get(key)) is not None and beside.value not in (None, []):
            raise RecipeError(
                f"{beside.key_position or beside.position}: {key} is for a recipe of one task, and tasks beside it has "
                "several, each with its own: leave one of the two out"
            )
    every = tasks.value if isinstance(tasks.value, list) else []
    if len(every) < 2 or not all(isinstance(item.value, dict) for item in every):
        got = f"each with `name`, `task` and `data`: got {schema.as_text(tasks.value)}"
        raise RecipeError(f"{tasks.position}: tasks must list two or more, {got}")
    shared = {"data": tree.value.get("data"), "batch_tokens": None}
    if training is not None and isinstance(training.value, dict):
        shared["batch_tokens"] = training.value.get("batch_tokens")
    items, names = list[Node](), list[object]()
    for number, item in enumerate(every):
        own, missing = item.value, replace(item, value=None)
        task, name = own.get("task", missing), own.get("name", missing)
        spec = TASKS.get(str(task.value))
        if spec is None or not spec.joins_others:
            near = nearest(str(task.value), [name for name, other in TASKS.items() if other.joins_others])
            got = f"must label or rate texts or tag words: got {schema.as_text(task.value)}{near}"
            raise RecipeError(f"{task.position}: tasks.{number}.task {got}")
        if name.value in names:
            raise RecipeError(f"{name.position}: tasks must have different names: got {name.value!r} twice")
        usual = {"metrics": spec.metrics, "batch_tokens": spec.defaults["training"]["batch_tokens"]}
        under = {key: schema.as_node(value, f"task {task.value}") for key, value in usual.items()}
        under |= {key: node for key, node in shared.items() if node is not None}
        data = {"data": merge(under["data"], own["data"], DataConfig)} if {*own} & {*under} & {"data"} else {}
        own = under | own | data
        items, names = [*items, replace(item, value=own)], [*names, name.value or number]  # a missing one is refused
    first = {"task": items[0].value["task"], "data": Node({}, tasks.position)}
    return replace(tree, value=tree.value | first | {"tasks": replace(tasks, value=items)})


def of_task(recipe: Recipe, number: int) -> Recipe:
    """Return the recipe of one of several tasks, as if it stood alone; its head is the one of its name, if any."""
    own = recipe.tasks[number]
    return replace(
        recipe,
        task=own.task,
        data=own.data,
        tasks=(own,),
        network=replace(recipe.network, heads=tuple(head for head in recipe.network.heads if head.name == own.name)),
        objective=() if own.weight == 1 else (ObjectiveConfig(TASKS[own.task].objective, weight=own.weight),),
        training=replace(recipe.training, batch_tokens=own.batch_tokens),
        metrics=own.metrics,
    )


def own_keys(keys: Mapping[str, T], number: int) -> dict[str, T]:
    """What is known of the keys of a recipe, by those of the recipe of one of its tasks."""
    prefix = f"tasks.{number}."
    shared = {key: value for key, value in keys.items() if not key.startswith("tasks.")}
    return shared | {key.removeprefix(prefix): value for key, value in keys.items() if key.startswith(prefix)}


def views(recipe: Recipe, reader: Reader) -> list[tuple[Recipe, Reader]]:
    """Return the recipe of each task, with the positions of its keys; of a recipe with `task`, that one alone."""
    readers = [
        Reader(own_keys(reader.origins, n), own_keys(reader.positions, n), {*own_keys(dict.fromkeys(reader.alone), n)})
        for n in range(len(recipe.tasks))
    ]
    return [(of_task(recipe, number), own) for number, own in enumerate(readers)] or [(recipe, reader)]


def check(recipe: Recipe, reader: Reader) -> None:
    """Refuse what only a recipe with `task` may have, in that of one of several tasks. Raises RecipeError."""
    names = ("classifier", "few_shot", "cache", "new_decoder") if recipe.init is not None else ()
    given = [f"init.{name}" for name in names if getattr(recipe.init, name)] + ["data.folds"] * bool(recipe.data.folds)
    sources = (*recipe.data.train, *recipe.data.valid, *recipe.data.test)
    given += ["data.train.0.memory"] * any(source.memory for source in sources)
    for key in given if recipe.tasks else ():
        raise reader.refused(f"{key} is not for several tasks", key)


def agreed(warnings: Sequence[Sequence[str]]) -> list[str]:
    """The warnings of each task, each of them once; of options of training, those that hold for all tasks."""
    every = dict.fromkeys(warning for own in warnings for warning in own)
    return [one for one in every if ": training." not in one or all(one in own for own in warnings)]
