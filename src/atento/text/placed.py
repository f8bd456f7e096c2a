"""Texts with special tokens at given places, such as conversations; their strings elsewhere are text."""

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from tokenizers import AddedToken

from atento.errors import UsageError
from atento.text.normalization import require_unicode
from atento.text.pipelines import library_backend
from atento.text.tokenizer import Tokenizer

_OPEN, _CLOSE = "\ufdd0", "\ufdd1"  # noncharacters, which no text has
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")


class PlacedSpecials:
    """Encodes such texts as one: what the library does at the ends of a text it does not do beside special tokens.

    Each special token has a second name, which no text has, and which the library finds as it finds the token: with the
    same flags. The text with these names is encoded as any text of a user.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, parts: Sequence[str]) -> list[int]:
        """The ids of a text, a special token, a text and so on; no text makes a special id.

        Raises:
            UsageError: a text has a noncharacter that stands for special tokens here.
        """
        backend, names, ids = self._backend
        texts = list(parts)
        for number in range(0, len(texts), 2):
            require_unicode(texts[number])
            if _OPEN in texts[number] or _CLOSE in texts[number]:
                raise UsageError("text must not have the characters U+FDD0 and U+FDD1, which are none")
        texts[1::2] = [names[special] for special in parts[1::2]]
        encoded = backend.encode_batch_fast(["".join(texts)], add_special_tokens=False)[0]
        return [ids.get(token, token) for token in encoded.ids]

    @cached_property
    def _backend(self) -> tuple[Any, dict[str, str], dict[int, int]]:
        """The library's tokenizer with the second names; the name of each special token; its id by that of the name."""
        specials = self._tokenizer.specials
        backend = library_backend(self._tokenizer.definition, specials)
        names = {text: f"{_OPEN}{number}{_CLOSE}" for number, text in enumerate(specials.ids)}
        added = {row["content"]: row for row in json.loads(self._tokenizer.definition).get("added_tokens") or ()}
        flags = {text: {flag: bool(added.get(text, {}).get(flag)) for flag in _FLAGS} for text in names}
        backend.add_tokens([AddedToken(name, special=False, **flags[text]) for text, name in names.items()])
        return backend, names, {int(backend.token_to_id(name) or 0): specials.ids[text] for text, name in names.items()}
