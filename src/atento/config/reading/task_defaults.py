"""What a task says of a recipe: the form of its records, the defaults, and the heads that its objectives need."""

from collections.abc import Mapping
from dataclasses import replace

from atento.config.presets import PRESETS
from atento.config.reading.yaml12 import Node
from atento.config.recipe import Recipe
from atento.config.tables.head_kinds import new_head
from atento.config.tables.objective import OBJECTIVES
from atento.config.tables.tasks import TASKS, objectives_of


def with_defaults(tree: Node) -> Node:
    """Return the recipe with the defaults of its task for keys that are not written; their position is `task NAME`."""
    task = tree.value["task"].value
    if not isinstance(task, str):  # reading it later raises the error
        return tree
    defaults = dict(TASKS[task].defaults)
    network = tree.value.get("network")
    value = None if network is None else network.value
    named = isinstance(value, str) or (isinstance(value, dict) and not {"preset", "architecture"}.isdisjoint(value))
    if network is not None and named:
        network_defaults = defaults.pop("network", {})  # a named network is used as it is ...
        name = network if isinstance(network.value, str) else network.value.get("preset")
        preset = PRESETS[name.value]() if name and isinstance(name.value, str) and name.value in PRESETS else None
        fits = preset and not preset.heads and preset.architecture in TASKS[task].architectures
        if fits and "heads" in network_defaults:
            defaults["network"] = {"heads": network_defaults["heads"]}  # ... with the heads that the task needs
            if name is network:
                tree = replace(tree, value=tree.value | {"network": replace(network, value={"preset": network})})
    return _fill(tree, defaults, f"task {task}")


def with_objective_heads(recipe: Recipe, *, written: bool) -> Recipe:
    """Return the recipe with the heads that its objectives need in its encoder, so that its run folder names them.

    Args:
        recipe: the recipe.
        written: whether it names heads itself; otherwise the task's default heads that no objective trains are removed.
    """
    network = recipe.network
    if recipe.init is not None or network.architecture != "encoder":
        return recipe
    objectives = objectives_of(recipe.task, recipe.objective)
    needed = {kind for objective in objectives for kind in OBJECTIVES[objective.kind].heads}
    # heads that nobody wrote stay only where they are needed
    heads = [head for head in network.heads if written or head.kind in needed]
    present: set[str] = {head.kind for head in heads}
    for objective in objectives:
        for kind in OBJECTIVES[objective.kind].heads:
            if kind not in present:
                heads.append(new_head(kind))
                present.add(kind)
    return replace(recipe, network=replace(network, heads=tuple(heads)))


def _fill(node: Node, defaults: Mapping[str, object], position: str) -> Node:
    children = dict(node.value or {})
    for key, value in defaults.items():
        child = children.get(key)
        if child is None:
            children[key] = _written(value, position)
        elif isinstance(value, Mapping) and (child.value is None or isinstance(child.value, dict)):  # `network:` alone
            children[key] = _fill(child, value, position)
    return replace(node, value=children)


def _written(value: object, position: str) -> Node:
    if isinstance(value, Mapping):
        value = {key: _written(child, position) for key, child in value.items()}
    elif isinstance(value, list):
        value = [_written(child, position) for child in value]
    return Node(value, position, key_position=position)


def task_of_records(recipe: Recipe, split: str) -> str:
    """Return the task whose form the records of a split have: its own; of training for vectors by objectives that read
    texts alone (simcse, tsdae), the first one that reads texts.
    """
    read = [OBJECTIVES[objective.kind].fields for objective in objectives_of(recipe.task, recipe.objective)]
    alone = TASKS[recipe.task].vectors and split == "train" and all(fields == (("text",),) for fields in read)
    return next(name for name, spec in TASKS.items() if spec.columns == ("text",)) if alone else recipe.task


def counted_targets(recipe: Recipe) -> str:
    """Return what an update counts, in messages: the targets of the task, or texts where training reads these alone."""
    return TASKS[recipe.task].targets if task_of_records(recipe, "train") == recipe.task else "texts"


def has_own_tokenizer(recipe: Recipe) -> bool:
    """Whether the tokenizer of a recipe is that of its section `tokenizer`, not that of an initial model."""
    return recipe.init is None or recipe.init.tokenizer == "own"
