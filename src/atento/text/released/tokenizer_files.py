"""Read tokenizers of released models without `tokenizer.json`: the family of a folder, and its files.

`families.py` and `sentencepiece_families.py` build those of the library `tokenizers`, `sentencepiece_ids.py` those that
run SentencePiece.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from atento.base.errors import TokenizerError
from atento.text.kinds import SPACE
from atento.text.released import families, sentencepiece_families, sentencepiece_ids
from atento.text.specials import SpecialTokens, Template, languages_of, template_named
from atento.text.tokenizer_folder import (
    CONFIG,
    Parts,
    as_object,
    as_settings,
    as_text,
    read_file,
    specials_of,
    token_text,
)

Build = Callable[[families.Sources], families.Built]
Read = Callable[[families.Sources, sentencepiece_ids.TemplateOf], Parts]

_ANGLES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
_ENDED = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
_SQUARE = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")}
_BOUNDS = {"bos_token": "[CLS]", "eos_token": "[SEP]"}
_GEMMA = {f"{role}_token": f"<{role}>" for role in ("pad", "unk", "bos", "eos", "mask")}
_GPT2 = dict.fromkeys(("unk_token", "bos_token", "eos_token"), "<|endoftext|>")
_ALBERT = _SQUARE | _BOUNDS | {"unk_token": "<unk>", "pad_token": "<pad>"}
_M2M, _WITH_BOS = _ANGLES | {"pad_token": "<pad>"}, {"add_bos_token": True}
_FAIRSEQ = _ANGLES | {"cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>", "mask_token": "<mask>"}


@dataclass(frozen=True)
class Family:
    """The tokenizer layout of a model family."""

    files: tuple[str, ...]  # files that the folder must have
    tokens: Mapping[str, str]  # its special tokens, if the settings do not name them
    template: str  # its row of `TEMPLATES`, or "flags" if the settings `add_bos_token` and `add_eos_token` decide
    build: Build | None = None  # builds the tokenizer of the library from the files
    read: Read | None = None  # reads the parts of a tokenizer that runs SentencePiece; a family has one of the two
    flags: Mapping[str, bool] = field(default_factory=dict)  # defaults of those settings


FAMILIES: Mapping[str, Family] = {
    "bert": Family(("vocab.txt",), _SQUARE, "bert", families.bert),
    "gpt2": Family(("vocab.json", "merges.txt"), _GPT2, "flags", families.byte_level),
    "roberta": Family(("vocab.json", "merges.txt"), _FAIRSEQ, "roberta", families.byte_level),
    "openai-gpt": Family(("vocab.json", "merges.txt"), {"unk_token": "<unk>"}, "none", families.gpt1),
    "mpnet": Family(("vocab.txt",), _FAIRSEQ | {"unk_token": "[UNK]"}, "roberta", families.bert),
    "t5": Family(("spiece.model",), _ENDED, "t5", sentencepiece_families.t5),
    "xlm-roberta": Family(("sentencepiece.bpe.model",), _FAIRSEQ, "roberta", sentencepiece_families.xlm_roberta),
    "mbart": Family(("sentencepiece.bpe.model",), _FAIRSEQ, "language-last", sentencepiece_families.mbart),
    "mbart50": Family(("sentencepiece.bpe.model",), _FAIRSEQ, "language", sentencepiece_families.mbart50),
    "camembert": Family(("sentencepiece.bpe.model",), _FAIRSEQ, "roberta", sentencepiece_families.camembert),
    "pegasus": Family(("spiece.model",), _ENDED | {"mask_token": "<mask_2>"}, "marian", sentencepiece_families.pegasus),
    "albert": Family(("spiece.model",), _ALBERT, "bert", sentencepiece_families.albert),
    "deberta-v2": Family(("spm.model",), _SQUARE | _BOUNDS, "bert", sentencepiece_families.deberta),
    "llama": Family(("tokenizer.model",), _ANGLES, "flags", sentencepiece_families.llama, flags=_WITH_BOS),
    "gemma": Family(("tokenizer.model",), _GEMMA, "flags", sentencepiece_families.llama, flags=_WITH_BOS),
    "marian": Family(("source.spm", "target.spm", "vocab.json"), _ENDED, "marian", read=sentencepiece_ids.marian),
    "nllb": Family(("tokenizer.json",), _FAIRSEQ, "language"),
    "m2m_100": Family(("vocab.json", "sentencepiece.bpe.model"), _M2M, "language", read=sentencepiece_ids.m2m_100),
}

# `tokenizer_class` without Tokenizer and Fast -> family; `model_type` -> family.
_CLASSES = {
    **dict.fromkeys(("Bert", "DistilBert", "Electra", "MobileBert"), "bert"),
    **dict.fromkeys(("Roberta", "Bart", "Longformer"), "roberta"),
    **dict.fromkeys(("T5", "MT5"), "t5"),
    **{name: name.lower() for name in ("GPT2", "MBart", "MBart50", "Nllb", "Camembert", "Pegasus", "Albert", "MPNet")},
    **{name: name.lower() for name in ("Gemma", "Marian", "Llama", "LLaMA")},  # the last in the first conversions
} | {"OpenAIGPT": "openai-gpt", "XLMRoberta": "xlm-roberta", "DebertaV2": "deberta-v2", "M2M100": "m2m_100"}
MODEL_TYPES = {
    **dict.fromkeys(("bert", "distilbert", "electra", "mobilebert"), "bert"),
    **dict.fromkeys(("roberta", "bart", "longformer"), "roberta"),
    **dict.fromkeys(("t5", "mt5", "umt5"), "t5"),
    **{name: name for name in ("gpt2", "openai-gpt", "xlm-roberta", "camembert", "albert", "deberta-v2")},
    **{name: name for name in ("pegasus", "llama", "gemma", "marian", "mpnet")},
    "mistral": "llama",
}
_WITHOUT_DEFINITION = {"mbart": "mbart", "m2m_100": "m2m_100"}  # `model_type`s that have several tokenizers
_BY_CLASS = ("mbart", "mbart50", "camembert", "pegasus", "albert", "gemma", "mpnet")  # files alone do not tell these
_GENERIC = ("", "PreTrained", "TokenizersBackend", "SentencePieceBackend")
_GENERIC_MODELS = ("mistral", "modernbert")  # which have the generic class, whatever their settings state
_BY_ENDS = ("xlm-roberta", "camembert")  # whose classes put BOS and EOS around a text, whatever CLS and SEP are
_FIRST_SOURCES = ("en_XX", "en", "eng_Latn")  # the source language where the settings name none


def family_named(directory: Path, config: Mapping[str, object]) -> str | None:
    """The family of `tokenizer_class` in the settings, else of `model_type` in `config.json`; None if unknown."""
    label, family = _label(directory, config)
    return family if label else None


def class_named(directory: Path, config: Mapping[str, object], definition: Mapping[str, object]) -> str | None:
    """The family whose class makes the tokenizer in transformers; None: the generic one, with the file's own rules."""
    stated, model_type = _stated(directory, config)
    if "atento" in config or model_type in _GENERIC_MODELS:
        return None
    if stated == "Qwen2" or model_type in ("qwen2", "qwen3"):
        return "qwen2"  # whose files are read as they are
    family = _CLASSES.get(stated) if stated else MODEL_TYPES.get(str(model_type))
    byte_level = '"ByteLevel"' in json.dumps([definition.get("pre_tokenizer"), definition.get("decoder")])
    return None if family == "llama" and (byte_level or not stated) else family


