"""Rules between scheduled sampling and the objectives of a recipe."""

from atento.config.reading.schema import Reader
from atento.config.recipe import Recipe
from atento.config.tables.objective import OBJECTIVES
from atento.config.tables.tasks import objectives_of
from atento.errors import RecipeError


def check_sampling(recipe: Recipe, reader: Reader) -> None:
    """Refuse scheduled sampling for an objective without a decoder that is taught."""
    share = recipe.training.scheduled_sampling.share
    for objective in objectives_of(recipe.task, recipe.objective) if share else ():
        if not OBJECTIVES[objective.kind].teacher_forced:
            position = reader.origins.get("training.scheduled_sampling.share", "training.scheduled_sampling")
            raise RecipeError(
                f"{position}: training.scheduled_sampling is for objectives whose decoder reads the tokens that it "
                f"learns to predict, and {objective.kind} has none: got share {share:g}"
            )
