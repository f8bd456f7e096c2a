"""Conversations as token ids: rendered by a model's chat template, encoded with special tokens at given places."""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from atento.base.errors import UsageError
from atento.text.kinds import require_unicode
from atento.text.tokenizer import Tokenizer
from atento.text.tokenizer_folder import library_backend
from atento_serve.chat.folder import ChatTemplate, template_of
from atento_serve.chat.template_process import RenderingProcess

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


class Conversations:
    """The conversations of a model.

    Args:
        template: of its folder.
        tokenizer: its tokenizer.
    """

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer) -> None:
        self._process, self._placed = RenderingProcess(template), PlacedSpecials(tokenizer)

    @classmethod
    def of(cls, path: str | Path | None, tokenizer: Tokenizer | None) -> "Conversations | None":
        """Those of a loaded model; None if its folder has no chat template.

        Raises:
            TokenizerError: a file of the template is malformed.
        """
        if path is None or tokenizer is None:
            return None
        template = template_of(Path(path), tokenizer.specials)
        return None if template is None else cls(template, tokenizer)

    def ids(self, conversation: Mapping[str, object]) -> list[int]:
        """The ids of a conversation up to where the answer begins.

        Args:
            conversation: `messages`, each with `role`, `content` and further fields; `variables` of the template.

        Raises:
            UsageError: the template refuses the messages, or is wrong, or passes a limit of time, memory or length.
        """
        return self._placed.encode(self._process.parts(conversation))

    def close(self) -> None:
        """End the process that renders."""
        self._process.close()


def prompts(conversations: Conversations | None, items: Sequence[object]) -> list[object]:
    """The items of a job with the ids of each conversation in its place; one after an equal one has the same.

    Raises:
        UsageError: the model has no chat template, or as `Conversations.ids` says.
    """
    given: list[object] = []
    for number, item in enumerate(items):
        if not isinstance(item, Mapping):
            given.append(item)
        elif conversations is None:
            raise UsageError("the tokenizer of the model has no chat template")
        else:
            is_repeated = number > 0 and item == items[number - 1]
            given.append(given[-1] if is_repeated else conversations.ids(item))
    return given
