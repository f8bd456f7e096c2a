"""Export tokenizer files for `transformers`, which then tokenizes text as Atento does (docs/notes.md#d5)."""

import json
from collections.abc import Mapping
from typing import Any

from atento.base.errors import CapabilityError
from atento.text.read_tokenizer import TARGET
from atento.text.released.sentencepiece_ids import TYPES
from atento.text.released.tokenizer_files import MODEL_TYPES
from atento.text.specials import Slot, Template
from atento.text.tokenizer import Tokenizer
from atento.text.tokenizer_folder import CONFIG, DEFINITION, as_settings, special_strings

_KEPT = ("chat_template", "clean_up_tokenization_spaces", "model_max_length")  # copied from released files
_OTHERS = {"mbart": ("mbart50",), "m2m_100": ("nllb",)}  # further families of tokenizers beside a network


def exported_files(
    tokenizer: Tokenizer, template: Template, model_type: str, settings: Mapping[str, Any]
) -> dict[str, bytes]:
    """The files of a tokenizer with `template` as its post-processor.

    The files of a released model are returned unchanged if they already have this template. Otherwise `transformers`
    reads `tokenizer.json` with its generic class, which converts special strings in a text to special tokens; Atento
    never does.

    Args:
        tokenizer: the tokenizer.
        template: the special tokens around one text and around two.
        model_type: the family of the network, as in its `config.json`.
        settings: further keys of `tokenizer_config.json`.

    Returns:
        File name -> bytes.

    Raises:
        CapabilityError: the tokenizer runs SentencePiece, which the layout of this family does not support.
    """
    files, family = tokenizer.files(), tokenizer.family
    of_family = family in (MODEL_TYPES.get(model_type), model_type, *_OTHERS.get(model_type, ()))
    if family is None:  # of the generic class, or a class that reads these files otherwise
        of_family &= DEFINITION in files
    if not tokenizer.native and template == tokenizer.template() and of_family:
        return files
    data = json.loads(tokenizer.definition)
    if (name := data["model"].get("type")) in TYPES:
        raise CapabilityError(f"{name}'s tokenizer is read beside a network of {name} only: got family {model_type!r}")
    names = {i: tokenizer.tokens([i])[0] for i in template.ids()}
    data |= {"post_processor": post_processor(template, names), "truncation": None, "padding": None}
    settings_read = {} if tokenizer.native else as_settings(files)
    config: dict[str, object] = {name: settings_read[name] for name in _KEPT if name in settings_read}
    config |= special_strings(tokenizer.specials)
    around = [content for content, _ in template.single]
    if len(around) == 3 and around[1] == "A":  # tokens around a text, such as BERT's and RoBERTa's
        first, last = around[0], around[2]
        assert isinstance(first, int) and isinstance(last, int)
        config |= {"cls_token": names[first], "sep_token": names[last]}
    config |= {"tokenizer_class": "PreTrainedTokenizerFast", **settings}
    config.setdefault("clean_up_tokenization_spaces", False)
    if tokenizer.native:
        config["atento"] = {"kind": tokenizer.kind, "lowercase": tokenizer.lowercase}
    contents = {DEFINITION: data, CONFIG: config}
    written = {
        name: (json.dumps(content, ensure_ascii=False, indent=2) + "\n").encode() for name, content in contents.items()
    }
    kept = (".model", f"{TARGET}{DEFINITION}", f"{TARGET}{CONFIG}")  # the last two are of a target side
    return {name: content for name, content in files.items() if name.endswith(kept)} | written


def post_processor(template: Template, names: Mapping[int, str]) -> dict[str, object] | None:
    """A template as the post-processor of `tokenizer.json`; None if it adds no tokens. `names`: id -> token."""
    if not names:
        return None

    def piece(slot: Slot) -> dict[str, object]:
        content, segment = slot
        if isinstance(content, str):
            return {"Sequence": {"id": content, "type_id": segment}}
        return {"SpecialToken": {"id": names[content], "type_id": segment}}

    return {
        "type": "TemplateProcessing",
        "single": [piece(slot) for slot in template.single],
        "pair": [piece(slot) for slot in template.pair],
        "special_tokens": {name: {"id": name, "ids": [i], "tokens": [name]} for i, name in names.items()},
    }
