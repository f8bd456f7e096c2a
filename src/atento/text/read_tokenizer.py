"""Read a tokenizer folder, whichever files it has."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from atento.errors import TokenizerError
from atento.text.languages import reading
from atento.text.pipelines import KINDS
from atento.text.released.tokenizer_files import (
    FAMILIES,
    class_tokens,
    family_named,
    names_language,
    read_released,
    template_for,
)
from atento.text.specials import SpecialTokens
from atento.text.templates import Template, template_of
from atento.text.tokenizer_folder import (
    CONFIG,
    DEFINITION,
    as_object,
    as_settings,
    as_text,
    read_file,
    read_settings,
    specials_of,
)
from atento.text.tokenizer_parts import Parts

_KIND_OF_MODEL = {"WordPiece": "wordpiece", "BPE": "bpe", "Unigram": "unigram", "WordLevel": "word"}


def has_tokenizer(directory: Path) -> bool:
    """Whether the folder has a tokenizer file."""
    names = {DEFINITION} | {name for family in FAMILIES.values() for name in family.files}
    return any((directory / name).is_file() for name in names)


def read_tokenizer(directory: Path) -> Parts:
    """Read `tokenizer.json`, of Atento or any in the Hugging Face layout; without one, the files of a released model.

    Raises:
        TokenizerError: there is no tokenizer, or a file is malformed; the message names the file.
        MissingPartError: the files need the package `sentencepiece`, which is not installed.
    """
    if not directory.is_dir():
        raise TokenizerError(f"no tokenizer at {directory}: there is no such folder")
    if not has_tokenizer(directory):
        raise TokenizerError(f"no tokenizer in {directory}: it has no {DEFINITION}")
    files: dict[str, bytes] = {}
    path = directory / DEFINITION
    if not path.is_file():
        config = read_settings(directory, files)
        return reading(replace(read_released(directory, config, files), truncation_side=_truncation_side(config, {})))
    files[DEFINITION] = read_file(path)
    text = as_text(files[DEFINITION], path)
    data = as_object(text, path)
    model = data.get("model")
    if not isinstance(model, dict) or not model.get("vocab"):
        raise TokenizerError(f"{path} must hold a model with a vocabulary")
    config = read_settings(directory, files)
    if implied := class_tokens(directory, config, data):  # stated from here on: a copy may lack the `config.json`
        config |= implied
        files[CONFIG] = (json.dumps(as_settings(files) | implied, ensure_ascii=False, indent=2) + "\n").encode()
    specials = specials_of(data, config, directory)
    try:
        kind, lowercase = _kind(config.get("atento"), model.get("type"))
        native = isinstance(config.get("atento"), dict)
        family = None if native else family_named(directory, config)
        by_settings = family is not None and names_language(family, specials)  # the settings say the language
        template = (
            template_for(str(family), config, specials) if by_settings else template_of(data.get("post_processor"))
        )
        if template is None:
            template = Template() if native else _usual(directory, config, specials)
    except TokenizerError as error:
        raise TokenizerError(f"{directory}: {error}") from None
    side = _truncation_side(config, data)
    return reading(Parts(text, kind, specials, lowercase, native, files, template, family=family, truncation_side=side))


def _truncation_side(config: Mapping[str, object], definition: Mapping[str, object]) -> Literal["right", "left"]:
    """The side at which long texts are cut: of the settings, else of the `truncation` of `tokenizer.json`."""
    cut = definition.get("truncation")
    stated = config.get("truncation_side") or (cut.get("direction") if isinstance(cut, dict) else None)
    return "left" if str(stated).lower() == "left" else "right"


def _kind(ours: object, model_type: object) -> tuple[str, bool]:
    """The kind, and whether text is lower-cased, as files of Atento declare it."""
    if not isinstance(ours, dict):
        if not isinstance(model_type, str) or model_type not in _KIND_OF_MODEL:
            raise TokenizerError(f"unknown model type {model_type!r}")
        return _KIND_OF_MODEL[model_type], False
    kind, lowercase = ours.get("kind"), ours.get("lowercase")
    if not isinstance(kind, str) or kind not in KINDS or not isinstance(lowercase, bool):
        raise TokenizerError(f"`atento` must name a kind and `lowercase`: got {ours!r}")
    if KINDS[kind].model != model_type:
        raise TokenizerError(f"a {kind} tokenizer must have a {KINDS[kind].model} model: got {model_type!r}")
    return kind, lowercase


def _usual(directory: Path, config: dict[str, object], specials: SpecialTokens) -> Template:
    """The template of the family, if `tokenizer.json` has none; no special tokens for an unknown family."""
    name = family_named(directory, config)
    if name is None:
        return Template()
    try:
        return template_for(name, config, specials)
    except TokenizerError:  # it has no such tokens
        return Template()
