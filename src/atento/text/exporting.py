"""A tokenizer's files as `transformers` reads them, so that its stock entry points cut text as we do.

See docs/notes.md#d5.
"""

import json
from collections.abc import Mapping
from typing import Any

from atento.errors import CapabilityError
from atento.text.folder import CONFIG, DEFINITION, as_settings, special_strings
from atento.text.released import MODEL_TYPES
from atento.text.templates import Slot, Template
from atento.text.tokenizer import Tokenizer

_KEPT = ("chat_template", "clean_up_tokenization_spaces", "model_max_length")  # of another project's settings


def exported_files(
    tokenizer: Tokenizer, template: Template, model_type: str, settings: Mapping[str, Any]
) -> dict[str, bytes]:
    """`tokenizer.json` and its settings, with `template` as post-processor.

    A released model's files that say all this already are given as they were read. Otherwise `transformers` reads
    `tokenizer.json` as it stands, by its generic class. It takes special strings in a text for the tokens; text
    encoded here still never makes them.

    Args:
        tokenizer: the tokenizer.
        template: the special tokens around one text and around two.
        model_type: the family of the network, as its `config.json` names it.
        settings: further keys of `tokenizer_config.json`.

    Raises:
        CapabilityError: the tokenizer is cut by SentencePiece itself, and the layout of that family cannot say so.
    """
    if not tokenizer.own and template == tokenizer.template() and tokenizer.family == MODEL_TYPES.get(model_type):
        return tokenizer.files()
    data = json.loads(tokenizer.definition)
    if data["model"].get("type") == "Marian":
        raise CapabilityError(f"Marian's tokenizer is read beside a Marian network only: got family {model_type!r}")
    names = {i: tokenizer.tokens([i])[0] for i in template.ids()}
    data |= {"post_processor": post_processor(template, names), "truncation": None, "padding": None}
    theirs = {} if tokenizer.own else as_settings(tokenizer.files())
    config: dict[str, Any] = {name: theirs[name] for name in _KEPT if name in theirs}
    config |= special_strings(tokenizer.specials) | _framing(template, names)
    config |= {"tokenizer_class": "PreTrainedTokenizerFast", **settings}
    config.setdefault("clean_up_tokenization_spaces", False)
    if tokenizer.own:
        config["atento"] = {"kind": tokenizer.kind, "lowercase": tokenizer.lowercase}
    contents = {DEFINITION: data, CONFIG: config}
    written = {name: (json.dumps(one, ensure_ascii=False, indent=2) + "\n").encode() for name, one in contents.items()}
    return {name: one for name, one in tokenizer.files().items() if name.endswith(".model")} | written


def post_processor(template: Template, names: Mapping[int, str]) -> dict[str, Any] | None:
    """A template as `tokenizer.json` states it, None for bare texts; `names` has the string of each special id."""
    if not names:
        return None

    def piece(slot: Slot) -> dict[str, Any]:
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


def _framing(template: Template, names: Mapping[int, str]) -> dict[str, str]:
    """`cls_token` and `sep_token` of a template that frames a text, as BERT's and RoBERTa's do."""
    contents = [content for content, _ in template.single]
    if len(contents) != 3 or contents[1] != "A":
        return {}
    first, last = contents[0], contents[2]
    assert isinstance(first, int) and isinstance(last, int)
    return {"cls_token": names[first], "sep_token": names[last]}
