"""What the keys of `tokenizer_config.json` say over the rules of `tokenizer.json`, as the class that they name has it.

The classes of `transformers` set the parts below from their keys, whatever the file has; a generic class sets none.
"""

import json
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from tokenizers import decoders, normalizers, pre_tokenizers

from atento.text.kinds import SPACE
from atento.text.released.families import Sources, bert_normalizer
from atento.text.specials import Template

Part = dict[str, Any]  # a part of a `tokenizer.json`
_PARTS = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}
_PREFIX: Mapping[str, tuple[bool | None, str, str]] = {  # default of `add_prefix_space`; Metaspace with it, without it
    **dict.fromkeys(("gpt2", "roberta", "qwen2"), (False, "", "")),  # of ByteLevel
    **dict.fromkeys(("xlm-roberta", "camembert", "albert"), (True, "always", "never")),
    "deberta-v2": (True, "always", "first"),
    "llama": (None, "first", "never"),
}
# key -> the field of a step that says the same
_FIELDS = {"do_lower_case": "lowercase", "tokenize_chinese_chars": "handle_chinese_chars"}
_FIELDS |= {key: key for key in ("strip_accents", "add_prefix_space")}


def class_rules(family: str, sources: Sources, data: Part) -> Part:
    """The parts of a `tokenizer.json` that the keys of a class make other ones: name -> part.
    Raises TokenizerError: a key has no boolean.
    """
    old = {part: _steps(data.get(part), key) for part, key in _PARTS.items()}
    new = deepcopy(old)
    normalizer, flag = new["normalizer"], sources.flag
    if family in ("bert", "mpnet"):
        normalizer[:] = [json.loads(bert_normalizer(sources).__getstate__())]
    elif family == "albert":
        accents = (normalizers.NFKD(), normalizers.StripAccents())
        _switch(normalizer, not flag("keep_accents", False), *accents, before=("Lowercase", "Precompiled"))
        _switch(normalizer, flag("do_lower_case", True), normalizers.Lowercase(), before=("Precompiled",))
    elif family == "deberta-v2":
        _switch(normalizer, flag("do_lower_case", False), normalizers.Lowercase())
        _switch(new["pre_tokenizer"], flag("split_by_punct", False), pre_tokenizers.Punctuation("isolated"))
    if family in _PREFIX:
        default = _PREFIX[family][0]
        prefix = flag("add_prefix_space", default)
        _prefix(new, family, prefix if default is None else bool(prefix))
    changed = {part: steps for part, steps in new.items() if steps != old[part]}
    return {part: {"type": "Sequence", _PARTS[part]: steps} if steps else None for part, steps in changed.items()}


def unheeded(config: Mapping[str, object], data: Part, template: Template) -> list[str]:
    """The keys of the settings that say something else than `tokenizer.json`, whose rules hold."""
    steps = [step for part in ("normalizer", "pre_tokenizer") for step in _steps(data.get(part), _PARTS[part])]
    held = {key: [step[field] for step in steps if field in step] for key, field in _FIELDS.items()}
    keys = [key for key, values in held.items() if values and config.get(key) not in (None, *values)]
    ends = {"add_bos_token": template.single[0], "add_eos_token": template.single[-1]}
    is_bool = {key: slot for key, (slot, _) in ends.items() if isinstance(config.get(key), bool)}
    return keys + [key for key, slot in is_bool.items() if config[key] == (slot == "A")]


def _prefix(parts: dict[str, list[Part]], family: str, prefix: bool | None) -> None:
    """Set whether a text gets a space in front, in place; None leaves it to the file."""
    if prefix is None:
        return
    scheme = _PREFIX[family][1 if prefix else 2]
    for step in parts["pre_tokenizer"] + parts["decoder"]:
        if step["type"] == "Metaspace" and scheme:
            step["prepend_scheme"] = scheme
    for step in parts["pre_tokenizer"]:
        if step["type"] == "ByteLevel":
            step["add_prefix_space"] = prefix
    if family == "llama":
        by_metaspace = any(step["type"] == "Metaspace" for step in parts["pre_tokenizer"])
        _switch(parts["normalizer"], prefix and not by_metaspace, normalizers.Prepend(SPACE))
        _switch(parts["decoder"], prefix, decoders.Strip(" ", 1, 0), before=())


def _steps(part: object, key: str) -> list[Part]:
    """The steps of a part, also of one within another; Metaspace as the library writes it today."""
    if not isinstance(part, dict):
        return []
    if part.get("type") == "Sequence":
        inner = part.get(key)
        return [step for one in (inner if isinstance(inner, list) else ()) for step in _steps(one, key)]
    if part.get("type") == "Metaspace" and "prepend_scheme" not in part:
        return [part | {"prepend_scheme": "always" if part.get("add_prefix_space", True) else "never"}]
    return [dict(part)]


def _switch(steps: list[Part], wanted: bool | None, *made: Any, before: tuple[str, ...] | None = None) -> None:
    """Let steps be there or not, in place; new ones stand before the first one of `before`, by default in front."""
    new = [json.loads(step.__getstate__()) for step in made]
    names = {step["type"] for step in new}
    if wanted and names <= {step["type"] for step in steps}:
        return
    steps[:] = [step for step in steps if step["type"] not in names]
    at = 0 if before is None else next((n for n, step in enumerate(steps) if step["type"] in before), len(steps))
    steps[at:at] = new if wanted else []