def with_segments(directory: Path, config: Mapping[str, object]) -> bool:
    """Whether a network is given the segments of a pair: by `model_input_names`, which a generic class has without."""
    stated, names = _stated(directory, config)[0], config.get("model_input_names")
    generic = stated in _GENERIC[1:] and "atento" not in config
    return "token_type_ids" in names if isinstance(names, list) else not generic


def class_settings(directory: Path, config: Mapping[str, object], definition: Mapping[str, object]) -> dict[str, str]:
    """The class and the special tokens of `tokenizer.json` that the settings leave to the model.

    Those of bert-base-uncased do.
    """
    if "atento" in config or (isinstance(config.get("tokenizer_class"), str) and _class_of(config) in _GENERIC):
        return {}  # ours states all of its tokens, and a generic class has none
    family, added = family_named(directory, config), definition.get("added_tokens")
    if family is None:
        return {}
    tokens = [token for token in (added if isinstance(added, list) else ()) if isinstance(token, dict)]
    special = {text for token in tokens if token.get("special") and (text := token_text(token)) is not None}
    stated = _class_of(config) or class_named(directory, config, definition) is None
    implied = {} if stated else {"tokenizer_class": _class_for(family)}
    of_family = FAMILIES[family].tokens
    return implied | {key: text for key, text in of_family.items() if key not in config and text in special}


def _class_for(family: str) -> str:
    return f"{next(name for name, known in _CLASSES.items() if known == family)}Tokenizer"


