"""Chat templates of model folders: a conversation as the token ids of a prompt.

Special tokens come from the template alone: the text of a message never makes one, whatever it says. The template is
rendered with marks in place of the messages' texts, cut at the special tokens that it writes, and only then are the
texts put in and encoded.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from atento.errors import DataError, UsageError
from atento.limits import read_plain_text
from atento.text.tokenizer import Tokenizer

_FILE, _SETTINGS, _KEY = "chat_template.jinja", "tokenizer_config.json", "chat_template"
_MOST = 1 << 16  # characters of a template
_MARK = "\ue000{}\ue001"  # characters of private use around the number of a message
_MARKED = re.compile("\ue000([0-9]+)\ue001")


@lru_cache(maxsize=64)
def template_text(folder: str) -> str | None:
    """The chat template in a model folder; None if it has none."""
    if not folder:
        return None
    file, settings = Path(folder) / _FILE, Path(folder) / _SETTINGS
    if file.is_file():
        text: object = read_plain_text(file)
    elif settings.is_file():
        text = json.loads(read_plain_text(settings)).get(_KEY)
    else:
        return None
    if isinstance(text, list):  # several, by name
        named = {entry.get("name"): entry.get("template") for entry in text if isinstance(entry, Mapping)}
        text = named.get("default")
    return text if isinstance(text, str) and len(text) <= _MOST else None


@lru_cache(maxsize=8)
def _tokenizer(folder: str) -> Tokenizer:
    return Tokenizer.load(folder)


def _refused(message: str) -> None:
    raise DataError(message)


def conversation_ids(folder: str, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """The ids of a conversation by the template of a folder, up to where the answer begins.

    Args:
        folder: the model folder.
        messages: `role` and `content` of each.

    Raises:
        DataError: the template refuses the roles or their order. UsageError: the template is wrong.
    """
    text, tokenizer = template_text(folder), _tokenizer(folder)
    assert text is not None, "the folder has no template"
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    roles = tokenizer.specials.roles
    marked = [{"role": row["role"], "content": _MARK.format(number)} for number, row in enumerate(messages)]
    try:
        rendered = environment.from_string(text).render(
            messages=marked,
            add_generation_prompt=True,
            raise_exception=_refused,
            bos_token=roles.get("bos", ""),
            eos_token=roles.get("eos", ""),
            tools=None,
        )
    except (TemplateError, TypeError, ValueError) as error:
        raise UsageError(f"the chat template of the model failed: {type(error).__name__}") from None
    ids: list[int] = []
    for part in _at_specials(rendered, tokenizer):
        special = tokenizer.specials.ids.get(part)
        if special is not None:
            ids.append(special)
        elif part:
            ids += tokenizer.encode(_MARKED.sub(lambda mark: messages[int(mark[1])]["content"], part))
    return ids


def _at_specials(text: str, tokenizer: Tokenizer) -> list[str]:
    """A text cut around the special tokens in it."""
    names = sorted(tokenizer.specials.ids, key=len, reverse=True)
    return re.split(f"({'|'.join(map(re.escape, names))})", text) if names else [text]
