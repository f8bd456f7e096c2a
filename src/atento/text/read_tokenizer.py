"""Read a tokenizer folder, whichever files it has; its language; markers, special tokens that texts may spell."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from atento.base.errors import TokenizerError, nearest
from atento.text.kinds import KINDS
from atento.text.released.families import Part, Sources, class_rules, ignored_keys, stated_tokens
from atento.text.released.tokenizer_files import (
    FAMILIES,
    class_named,
    class_settings,
    family_named,
    names_language,
    released_parts,
    template_for,
    with_segments,
)
from atento.text.specials import SpecialTokens, Template, languages_of, template_of, token_of
from atento.text.tokenizer_folder import (
    CONFIG,
    DEFINITION,
    EXTRA,
    Parts,
    as_object,
    as_settings,
    as_text,
    read_file,
    read_settings,
    special_strings,
    specials_of,
    vocabulary_of,
)

ADDED = "added_tokens.json"
READS = "language"
"""Key of `tokenizer_config.json`, ours: the language whose token a source has, by name; it wins over `src_lang`."""
MARKERS = "markers"
"""Key of `tokenizer_config.json`: the tokens that texts may spell."""
TARGET = "target_"  # the files of a target side begin with it, where Atento trained a tokenizer for each side
_KIND_OF_MODEL = {"WordPiece": "wordpiece", "BPE": "bpe", "Unigram": "unigram", "WordLevel": "word"}


def has_tokenizer(directory: Path) -> bool:
    """Whether the folder has a tokenizer file."""
    names = {DEFINITION} | {name for family in FAMILIES.values() for name in family.files}
    return any((directory / name).is_file() for name in names)


def read_tokenizer(directory: Path, side: str = "", *, by_class: bool = True) -> Parts:
    """Read `tokenizer.json`, of Atento or any in the Hugging Face layout; without one, the files of a released model.

    Args:
        directory: the folder.
        side: what the names of the files begin with, `TARGET` for those of a target side.
        by_class: whether the class of the settings sets rules of `tokenizer.json`, as in transformers.

    Raises:
        TokenizerError: there is no tokenizer, or a file is malformed; the message names the file.
        MissingPartError: the files need the package `sentencepiece`, which is not installed.
    """
    if not directory.is_dir():
        raise TokenizerError(f"no tokenizer at {directory}: there is no such folder")
    if not has_tokenizer(directory):
        raise TokenizerError(f"no tokenizer in {directory}: it has no {DEFINITION}")
    files: dict[str, bytes] = {}
    path = directory / f"{side}{DEFINITION}"
    if not path.is_file():
        config = read_settings(directory, files)
        parts = replace(released_parts(directory, config, files), truncation_side=_truncation_side(config, {}))
        return _with_target_of(directory, reading(parts))
    files[DEFINITION] = read_file(path)
    text = as_text(files[DEFINITION], path)
    data = as_object(text, path)
    model = data.get("model")
    if not isinstance(model, dict) or not model.get("vocab"):
        raise TokenizerError(f"{path} must hold a model with a vocabulary")
    if "type" not in model:
        # files of the library's first versions: those of gpt2, roberta-base
        pieces = "WordPiece" if "max_input_chars_per_word" in model else "WordLevel"
        model["type"] = "Unigram" if isinstance(model["vocab"], list) else "BPE" if "merges" in model else pieces
        text = json.dumps(data)
    config = read_settings(directory, files, side)
    if implied := class_settings(directory, config, data):  # stated from here on: a copy may lack the `config.json`
        config |= implied
        files[CONFIG] = (json.dumps(as_settings(files) | implied, ensure_ascii=False, indent=2) + "\n").encode()
    added = _added(directory, config, data, files) if by_class else []
    data |= {"added_tokens": [*_listed(data), *added]} if added else {}
    specials = specials_of(data, config, directory)
    native = isinstance(config.get("atento"), dict)
    named = (class_named(directory, config, data) if by_class else None) or ""
    try:
        kind, lowercase = _kind(config.get("atento"), model.get("type"))
        template, stated = _template(named, config, data, specials)
    except TokenizerError as error:
        raise TokenizerError(f"{directory}: {error}") from None
    rules = class_rules(named, Sources(directory, config, {}), data)
    if rules or added:
        text = json.dumps(data | rules, ensure_ascii=False)
        files[DEFINITION] = text.encode()  # a copy has one rule
    other = [*rules, *(() if stated in (None, template) else ("post_processor",))]
    tokens = [f"{DEFINITION}: {token['content']!r} (a token by {CONFIG} or {ADDED})" for token in added]
    overruled = tokens + [f"{DEFINITION}: {part} (the class and the keys of {CONFIG} hold)" for part in other]
    overruled += [f"{CONFIG}: {key} ({DEFINITION} holds)" for key in ignored_keys(config, data | rules, template)]
    if not with_segments(directory, config):
        single, pair = (tuple((content, 0) for content, _ in slots) for slots in (template.single, template.pair))
        template = Template(single, pair)
    family = None if native else family_named(directory, config)
    cut = _truncation_side(config, data)
    parts = Parts(text, kind, specials, lowercase, native, files, template, family=family, truncation_side=cut)
    parts = reading(replace(parts, overruled=() if native else tuple(overruled)))
    return parts if side else _with_target_of(directory, parts)


def _with_target_of(directory: Path, parts: Parts) -> Parts:
    """The tokenizer with that of targets, if the folder has one."""
    if not (directory / f"{TARGET}{DEFINITION}").is_file():
        return parts
    return with_target(parts, with_markers(read_tokenizer(directory, TARGET)))


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


def _added(directory: Path, config: dict[str, object], data: Part, files: dict[str, bytes]) -> list[dict[str, object]]:
    """The tokens that the other files add to those of `tokenizer.json`."""
    if (directory / ADDED).is_file() and "added_tokens_decoder" not in config:
        files[ADDED] = read_file(directory / ADDED)
    ids, names = vocabulary_of(data["model"], directory), ("lstrip", "rstrip", "single_word", "normalized", "special")
    known = {str(token.get("content")) for token in _listed(data) if isinstance(token, dict)}
    stated = sorted(stated_tokens(Sources(directory, config, files)).items())
    return [
        {"id": ids.get(token.content, number), "content": token.content}
        | {name: getattr(token, name) for name in names}
        for number, token in stated
        if token.content not in known
    ]


def _listed(data: Part) -> list[object]:
    listed = data.get("added_tokens")
    return listed if isinstance(listed, list) else []


def _template(
    named: str, config: dict[str, object], data: Part, specials: SpecialTokens
) -> tuple[Template, Template | None]:
    """The template of the class, if it has one of its own, else that of `tokenizer.json`; and the latter."""
    stated = template_of(data.get("post_processor"))
    own = FAMILIES[named].template if named in FAMILIES else "none"
    if own not in ("flags", "none") and not (named == "albert" and data.get("post_processor")):
        try:
            return template_for(named, config, specials), stated
        except TokenizerError:  # it has no such tokens
            if names_language(named, specials):
                raise
    return stated or Template(), stated


def reading(parts: Parts) -> Parts:
    """A tokenizer whose template has the language that its settings name. Raises TokenizerError: it is unknown."""
    name, ids = as_settings(parts.files).get(READS), parts.specials.ids
    if name is None:
        return parts
    numbers = {ids[token] for token in languages_of(ids).values()}
    return replace(parts, template=parts.template.in_language(ids[token_of(str(name), ids)], numbers))


def with_target(source: Parts, target: Parts) -> Parts:
    """A tokenizer of sources with another one for targets, which has files of its own in the same folder."""
    beside = {f"{TARGET}{name}": content for name, content in target.files.items()}
    return replace(source, target=target, files={**source.files, **beside})


def with_markers(parts: Parts, markers: Sequence[str] = ()) -> Parts:
    """A tokenizer in which some special tokens are ordinary ones: a text that spells them has their ids.

    Args:
        parts: the tokenizer. Markers that its files name are let in.
        markers: further ones, which its files name from here on.

    Raises:
        TokenizerError: the tokenizer has no such token, needs it as a special one, or runs SentencePiece.
    """
    stated = as_settings(parts.files).get(MARKERS, [])
    if not isinstance(stated, list) or not all(isinstance(text, str) for text in stated):
        raise TokenizerError(f"`{MARKERS}` of {CONFIG} must be a list of tokens: got {stated!r}")
    names = tuple(dict.fromkeys((*stated, *markers)))
    if not names:
        return parts
    if parts.backend is not None:
        raise TokenizerError(f"`{MARKERS}` are for tokenizers that do not run SentencePiece: got {', '.join(names)}")
    data, ids = json.loads(parts.definition), parts.specials.ids
    added = {token["content"]: token for token in data.get("added_tokens") or []}
    needed = {*parts.specials.roles.values(), *(text for text in ids if ids[text] in parts.template.ids())}
    for text in names:
        if text not in added:
            raise TokenizerError(f"`{MARKERS}`: the tokenizer has no token {text!r}{nearest(text, list(added))}")
        if text in needed:
            raise TokenizerError(
                f"`{MARKERS}`: {text!r} has a role of its own (padding, unknown, mask, or around a text)"
            )
        added[text]["special"] = False
    specials = SpecialTokens(parts.specials.roles, {text: ids[text] for text in ids if text not in names})
    definition, config, files = json.dumps(data, ensure_ascii=False), as_settings(parts.files), dict(parts.files)
    if parts.native:  # whose settings keep special tokens out of texts in `transformers` too
        config = {key: value for key, value in config.items() if key != EXTRA} | special_strings(specials)
        files[DEFINITION] = definition.encode("utf-8")
    files[CONFIG] = (json.dumps(config | {MARKERS: names}, ensure_ascii=False, indent=2) + "\n").encode("utf-8")
    return replace(parts, definition=definition, specials=specials, files=files, markers=names)


def spelled(specials: SpecialTokens, texts: Iterable[str]) -> Counter[str]:
    """How many texts spell each special token; such a text is read as if it were an ordinary word."""
    names, heads, found = list(specials.ids), {text[0] for text in specials.ids if text}, Counter[str]()
    for text in texts:
        if any(head in text for head in heads):
            found.update(name for name in names if name in text)
    return found


def without_spelled(text: str, markers: Sequence[str]) -> str:
    """The text without markers, which are no words that a tokenizer learns."""
    for marker in markers:
        text = text.replace(marker, " ")
    return text