def _stated(directory: Path, config: Mapping[str, object]) -> tuple[str, object]:
    """The class that the settings of a folder name, or its `config.json` ("" if neither), and its `model_type`."""
    path = directory / "config.json"
    model = as_object(as_text(read_file(path), path), path) if path.is_file() else {}
    return _class_of(config) or _class_of(model), model.get("model_type")


def _label(directory: Path, config: Mapping[str, object]) -> tuple[str, str | None]:
    """The name that the files give the tokenizer ("" if none), and the family of that name."""
    name, model_type = _stated(directory, config)
    if name not in _GENERIC:
        return name, _CLASSES.get(name)
    if isinstance(model_type, str) and model_type != "atento":  # models of Atento may have the files of any family
        return model_type, MODEL_TYPES.get(model_type)
    return "", None


def _class_of(config: Mapping[str, object]) -> str:
    """The `tokenizer_class` of a settings file without Tokenizer and Fast; "" if there is none."""
    named = config.get("tokenizer_class")
    return named.removesuffix("Fast").removesuffix("Tokenizer") if isinstance(named, str) else ""


def unknown_class(directory: Path, config: Mapping[str, object]) -> str | None:
    """The class of `transformers` that the settings of a folder name, or its model's, if it is not known here."""
    label, family = _label(directory, config)
    if not label or family is not None or label in _WITHOUT_DEFINITION:
        return None
    return f"that of {label} in transformers" if label.islower() else f"{label}Tokenizer of transformers"


def family_of(directory: Path, config: Mapping[str, object]) -> str:
    """The family of a folder without `tokenizer.json`, by its settings, else by its files.
    Raises TokenizerError: the family is not known, or a file of the family is missing.
    """
    if named := unknown_class(directory, config):
        way = "a `tokenizer.json` is read where `save_pretrained` of its fast version writes one"
        known = ", ".join(FAMILIES)
        raise TokenizerError(f"{directory}: its tokenizer, {named}, is not known here; {way}. Known: {known}")
    label, family = _label(directory, config)
    family = family or _WITHOUT_DEFINITION.get(label) or _by_files(directory)
    for name in FAMILIES[family].files:
        if not (directory / name).is_file():
            raise TokenizerError(f"no {family} tokenizer in {directory}: it has no {name}")
    return family


def _by_files(directory: Path) -> str:
    """The family with these files; GPT-1, GPT-2 and RoBERTa are distinguished by their vocabularies."""
    if all((directory / name).is_file() for name in FAMILIES["m2m_100"].files):
        return "m2m_100"
    for name in ("marian", "t5", "xlm-roberta", "deberta-v2", "llama", "bert"):
        if (directory / FAMILIES[name].files[0]).is_file():
            return name
    path = directory / "vocab.json"
    if path.is_file():
        vocabulary = as_object(as_text(read_file(path), path), path)
        if any(piece.endswith("</w>") for piece in vocabulary):
            return "openai-gpt"
        if "<s>" in vocabulary and "</s>" in vocabulary:
            return "roberta"
    return "gpt2"


def template_for(name: str, config: Mapping[str, object], specials: SpecialTokens) -> Template:
    """The template of special tokens of a family. Raises TokenizerError: the tokenizer lacks one of these tokens."""
    family = FAMILIES[name]
    ids = {role: specials.ids[text] for role, text in specials.roles.items()}
    for role in ("cls", "sep") if name not in _BY_ENDS else ():
        number = specials.ids.get(token_text(config.get(f"{role}_token")) or "")
        if number is not None:
            ids[role] = number
    languages, source = languages_of(specials.ids), config.get("src_lang")
    sources = [str(source)] if source else _FIRST_SOURCES
    language = next((languages[code] for code in sources if code in languages), None)
    ids |= {} if language is None else {"language": specials.ids[language]}
    if source and language is None and family.template.startswith("language"):
        raise TokenizerError(f"`src_lang` must be a language of the tokenizer: got {source!r}")
    row = family.template
    if name == "nllb" and config.get("legacy_behaviour"):  # as first released
        row = "language-last"
    if row == "flags":
        bos, eos = (bool(config.get(key, family.flags.get(key))) for key in ("add_bos_token", "add_eos_token"))
        row = "bos-eos" if bos and eos else "bos" if bos else "eos" if eos else "none"
    return template_named(row, ids)


