"""The preview of a mixture of sources: the share and the epochs of each, before training."""

from collections.abc import Iterator

from atento.config.reading.loading import LoadedRecipe
from atento.config.reading.sizes_by_data import FITTED
from atento.config.recipe import Recipe
from atento.data.batches.batch import Batches
from atento.data.batches.mixture import Mixture
from atento.data.records.splits import Split
from atento.runs.prepare import Report, fitted_to, network_for, steps_of, tokenizer_and_network, training_batches
from atento.text.tokenizer import Tokenizer


def mixed_sources(batches: Batches, train: Split, recipe: Recipe, steps: int) -> list[dict[str, object]]:
    """Return what a run of `steps` updates reads of each source; empty if the sources are not mixed.

    Returns:
        For each source its name ("source"), number of records, target tokens of an epoch ("targets"), share of the
        target tokens of the run ("share"), and how often it is read ("epochs"). With several objectives, "targets" are
        those of the first one.
    """
    if recipe.data.mixing.concatenates or not isinstance(batches, Mixture) or batches.sources == 1:
        return []
    # members stand source by source, one for each objective
    expected, each = batches.expected(steps), len(batches.members) // batches.sources
    return [
        {
            "source": name,
            "records": count,
            "targets": batches.members[number * each].targets,
            "share": sum(share for share, _ in expected[number * each : (number + 1) * each]),
            "epochs": sum(epochs for _, epochs in expected[number * each : (number + 1) * each]),
        }
        for number, (name, count) in enumerate(train.sources)
    ]


def planned_sources(loaded: LoadedRecipe, train: Split, tokenizer: Tokenizer) -> list[dict[str, object]]:
    """Return the same for a recipe before a run; steps that the recipe leaves open are those that training chooses."""
    recipe = loaded.recipe
    if loaded.origins.get("training.steps") == FITTED:
        recipe, _ = fitted_to(recipe, ["training.steps"], train)
    if recipe.init is None:
        network = network_for(recipe, tokenizer, train)
    else:
        _, network = tokenizer_and_network(loaded, train, lambda line: None)
    batches = training_batches(recipe, network, tokenizer, train, lambda line: None)
    return mixed_sources(batches, train, recipe, steps_of(recipe.training, batches))


def report_mixing(batches: Batches, train: Split, recipe: Recipe, steps: int, report: Report) -> None:
    """Report the preview of a run of `steps` updates, a line for each source; nothing if the sources are not mixed."""
    for line in mixing_lines(mixed_sources(batches, train, recipe, steps)):
        report(line)


def mixing_lines(sources: list[dict[str, object]]) -> Iterator[str]:
    """Yield a line for each source."""
    for source in sources:
        yield (
            f"mixing: {source['source']}: {source['share']:.1%} of the target tokens, {source['epochs']:.3g} epochs of "
            f"{source['targets']:,} ({source['records']:,} records)"
        )
