"""What the keys of a recipe say of its records and of its tokenizer."""

from atento.config.recipe import Recipe
from atento.config.tables.objective import OBJECTIVES
from atento.config.tables.tasks import TASKS, objectives_of


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
