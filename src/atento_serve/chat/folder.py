"""What a model folder says of conversations: its chat templates, and the names of special tokens that they use."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from atento.base.errors import TokenizerError
from atento.text.specials import SpecialTokens
from atento.text.tokenizer_folder import CONFIG, as_text, read_file, read_settings, token_text

_FILE, _FURTHER, _KEY = "chat_template.jinja", "additional_chat_templates", "chat_template"
_NAMES = tuple(f"{role}_token" for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_MOST = 1 << 20  # characters of a template


@dataclass(frozen=True)
class ChatTemplate:
    """The chat template of a model.

    Attributes:
        source: the text of the template.
        specials: the strings of the special tokens of the model.
        names: variables of the template that hold special tokens, such as `bos_token`.
    """

    source: str
    specials: list[str]
    names: dict[str, str]


def template_of(folder: Path, specials: SpecialTokens) -> ChatTemplate | None:
    """The chat template in a model folder, by the rules of `transformers`; None if it has none.

    Raises:
        TokenizerError: a file of it is malformed or too long.
    """
    settings = read_settings(folder, {})
    source = _sources(folder, settings).get("default")
    if source is None:
        return None
    if len(source) > _MOST:
        raise TokenizerError(f"the chat template of {folder} must have at most {_MOST:,} characters: got {len(source)}")
    named = {name: text for name in _NAMES if (text := token_text(settings.get(name))) is not None}
    usual = {f"{role}_token": text for role, text in specials.roles.items() if text not in named.values()}
    return ChatTemplate(source, list(specials.ids), usual | named)


def _sources(folder: Path, settings: Mapping[str, object]) -> dict[str, str]:
    """The templates of a folder by name; those in files of their own come before those of the settings."""
    files = {"default": folder / _FILE} | {path.stem: path for path in sorted((folder / _FURTHER).glob("*.jinja"))}
    texts = {name: as_text(read_file(path), path) for name, path in files.items() if path.is_file()}
    value = settings.get(_KEY)
    if texts or value is None:
        return texts
    rows = value if isinstance(value, list) else [{"name": "default", "template": value}]
    named = {row.get("name"): row.get("template") for row in rows if isinstance(row, Mapping)}
    if not all(isinstance(part, str) for pair in named.items() for part in pair):
        raise TokenizerError(
            f"`{_KEY}` of {folder / CONFIG} must be a text, or a list of objects with name and template"
        )
    return {str(name): str(text) for name, text in named.items()}
