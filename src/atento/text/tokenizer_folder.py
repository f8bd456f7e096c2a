"""The parts of a tokenizer: its files, the special tokens that they declare, the library's tokenizer of them."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import tokenizers
from tokenizers import Regex, pre_tokenizers

from atento.base.errors import AtentoError, TokenizerError
from atento.base.limits import read_plain
from atento.text.specials import STANDARD, SpecialTokens, Template, is_sentinel

DEFINITION = "tokenizer.json"
CONFIG = "tokenizer_config.json"
MAP = "special_tokens_map.json"
EXTRA = "extra_special_tokens"
_MAX_BYTES = 256 * 2**20
MOST_IDS = 1 << 24  # the library walks all ids from 0 to the last one

# Role -> its keys in settings files, in order of preference.
_ROLE_KEYS = {
    "pad": ("pad_token",),
    "unk": ("unk_token",),
    "bos": ("bos_token", "cls_token"),
    "eos": ("eos_token", "sep_token"),
    "mask": ("mask_token",),
}


def folder_files(definition: str, kind: str, lowercase: bool, specials: SpecialTokens) -> dict[str, bytes]:
    """The files of a tokenizer trained by Atento: name -> bytes."""
    config = special_strings(specials) | {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,  # user text never becomes special ids, in `transformers` neither
        "atento": {"kind": kind, "lowercase": lowercase},
    }
    text = json.dumps(config, ensure_ascii=False, indent=2) + "\n"
    return {DEFINITION: definition.encode("utf-8"), CONFIG: text.encode("utf-8")}


def special_strings(specials: SpecialTokens) -> dict[str, object]:
    """The special tokens as the keys of `tokenizer_config.json`."""
    config: dict[str, object] = {f"{role}_token": text for role, text in specials.roles.items()}
    extra = [text for text in specials.ids if text not in specials.roles.values()]
    return config | {EXTRA: extra} if extra else config


def as_settings(files: Mapping[str, bytes]) -> dict[str, object]:
    """The `tokenizer_config.json` among the files of a tokenizer; empty if it has none."""
    return as_object(as_text(files[CONFIG], Path(CONFIG)), Path(CONFIG)) if CONFIG in files else {}


def write_folder(directory: Path, files: Mapping[str, bytes]) -> None:
    """Write the files to a folder, which is created if it does not exist: all of them, or none on a full disk.
    Raises AtentoError: the folder cannot be written; the message has the reason of the system.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (directory / f".{name}").write_bytes(content)  # beside, so that a full disk leaves the old files
        for name in files:
            (directory / f".{name}").replace(directory / name)
    except OSError as error:
        for name in files:
            with suppress(OSError):
                (directory / f".{name}").unlink()
        raise AtentoError(f"cannot write the tokenizer to {directory}: {error.strerror or error}") from error


def read_file(path: Path) -> bytes:
    """Read the bytes of a tokenizer file.
    Raises TokenizerError: the file cannot be read, is no plain file, or is larger than any tokenizer.
    """
    try:
        content = read_plain(path, _MAX_BYTES)
    except OSError as error:
        raise TokenizerError(f"cannot read {path}: {error.strerror or error}") from error
    if content.startswith(b"version https://git-lfs"):
        raise TokenizerError(f"{path} is a Git LFS pointer, not the file itself: fetch it with `git lfs pull`")
    return content


def as_text(content: bytes, path: Path) -> str:
    """Decode the bytes of a file as UTF-8, with unchanged line ends.
    Raises TokenizerError: the bytes are not UTF-8; the message names file and byte.
    """
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{path} must be UTF-8: byte {error.start} is not") from None


