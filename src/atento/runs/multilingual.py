"""The languages of a multilingual model in a run: new ones, and those that its pairs are in."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from atento.base.errors import AtentoError, RecipeError
from atento.config.reading.loading import LoadedRecipe
from atento.config.reading.task_defaults import has_own_tokenizer
from atento.config.sections.network import NetworkConfig, network_to_dict
from atento.config.tables.tasks import TASKS
from atento.models.initial_model import fine_tuned, with_new_tokens
from atento.models.load import ModelFiles
from atento.runs.fine_tuning import positions_without_effect, with_written_dropout
from atento.tasks.translation_languages import writing_in
from atento.text.new_languages import in_languages
from atento.text.specials import chooses_by_source, languages_of, token_of
from atento.text.tokenizer import Tokenizer

T = TypeVar("T")
_NEW, _SOURCE, _TARGET = "init.new_languages", "data.source_language", "data.target_language"


def tokenizer_of_run(loaded: LoadedRecipe, tokenizer: Tokenizer) -> Tokenizer:
    """Return the tokenizer of an initial model with the languages of the recipe.
    Raises RecipeError: the model has no such languages, or is not told them; with the position in the recipe.
    """
    recipe = loaded.recipe
    if recipe.init is not None and recipe.init.new_languages:
        new = recipe.init.new_languages
        tokenizer = _at(loaded, _NEW, lambda: in_languages(tokenizer, new, None))
    reads, key = recipe.data.source_language, _SOURCE
    if any(map(chooses_by_source, languages_of(tokenizer.specials.ids).values())):
        if reads is not None:
            raise RecipeError(f"{loaded.origins[key]}: `{key}`: this model is told the target language only")
        reads, key = recipe.data.target_language, _TARGET  # such a source begins with the target's token
    if reads is None or not _translates(loaded):
        return tokenizer
    return _at(loaded, key, lambda: in_languages(tokenizer, {}, reads))


def network_of_run(
    loaded: LoadedRecipe, initial: ModelFiles, tokenizer: Tokenizer, report: Callable[[str], None], begins: bool
) -> tuple[ModelFiles, NetworkConfig]:
    """Return the initial model with the rows of new languages, and the network, whose outputs are in the target's.

    Args:
        report: takes a line of the log.
        begins: whether the model is not a checkpoint of the run, which has these rows.

    Raises RecipeError: the model has no such language; with the position in the recipe. Others: as `fine_tuned`.
    """
    recipe = loaded.recipe
    assert recipe.init is not None
    was, languages, ids = initial.network_config, languages_of(tokenizer.specials.ids), tokenizer.specials.ids
    # a checkpoint of the run has its markers already, and a new decoder or another tokenizer its vocabulary
    added = recipe.init.new_decoder or has_own_tokenizer(recipe)
    if begins and was.tokenizer_fingerprint is not None and not added:
        own = tokenizer_of_run(loaded, Tokenizer.load(initial.path, markers=recipe.tokenizer.markers))
        network = network_to_dict(replace(was, tokenizer_fingerprint=own.fingerprint))
        initial = replace(initial, config=initial.config | {"network": network})
    if begins and recipe.init.new_languages:
        rows = {ids[token_of(new, ids)]: ids[token_of(like, ids)] for new, like in recipe.init.new_languages.items()}
        initial = with_new_tokens(initial, rows)
        if recipe.init.train != "all":
            report(f"warning: `init.train` {recipe.init.train} leaves the vectors of new languages as they begin")
    config = fine_tuned(initial, recipe.network, tokenizer, recipe.init)
    config = with_written_dropout(loaded, config)
    for warning in positions_without_effect(loaded, was, config) if begins else ():
        report(f"warning: {warning}")
    if not _translates(loaded) or not config.reads_source:
        return initial, config
    kept = None if was.writing is None else was.writing.first  # the language it wrote before
    config = _at(loaded, _TARGET, lambda: writing_in(config, tokenizer, recipe.data.target_language, kept))
    # the tokens that tell the model the language
    told: set[int | None] = {config.start_id, None if config.writing is None else config.writing.first}
    if any(map(chooses_by_source, languages.values())):  # also the template of the source does
        told = {*tokenizer.template().ids()}
    if begins and languages and told.isdisjoint(ids[token] for token in languages.values()):
        report(f"warning: the model has {len(languages)} languages, and `{_TARGET}` names none of them")
    return initial, config


def _translates(loaded: LoadedRecipe) -> bool:
    return TASKS[loaded.recipe.task].verb == "translate"


def _at(loaded: LoadedRecipe, key: str, make: Callable[[], T]) -> T:
    """Call `make`; an error has the position of a key."""
    try:
        return make()
    except AtentoError as error:
        why = str(error).removeprefix(f"`{key.rpartition('.')[2]}`: ")
        raise RecipeError(f"{loaded.origins[key]}: `{key}`: {why}") from None
