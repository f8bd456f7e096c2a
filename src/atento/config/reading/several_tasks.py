"""Recipes of several tasks over one encoder: `tasks` as it is written, and each of its items as a recipe. No torch."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from atento.config.reading import schema
from atento.config.reading.checks import known_task
from atento.config.reading.recipe_layers import merge
from atento.config.reading.schema import Reader
from atento.config.reading.yaml12 import Node
from atento.config.recipe import DataConfig, Recipe
from atento.config.tables.objective import ObjectiveConfig
from atento.config.tables.tasks import TASKS
from atento.errors import RecipeError

T = TypeVar("T")
_FORM = "each with `name`, `task` and `data`"
_BESIDE = {  # keys of a recipe with `task` -> why they do not stand beside `tasks`
    "task": "`task` trains one head and `tasks` several, so leave one of the two out",
    "metrics": "each of them has its own `metrics`",
    **dict.fromkeys(("objective", "teacher", "embedding"), "it is for a recipe with `task`"),
}


def expanded(tree: Node) -> Node:
    """Return a recipe with `tasks` in the form of its sections; one with `task` is unchanged.

    Each task gets the keys of the recipe's `data` that it does not write, and its usual metrics. `task` is the first.
    Raises RecipeError: fewer than two tasks, two of one name, a task that has no head for an encoder, or `task` too.
    """
    tasks = tree.value.get("tasks")
    if tasks is None or tasks.value in (None, []):
        return tree
    for key, why in _BESIDE.items():
        if (beside := tree.value.get(key)) is not None and beside.value not in (None, []):
            raise RecipeError(f"{beside.key_position or beside.position}: {key} stands beside tasks: {why}")
    if not isinstance(tasks.value, list) or len(tasks.value) < 2:
        raise RecipeError(f"{tasks.position}: tasks must list two or more, {_FORM}: got {schema.as_text(tasks.value)}")
    data, items, names = tree.value.get("data"), list[Node](), set[object]()
    joining = ", ".join(name for name, spec in TASKS.items() if spec.joins_others)
    for number, item in enumerate(tasks.value):
        if not isinstance(item.value, dict):
            raise RecipeError(f"{item.position}: tasks.{number} must be a mapping: tasks are listed {_FORM}")
        name, task = item.value.get("name"), known_task(item.value.get("task"), item.position, f"tasks.{number}.task")
        if not TASKS[task].joins_others:
            raise RecipeError(
                f"{item.value['task'].position}: tasks.{number}.task must label or rate texts or tag words, one of "
                f"{joining}: got {task}, which has no such head"
            )
        if name is not None and name.value in names:
            raise RecipeError(f"{name.position}: tasks must have different names: got {name.value!r} twice")
        names |= set() if name is None or isinstance(name.value, list | dict) else {name.value}
        own = dict(item.value)
        if data is not None:
            own["data"] = merge(data, own["data"], DataConfig) if "data" in own else data
        own.setdefault("metrics", schema.as_node(TASKS[task].metrics, f"task {task}"))
        items.append(replace(item, value=own))
    first = {"task": items[0].value["task"], "data": Node({}, tasks.position)}
    return replace(tree, value=tree.value | first | {"tasks": replace(tasks, value=items)})


def of_task(recipe: Recipe, number: int) -> Recipe:
    """Return the recipe of one of several tasks, as if it stood alone; its head is the one of its name, if any."""
    own = recipe.tasks[number]
    spec = TASKS[own.task]
    training = replace(recipe.training, batch_tokens=own.batch_tokens or spec.defaults["training"]["batch_tokens"])
    heads = tuple(head for head in recipe.network.heads if head.name == own.name)
    return replace(
        recipe,
        task=own.task,
        data=own.data,
        tasks=(own,),
        network=replace(recipe.network, heads=heads),
        objective=() if own.weight == 1 else (ObjectiveConfig(spec.objective, weight=own.weight),),
        training=training,
        metrics=own.metrics,
    )


def own_keys(keys: Mapping[str, T], number: int) -> dict[str, T]:
    """What is known of the keys of a recipe, by those of the recipe of one of its tasks."""
    prefix = f"tasks.{number}."
    shared = {key: value for key, value in keys.items() if not key.startswith("tasks.")}
    return shared | {key.removeprefix(prefix): value for key, value in keys.items() if key.startswith(prefix)}


def views(recipe: Recipe, reader: Reader) -> list[tuple[Recipe, Reader]]:
    """Return the recipe of each task, with the positions of its keys; of a recipe with `task`, that one alone."""
    if not recipe.tasks:
        return [(recipe, reader)]
    readers = [
        Reader(
            own_keys(reader.origins, n), own_keys(reader.positions, n), set(own_keys(dict.fromkeys(reader.alone), n))
        )
        for n in range(len(recipe.tasks))
    ]
    return [(of_task(recipe, number), own) for number, own in enumerate(readers)]


def check(recipe: Recipe, reader: Reader, check_one: Callable[[Recipe, Reader], None]) -> None:
    """Check the rules between keys for each task by `check_one`, and those that several tasks add.
    Raises RecipeError: with the position, the name of the task, the key and the rule.
    """
    for one, own in views(recipe, reader):
        try:
            check_one(one, own)
            for key, given in _of_one_task(one) if one.head else ():
                if given:
                    raise RecipeError(f"{own.origins.get(key, own.positions.get(key, key))}: {key} is for one task")
        except RecipeError as error:
            position, _, rule = str(error).partition(": ")
            raise RecipeError(f"{position}: task {one.head!r}: {rule}" if one.head else str(error)) from None


def _of_one_task(recipe: Recipe) -> Iterator[tuple[str, object]]:
    """Yield the keys that only a recipe with `task` may have, and whether they are given."""
    for name in ("classifier", "few_shot", "cache", "new_decoder"):
        yield f"init.{name}", recipe.init is not None and getattr(recipe.init, name)
    yield "data.folds", recipe.data.folds
    for split in ("train", "valid", "test"):
        yield f"data.{split}.0.memory", any(source.memory for source in getattr(recipe.data, split))


def doubtful(recipe: Recipe, reader: Reader, of_one: Callable[[Recipe, Reader], list[str]]) -> list[str]:
    """Return a warning for each option that has no effect or an unlikely value; of training, in all tasks."""
    parts = views(recipe, reader)
    counts = Counter(warning for part in parts for warning in dict.fromkeys(of_one(*part)))
    written = reader.origins.get("training.batch_tokens", "task ")
    own = "" if not recipe.tasks or written.startswith("task ") else f"{written}: training.batch_tokens has no effect"
    own_budgets = [f"{own}: each of tasks has `batch_tokens`"] if own else []
    return own_budgets + [one for one, count in counts.items() if count == len(parts) or ": training." not in one]