def as_object(text: str, path: Path) -> dict[str, Any]:
    """Parse the text of a file as a JSON object.
    Raises TokenizerError: it is not a JSON object; the message names the file.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{path} must be JSON: {error}") from None
    if not isinstance(data, dict):
        raise TokenizerError(f"{path} must hold a JSON object: got {type(data).__name__}")
    return data


def read_settings(directory: Path, files: dict[str, bytes], side: str = "") -> dict[str, object]:
    """The settings of `tokenizer_config.json` and `special_tokens_map.json`; empty if there is neither file.

    The second one wins, as in transformers, which reads it where the first one has no `added_tokens_decoder`.

    Args:
        directory: the folder.
        files: receives the bytes of the files that are read, by name.
        side: what the names of the files begin with in the folder.

    Raises:
        TokenizerError: a file is malformed; the message names it.
    """
    settings: dict[str, object] = {}
    for name in (CONFIG, MAP):
        path = directory / f"{side}{name}"
        if path.is_file():
            files[name] = read_file(path)
            stated = as_object(as_text(files[name], path), path)
            settings |= stated if name == CONFIG or "added_tokens_decoder" not in settings else {}
    return settings


def token_text(named: object) -> str | None:
    """The string of a token in a settings file, given as a string or with flags; None if there is none."""
    text = named.get("content") if isinstance(named, dict) else named
    return text if isinstance(text, str) else None


def specials_of(data: dict[str, Any], config: dict[str, object], where: Path) -> SpecialTokens:
    """The special tokens of tokenizer files, of Atento or of other projects.
    Raises TokenizerError: a declared token is not in the vocabulary, or a token of Atento is not at its fixed id.
    """
    ids: dict[str, int] = {}
    vocabulary = vocabulary_of(data["model"], where)
    added = data.get("added_tokens")
    for token in added if isinstance(added, list) else ():
        if isinstance(token, dict) and token.get("special") and isinstance(token.get("content"), str):
            # If the two differ, the library uses the vocabulary.
            number = vocabulary.get(token["content"], token.get("id"))
            ids[token["content"]] = number if isinstance(number, int) else -1
    roles: dict[str, str] = {}
    for role, keys in _ROLE_KEYS.items():
        for key in keys:
            text = token_text(config.get(key))
            if text is None or (role in roles and text not in vocabulary):
                continue
            if text not in ids and text not in vocabulary:
                raise TokenizerError(f"the {role} token {text!r} of {where / CONFIG} is not in the vocabulary")
            roles.setdefault(role, text)
            ids.setdefault(text, vocabulary.get(text, -1))
    for key in ("additional_special_tokens", EXTRA, "model_specific_special_tokens"):  # a list, or by name
        named = config.get(key)
        listed = named.values() if isinstance(named, dict) else named if isinstance(named, list) else ()
        for text in map(token_text, listed):
            if text in vocabulary:
                ids.setdefault(text, vocabulary[text])
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
    model = data["model"]
    by_number = next((text for text, i in vocabulary.items() if i == model.get("unk_id")), None)
    unknown = by_number if model.get("type") == "Unigram" else model.get("unk_token")
    has_none = unknown is None and model.get("type") == "BPE"  # as GPT-2: its bytes spell everything
    known = isinstance(unknown, str) and unknown in vocabulary
    if not has_none and (not known or (unknown in ids and unknown != roles.get("unk", unknown))):
        raise TokenizerError(f"the unknown token of {where / DEFINITION} must be {roles.get('unk')!r}: got {unknown!r}")
    return SpecialTokens(roles, ids)


def is_id(number: object) -> bool:
    """Whether it can be the id of a token."""
    return type(number) is int and 0 <= number < MOST_IDS


def vocabulary_of(model: dict[str, object], where: Path) -> dict[str, int]:
    """The ids of the pieces of a `tokenizer.json`. Raises TokenizerError: a number that no token has."""
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        for piece, number in vocabulary.items():
            if not is_id(number):
                raise TokenizerError(
                    f"{where / DEFINITION} must give each piece an id from 0 to {MOST_IDS - 1:,}: got {number!r:.40} "
                    f"for {piece!r:.40}"
                )
        if model.get("type") == "BPE" and len(set(vocabulary.values())) < len(vocabulary):
            # the library would keep one of the two by chance, and fail where a merge needs the other
            twice, _ = Counter(vocabulary.values()).most_common(1)[0]
            raise TokenizerError(f"{where / DEFINITION} must give each piece an id of its own: two have id {twice}")
        return vocabulary
    entries = enumerate(vocabulary) if isinstance(vocabulary, list) else ()
    return {entry[0]: i for i, entry in entries if isinstance(entry, list) and entry and isinstance(entry[0], str)}


class Encoding(Protocol):
    """A text split into pieces; `offsets` count characters of the given text."""

    @property
    def ids(self) -> list[int]: ...
    @property
    def tokens(self) -> list[str]: ...
    @property
    def offsets(self) -> list[tuple[int, int]]: ...


class Backend(Protocol):
    """The interface of a tokenizer of the `tokenizers` library, also for files that it does not support (Marian)."""

    def encode(self, sequence: str, *, add_special_tokens: bool) -> Encoding: ...
    def encode_batch_fast(self, input: Sequence[str], *, add_special_tokens: bool) -> Sequence[Encoding]: ...
    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str: ...
    def normalize(self, text: str) -> str: ...
    def id_to_token(self, id: int) -> str | None: ...
    def token_to_id(self, token: str) -> int | None: ...
    def get_vocab(self, *, with_added_tokens: bool) -> Mapping[str, int]: ...


@dataclass(frozen=True)
class Parts:
    """A tokenizer as read from files."""

    definition: str  # the text of a `tokenizer.json`, read or built from other files
    kind: str  # one of the six kinds
    specials: SpecialTokens  # its special tokens
    lowercase: bool  # whether it lower-cases text
    native: bool  # whether Atento trained it
    files: Mapping[str, bytes]  # the files that were read, name -> bytes
    template: Template  # the special tokens around texts
    backend: Backend | None = None  # the tokenizer, if it is not one of the library
    target: Parts | None = None  # the tokenizer of the target side, if there are two
    family: str | None = None  # whose classes in `transformers` give the same ids from these files
    truncation_side: Literal["right", "left"] = "right"  # where texts that are too long are cut
    markers: tuple[str, ...] = ()  # the special tokens that texts may spell
    overruled: tuple[str, ...] = ()  # what one of the files says and another one overrules, with the one that holds


def library_backend(definition: str, specials: SpecialTokens) -> tokenizers.Tokenizer:
    """The library's tokenizer of a `tokenizer.json`, without truncation and padding, and with
    `protect_special_strings`.
    Raises TokenizerError: the library cannot read it.
    """
    try:
        backend = tokenizers.Tokenizer.from_str(definition)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises Exception, and its panics are BaseException
        raise TokenizerError(f"tokenizer.json cannot be read as a tokenizer: {error}") from None
    backend.no_truncation()
    backend.no_padding()
    protect_special_strings(backend, specials)
    return backend


def mask_backend(definition: Mapping[str, Any], specials: SpecialTokens) -> tokenizers.Tokenizer:
    """The same tokenizer, except that the strings of its mask and of its sentinels in a text become those tokens.

    Args:
        definition: the parsed `tokenizer.json`.
        specials: its special tokens.
    """
    hidden = {text for text in specials.ids if text == specials.roles.get("mask") or is_sentinel(text)}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = {token["content"]: token for token in definition.get("added_tokens") or []}
    for text in hidden:
        added[text] = {**added.get(text, {"id": specials.ids[text], "content": text, **plain}), "special": False}
    tokens = sorted(added.values(), key=lambda token: int(token["id"]))
    return library_backend(json.dumps({**definition, "added_tokens": tokens}), specials)


def protect_special_strings(backend: tokenizers.Tokenizer, specials: SpecialTokens) -> None:
    """Ensure that user text never becomes a special id, whatever the vocabulary.

    The library leaves special strings in a text alone. Since some models (XLM-R) have them as ordinary pieces too, each
    such string is split after its first character before the model sees it.
    """
    backend.encode_special_tokens = True
    tails: dict[str, list[str]] = {}
    for text in specials.ids:
        if len(text) > 1:
            tails.setdefault(text[0], []).append(text[1:])
    if not tails or not _may_make(json.loads(backend.to_str())["model"], specials):
        return
    cuts = [f"{quoted(head)}(?={'|'.join(map(quoted, suffixes))})" for head, suffixes in tails.items()]
    cut = pre_tokenizers.Split(Regex("|".join(cuts)), "isolated")
    before = backend.pre_tokenizer
    backend.pre_tokenizer = cut if before is None else pre_tokenizers.Sequence([before, cut])


def _may_make(model: Mapping[str, Any], specials: SpecialTokens) -> bool:
    """Whether the model could make a special string of text after the usual pre-tokenization."""
    if model["type"] == "BPE":
        return any("".join(merge).replace(" ", "") in specials.ids for merge in model["merges"])
    if model["type"] == "WordPiece":  # punctuation is split off before
        return any(text.isalnum() for text in specials.ids)
    return True


def quoted(text: str) -> str:
    """Escape a string for Oniguruma."""
    return re.sub(r"([^\w<>/])", r"\\\1", text)
