"""The tokenizer of a run: trained, loaded, of the initial model or a checkpoint; one for each side, or one for both."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from atento.config.recipe import Recipe
from atento.config.tables.objective import OBJECTIVES
from atento.config.tables.tasks import TASKS, objectives_of
from atento.data.records.splits import Split
from atento.models.initial_model import encoder_of
from atento.models.load import check_tokenizer
from atento.text.specials import sentinels
from atento.text.tokenizer import Tokenizer
from atento.text.tokenizer_training import train_tokenizer

Report = Callable[[str], None]


def tokenizer_for(recipe: Recipe, folder: Path, texts: Iterable[str], report: Report) -> Tokenizer:
    """Return the tokenizer of the recipe: loaded from its `path`, or trained on the training text."""
    config = recipe.tokenizer
    if config.path is not None:
        return Tokenizer.load(folder / config.path, markers=config.markers)
    count = max(OBJECTIVES[objective.kind].sentinels for objective in objectives_of(recipe.task, recipe.objective))
    tokenizer = train_tokenizer(config, texts, extra_specials=sentinels(count), markers=config.markers)
    report(f"tokenizer: {config.kind}, {tokenizer.vocab_size:,} pieces")
    return tokenizer


def new_tokenizer(recipe: Recipe, folder: Path, train: Split, report: Report) -> Tokenizer:
    """Return the tokenizer of a new run: of the store of its texts, or as `tokenizer_for` makes it."""
    if train.tokens is not None:
        return Tokenizer.load(train.tokens.folder / "tokenizer")
    return tokenizer_of_columns(recipe, folder, train.texts, report)


def tokenizer_of_init(
    recipe: Recipe, folder: Path, initial: Path, texts: Callable[[Sequence[str]], Iterable[str]], report: Report
) -> Tokenizer:
    """Return the tokenizer of the initial model; where its decoder is new, with one for targets, trained on theirs.

    Args:
        recipe: the recipe, with `init`.
        folder: of the recipe.
        initial: the folder of the model.
        texts: returns the training texts of some columns.
        report: receives a line about a tokenizer that is trained.
    """
    tokenizer = Tokenizer.load(initial, markers=recipe.tokenizer.markers)
    if recipe.init is None or not recipe.init.new_decoder:
        return tokenizer
    return tokenizer.with_target(tokenizer_for(recipe, folder, texts(["target"]), report))


def tokenizer_of_columns(
    recipe: Recipe, folder: Path, texts: Callable[[Sequence[str]], Iterable[str]], report: Report
) -> Tokenizer:
    """Return the tokenizer of the text columns of the task: one for all, or that of sources with that of targets.

    Args:
        folder: of the recipe.
        texts: returns the training texts of some columns.
        report: receives a line about each tokenizer that is trained.
    """
    columns, features = TASKS[recipe.task].texts, recipe.network.features
    if features is not None:  # a trained encoder reads the sources
        encoder = encoder_of(features, folder)
        reads = Tokenizer.load(encoder.path, markers=recipe.tokenizer.markers)
        check_tokenizer(reads, encoder.network_config, encoder.path)
        return reads.with_target(tokenizer_for(recipe, folder, texts(["target"]), report))
    if recipe.tokenizer.shared or recipe.tokenizer.path is not None:
        return tokenizer_for(recipe, folder, texts(columns), report)
    sides = []
    for name in columns:
        report(f"tokenizer of the {name}s:")
        sides.append(tokenizer_for(recipe, folder, texts([name]), report))
    source, target = sides
    return source.with_target(target)