def names_language(name: str | None, specials: SpecialTokens) -> bool:
    """Whether texts of a family have the token of a language by its settings, whatever `tokenizer.json` says."""
    named = name is not None and FAMILIES[name].template.startswith("language")
    return named and not {*_FIRST_SOURCES}.isdisjoint(languages_of(specials.ids))


def released_parts(directory: Path, config: dict[str, object], files: dict[str, bytes]) -> Parts:
    """The parts of a tokenizer whose folder has no `tokenizer.json`.

    Args:
        directory: the folder.
        config: its settings.
        files: the bytes of the files read so far; further files are added.

    Raises:
        TokenizerError: the family is unknown, or files are missing or malformed; the message names file and rule.
        MissingPartError: the files need the package `sentencepiece`, which is not installed.
    """
    name = family_of(directory, config)
    family = FAMILIES[name]
    for file in (*family.files, "added_tokens.json"):
        if (directory / file).is_file():
            files[file] = read_file(directory / file)
    if name in _BY_CLASS and not _class_of(config):
        stated = as_settings(files) | {"tokenizer_class": _class_for(name)}
        files[CONFIG] = (json.dumps(stated, ensure_ascii=False, indent=2) + "\n").encode()
    if family.read is not None:
        sources = families.Sources(directory, {**family.tokens, **config}, files)
        return family.read(sources, partial(_template_in, directory, name))
    assert family.build is not None
    built = family.build(families.Sources(directory, config, files))
    default_tokens = {key: text for key, text in family.tokens.items() if built.backend.token_to_id(text) is not None}
    settings = default_tokens | config
    _add_tokens(built, settings, families.stated_tokens(families.Sources(directory, config, files)), directory)
    definition = built.backend.to_str()
    specials = specials_of(json.loads(definition), settings, directory)
    # mT5 has sentinels with `▁` in front; make them available without it too
    sentinels = {text: re.fullmatch(f"{SPACE}(<extra_id_[0-9]+>)", text) for text in specials.ids}
    short = {match[1]: specials.ids[text] for text, match in sentinels.items() if match is not None}
    specials = SpecialTokens(specials.roles, short | specials.ids)
    template = _template_in(directory, name, settings, specials)
    same = name if built.same_as_transformers else None
    return Parts(definition, built.kind, specials, built.lowercase, False, files, template, family=same)


def _template_in(directory: Path, name: str, config: Mapping[str, object], specials: SpecialTokens) -> Template:
    """As `template_for`; an error names the folder."""
    try:
        return template_for(name, config, specials)
    except TokenizerError as error:
        raise TokenizerError(f"{directory}: {error}") from None


def _add_tokens(
    built: families.Built, settings: Mapping[str, object], stated: Mapping[int, AddedToken], directory: Path
) -> None:
    """Add whole tokens to the library's tokenizer; those that are not in the vocabulary get the next ids."""
    backend = built.backend
    for number, token in sorted(stated.items()):
        backend.add_tokens([token])
        token_id = backend.token_to_id(token.content)
        if token_id != number:
            raise TokenizerError(
                f"the added token {token.content!r} of {directory} must have the next free id {token_id}: got {number}"
            )
    known = {token.content for token in stated.values() if token.special}
    for key, named in settings.items():
        text = token_text(named) if key.endswith("_token") else None
        if text is not None and text not in known and backend.token_to_id(text) is not None:
            # A mask includes the space before it, as these models saw it in training.
            flags = named if isinstance(named, dict) else {"lstrip": key == "mask_token" and built.mask_takes_space}
            backend.add_special_tokens([families.added_token(text, flags, special=True)])
            known.add(text)
    for extra_token in [*_listed(settings, "additional_special_tokens"), *_listed(settings, "extra_special_tokens")]:
        text = token_text(extra_token)
        if text is not None and text not in known:
            backend.add_special_tokens([families.added_token(text, extra_token, special=True)])
            known.add(text)
    declared = [text for text in built.specials if text not in known]
    backend.add_special_tokens([families.added_token(text, None, special=True) for text in declared])
    ids = backend.get_vocab(with_added_tokens=True)
    if len(set(ids.values())) < len(ids):
        raise TokenizerError(f"the vocabulary of {directory} must have no gaps: an added token has the id of another")


def _listed(settings: Mapping[str, object], key: str) -> list[Any]:
    """The tokens of a setting, which is a list or a mapping."""
    tokens = settings.get(key) or []
    if not isinstance(tokens, list | dict):
        raise TokenizerError(f"`{key}` must be a list of tokens: got {tokens!r}")
    return list(tokens.values() if isinstance(tokens, dict) else tokens)
