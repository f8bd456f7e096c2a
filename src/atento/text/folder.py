"""A tokenizer as files, in the Hugging Face layout: `tokenizer.json` and `tokenizer_config.json`."""

import json
from pathlib import Path
from typing import Any

from atento.errors import TokenizerError
from atento.text.specials import STANDARD, SpecialTokens

DEFINITION = "tokenizer.json"
CONFIG = "tokenizer_config.json"
_MAX_BYTES = 256 * 2**20

# Our role -> the keys other people's files give it, in order of preference.
_ROLE_KEYS = {
    "pad": ("pad_token",),
    "unk": ("unk_token",),
    "bos": ("bos_token", "cls_token"),
    "eos": ("eos_token", "sep_token"),
    "mask": ("mask_token",),
}


def folder_files(definition: str, kind: str | None, lowercase: bool, specials: SpecialTokens) -> dict[str, bytes]:
    """Both files by name, as bytes. `kind` None: not a tokenizer of ours."""
    config: dict[str, Any] = {f"{role}_token": text for role, text in specials.roles.items()}
    others = [text for text in specials.ids if text not in specials.roles.values()]
    if others:
        config["extra_special_tokens"] = others
    config |= {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,  # user text never makes special ids, there too
    }
    if kind is not None:
        config["atento"] = {"kind": kind, "lowercase": lowercase}
    text = json.dumps(config, ensure_ascii=False, indent=2) + "\n"
    return {DEFINITION: definition.encode("utf-8"), CONFIG: text.encode("utf-8")}


def write_folder(directory: Path, files: dict[str, bytes]) -> None:
    """Writes the files; the folder is made if it is missing.

    Raises:
        TokenizerError: the folder cannot be written; the message names the file and the system's reason.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (directory / name).write_bytes(content)
    except OSError as error:
        raise TokenizerError(f"cannot write the tokenizer to {directory}: {error.strerror or error}") from error


def read_folder(directory: Path) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """The text of `tokenizer.json`, the same as plain data, and `tokenizer_config.json` (empty where there is none).

    Raises:
        TokenizerError: no such folder or file, or one that is not what it should be; the message names it.
    """
    path = directory / DEFINITION
    if not directory.is_dir():
        raise TokenizerError(f"no tokenizer at {directory}: there is no such folder")
    if not path.is_file():
        raise TokenizerError(f"no tokenizer in {directory}: it has no {DEFINITION}")
    text = _read(path)
    data = _object(text, path)
    model = data.get("model")
    if not isinstance(model, dict) or not model.get("vocab"):
        raise TokenizerError(f"{path} must hold a model with a vocabulary")
    config: dict[str, Any] = {}
    for name in ("special_tokens_map.json", CONFIG):
        if (directory / name).is_file():
            config |= _object(_read(directory / name), directory / name)
    return text, data, config


def specials_of(data: dict[str, Any], config: dict[str, Any], where: Path) -> SpecialTokens:
    """The table of special tokens of files that were read, ours or another project's.

    Raises:
        TokenizerError: a named token is not in the vocabulary, or one of ours is not at its fixed id.
    """
    ids: dict[str, int] = {}
    vocabulary = _vocabulary(data["model"])
    added = data.get("added_tokens")
    for token in added if isinstance(added, list) else ():
        if isinstance(token, dict) and token.get("special") and isinstance(token.get("content"), str):
            # The library goes by the vocabulary where the two differ.
            number = vocabulary.get(token["content"], token.get("id"))
            ids[token["content"]] = number if isinstance(number, int) else -1
    roles: dict[str, str] = {}
    for role, keys in _ROLE_KEYS.items():
        for key in keys:
            named = config.get(key)
            text = named.get("content") if isinstance(named, dict) else named
            if isinstance(text, str) and role not in roles:
                if text not in ids and text not in vocabulary:
                    raise TokenizerError(f"the {role} token {text!r} of {where / CONFIG} is not in the vocabulary")
                roles[role] = text
                ids.setdefault(text, vocabulary.get(text, -1))
    if "atento" in config:
        for expected, (role, text) in enumerate(STANDARD.items()):
            if roles.get(role) != text or ids.get(text) != expected:
                raise TokenizerError(
                    f"the {role} token of {where} must be {text!r} with id {expected}: "
                    f"got {roles.get(role)!r} with id {ids.get(roles.get(role, ''))}"
                )
    for text, number in ids.items():
        if not isinstance(number, int) or number < 0:
            raise TokenizerError(f"the special token {text!r} of {where / DEFINITION} must have an id")
    _check_unknown(data["model"], roles, ids, vocabulary, where)
    return SpecialTokens(roles, ids)


def _check_unknown(
    model: dict[str, Any], roles: dict[str, str], ids: dict[str, int], vocabulary: dict[str, int], where: Path
) -> None:
    """Refuses a model whose unknown token is missing, or is another special token than the one named unknown."""
    unigram = model.get("type") == "Unigram"
    named = next((text for text, i in vocabulary.items() if i == model.get("unk_id")), None)
    unknown = named if unigram else model.get("unk_token")
    if unknown is None and model.get("type") == "BPE":
        return  # GPT-2 has none: its bytes spell everything
    if (
        not isinstance(unknown, str)
        or unknown not in vocabulary
        or (unknown in ids and unknown != roles.get("unk", unknown))
    ):
        raise TokenizerError(f"the unknown token of {where / DEFINITION} must be {roles.get('unk')!r}: got {unknown!r}")


def _vocabulary(model: dict[str, Any]) -> dict[str, int]:
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        return vocabulary
    entries = enumerate(vocabulary) if isinstance(vocabulary, list) else ()
    return {entry[0]: i for i, entry in entries if isinstance(entry, list) and entry and isinstance(entry[0], str)}


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise TokenizerError(f"{path} must be at most {_MAX_BYTES // 2**20} MiB: got {path.stat().st_size} bytes")
        with path.open(encoding="utf-8", newline="") as file:
            return file.read()
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{path} must be UTF-8: byte {error.start} is not") from None
    except OSError as error:
        raise TokenizerError(f"cannot read {path}: {error.strerror or error}") from error


def _object(text: str, path: Path) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{path} must be JSON: {error}") from None
    if not isinstance(data, dict):
        raise TokenizerError(f"{path} must hold a JSON object: got {type(data).__name__}")
    return data
