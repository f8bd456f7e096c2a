"""Rules between the mixing of sources and other keys of a recipe."""

from collections.abc import Iterator

from atento.config.reading.schema import Reader
from atento.config.recipe import Recipe
from atento.errors import RecipeError, counted


def check_mixing(recipe: Recipe, reader: Reader) -> None:
    """Refuse weights for another number of sources than there are, and weights that change over unknown steps."""
    mixing, sources = recipe.data.mixing, len(recipe.data.train)
    given = [("weights", mixing.weights)] if mixing.weights else [("points", point.weights) for point in mixing.points]
    for key, weights in given:
        if len(weights) != sources:
            position = reader.positions.get(f"data.mixing.{key}", "data.mixing")
            raise RecipeError(
                f"{position}: data.mixing.{key} needs a weight for each of the {counted(sources, 'source')} of "
                f"data.train: got {counted(len(weights), 'weight')}"
            )
    if mixing.points and recipe.training.epochs is not None:
        position = reader.positions.get("data.mixing.points", "data.mixing")
        raise RecipeError(
            f"{position}: data.mixing.points are shares of the updates, so training.steps must say how many there are: "
            f"got training.epochs {recipe.training.epochs:g}"
        )


def mixing_warnings(recipe: Recipe, written: dict[str, str]) -> Iterator[str]:
    """Yield a warning for the mixing of one source; `written` has the position of each key that is not a default."""
    keys = [key for key in written if key.startswith("data.mixing.")]
    if keys and len(recipe.data.train) == 1 and not recipe.data.mixing.concatenates:
        yield f"{written[keys[0]]}: data.mixing has no effect: data.train is one source"
