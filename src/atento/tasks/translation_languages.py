"""The languages of a translation by a multilingual model: the special tokens of its source, and its first token."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from atento.base.errors import CapabilityError
from atento.config.sections.decoding import DecodingOptions
from atento.config.sections.network import NetworkConfig, changed
from atento.config.sections.network_parts import WritingConfig
from atento.data.batches.special_tokens import WITH_SOURCE, begin_of_outputs, special_tokens_of
from atento.tasks.task_model import TaskModel, tokenizer_of
from atento.text.glossary import GlossaryLike
from atento.text.specials import Template, chooses_by_source, languages_of, token_of
from atento.text.tokenizer import Tokenizer

LANGUAGES = ("source_language", "target_language")


class LanguageOptions(DecodingOptions, total=False):
    """The options of decoding, and the languages of a multilingual model."""

    source_language: str | None
    target_language: str | None


class EvaluationOptions(LanguageOptions, total=False):
    """The options of an evaluation: those, and the name of a head, of a model that has several."""

    head: str | None


class TranslationOptions(LanguageOptions, total=False):
    """The options of `Model.translate`: also what is kept."""

    glossary: GlossaryLike | None
    protect: bool


def in_languages(model: TaskModel, options: Mapping[str, Any]) -> tuple[Template | None, DecodingOptions]:
    """The special tokens of a source in the language that the options name, and the options of decoding.

    Returns:
        The special tokens, None if no language is named; the options without languages, and with the token of the
        target language as the first of each output.

    Raises CapabilityError: the model has no languages, or does not choose this one. TokenizerError: an unknown
    language; suggests one.
    """
    decoding: Any = {key: value for key, value in options.items() if key not in LANGUAGES}
    source, target = options.get("source_language"), options.get("target_language")
    if source is None and target is None:
        return None, decoding
    config, tokenizer = model.network.config, tokenizer_of(model)
    languages = languages_of(tokenizer.specials.ids)
    if not languages or config.architecture not in WITH_SOURCE:
        named = LANGUAGES[source is None]
        raise CapabilityError(f"`{named}`: this model is not multilingual: its tokenizer has no tokens of languages")
    ids = tokenizer.specials.ids
    source_token = None if source is None else token_of(source, ids, LANGUAGES[0])
    target_token = None if target is None else token_of(target, ids, LANGUAGES[1])
    template, of_languages = special_tokens_of(config, tokenizer), {ids[token] for token in languages.values()}
    if any(chooses_by_source(token) for token in languages.values()):
        if source_token is not None or target_token is None:
            raise CapabilityError("`source_language`: this model is told the target language only")
        return template.in_language(ids[target_token], of_languages), decoding
    if source_token is not None:
        template = template.in_language(ids[source_token], of_languages)
    if target_token is not None and template.single[-1][0] in of_languages:  # mBART's first version
        if config.start_id != ids[target_token]:
            first = next((name for name, token in languages.items() if ids[token] == config.start_id), "one language")
            raise CapabilityError(f"`target_language`: this model begins every output with {first}: got {target!r}")
        target_token = None
    return template, decoding if target_token is None else decoding | {"forced_bos": target_token}


def begin_in(model: TaskModel, options: Mapping[str, Any]) -> tuple[int, ...]:
    """The ids that outputs begin with: the target language of the options, or what the network has."""
    token = in_languages(model, options)[1].get("forced_bos")
    number = None if token is None else tokenizer_of(model).target.token_id(token)
    return begin_of_outputs(model.network.config) if number is None else (number,)


def writing_in(config: NetworkConfig, tokenizer: Tokenizer, language: str | None, kept: int | None) -> NetworkConfig:
    """The network whose outputs begin with a language.

    Args:
        language: the name of the language; None: as `kept` says.
        kept: the first token of outputs until now, which stays if it is a language.

    Raises TokenizerError: the language is unknown; suggests one. CapabilityError: the model has no languages.
    """
    languages, ids = languages_of(tokenizer.specials.ids), tokenizer.specials.ids
    if language is None:
        first = kept if kept in {ids[token] for token in languages.values()} else None
    elif not languages:
        raise CapabilityError("`target_language`: this model is not multilingual: its tokenizer has no languages")
    else:
        first = ids[token_of(language, ids, LANGUAGES[1])]
    if first is None or any(map(chooses_by_source, languages.values())):
        return config
    if tokenizer.template().single[-1][0] in {ids[token] for token in languages.values()}:  # mBART's first version
        return changed(config, ids={"start": first})
    return changed(config, writing=replace(config.writing or WritingConfig(), first=first))
