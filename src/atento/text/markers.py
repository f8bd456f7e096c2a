"""Markers: special tokens of a tokenizer that texts may spell, such as [NUM] or those around an entity."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from atento.errors import TokenizerError, nearest
from atento.text.specials import SpecialTokens
from atento.text.tokenizer_folder import CONFIG, DEFINITION, EXTRA, as_settings, special_strings
from atento.text.tokenizer_parts import Parts

KEY = "markers"
"""Key of `tokenizer_config.json`: the tokens that texts may spell."""


def with_markers(parts: Parts, markers: Sequence[str] = ()) -> Parts:
    """A tokenizer in which some special tokens are ordinary ones: a text that spells them has their ids.

    Args:
        parts: the tokenizer. Markers that its files name are let in.
        markers: further ones, which its files name from here on.

    Raises:
        TokenizerError: the tokenizer has no such token, needs it as a special one, or runs SentencePiece.
    """
    stated = as_settings(parts.files).get(KEY, [])
    if not isinstance(stated, list) or not all(isinstance(text, str) for text in stated):
        raise TokenizerError(f"`{KEY}` of {CONFIG} must be a list of tokens: got {stated!r}")
    names = tuple(dict.fromkeys((*stated, *markers)))
    if not names:
        return parts
    if parts.backend is not None:
        raise TokenizerError(f"`{KEY}` are for tokenizers that do not run SentencePiece: got {', '.join(names)}")
    data, ids = json.loads(parts.definition), parts.specials.ids
    added = {token["content"]: token for token in data.get("added_tokens") or []}
    needed = {*parts.specials.roles.values(), *(text for text in ids if ids[text] in parts.template.ids())}
    for text in names:
        if text not in added:
            raise TokenizerError(f"`{KEY}`: the tokenizer has no token {text!r}{nearest(text, list(added))}")
        if text in needed:
            raise TokenizerError(f"`{KEY}`: {text!r} has a role of its own (padding, unknown, mask, or around a text)")
        added[text]["special"] = False
    specials = SpecialTokens(parts.specials.roles, {text: ids[text] for text in ids if text not in names})
    definition, config, files = json.dumps(data, ensure_ascii=False), as_settings(parts.files), dict(parts.files)
    if parts.native:  # whose settings keep special tokens out of texts in `transformers` too
        config = {key: value for key, value in config.items() if key != EXTRA} | special_strings(specials)
        files[DEFINITION] = definition.encode("utf-8")
    files[CONFIG] = (json.dumps(config | {KEY: names}, ensure_ascii=False, indent=2) + "\n").encode("utf-8")
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
