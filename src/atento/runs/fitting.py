"""The keys that a recipe leaves open, chosen by the amount of training text."""

from collections.abc import Sequence

from atento.config.reading.fitting import fitted
from atento.config.recipe import Recipe
from atento.config.tables.tasks import TASKS
from atento.data.records.reader import Split


def fitted_to(recipe: Recipe, keys: Sequence[str], train: Split) -> tuple[Recipe, str]:
    """Return the recipe with these keys chosen for its training records, and a sentence about the choice."""
    lengths = train.characters()
    targets = lengths.get("target", lengths.get("text", lengths.get("tokens", 0)))
    examples = None if TASKS[recipe.task].targets in ("tokens", "words") else len(train)
    return fitted(recipe, list(keys), sum(lengths.values()), targets, examples)
