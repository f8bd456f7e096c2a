"""Tokenizers of released model families, built from their own files with the `tokenizers` library.

BERT's WordPiece, the byte-level BPE of GPT-2 and RoBERTa, and GPT-1's lower-cased BPE (docs/notes.md#d1, #d2);
`sentencepiece_families.py` has those with a SentencePiece model.
"""

import hashlib
import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from atento.base.errors import TokenizerError
from atento.text.kinds import SPACE
from atento.text.specials import Template
from atento.text.tokenizer_folder import as_object, as_text, is_id, token_text


@dataclass(frozen=True)
class Sources:
    """A tokenizer folder: path, settings, and the bytes of its files by name."""

    directory: Path
    config: Mapping[str, Any]
    files: Mapping[str, bytes]

    def flag(self, name: str, default: bool | None) -> bool | None:
        """A boolean setting. Raises TokenizerError: the value is not a boolean."""
        value = self.config.get(name, default)
        if value is not None and not isinstance(value, bool):
            raise TokenizerError(f"`{name}` in {self.directory} must be true or false: got {value!r}")
        return value


@dataclass(frozen=True)
class Built:
    """A tokenizer of the library."""

    backend: tokenizers.Tokenizer
    kind: str
    lowercase: bool = False
    specials: tuple[str, ...] = ()  # special strings that the files declare
    same_as_transformers: bool = True  # whether the classes of `transformers` give the same ids from the same files
    mask_takes_space: bool = True  # whether the mask token includes the space before it, unless the settings say


def digest(content: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


# Vocabulary files


def numbered(content: bytes, path: Path, *, may_be_empty: bool = False) -> dict[str, int]:
    """Read a vocabulary from JSON: piece -> id.

    Raises:
        TokenizerError: it is not JSON, or empty and may not be, or an id is not an integer from 0 on, or occurs twice.
    """
    data = as_object(as_text(content, path), path)
    if not data and not may_be_empty:
        raise TokenizerError(f"{path} must hold a vocabulary: it is empty")
    piece_of_id: dict[int, str] = {}
    for piece, number in data.items():
        if not is_id(number):
            raise TokenizerError(f"{path} must give each piece an id: got {number!r:.40} for {piece!r:.40}")
        if number in piece_of_id:
            raise TokenizerError(
                f"{path} must give each piece its own id: {piece_of_id[number]!r} and {piece!r} have {number}"
            )
        piece_of_id[number] = piece
    return data


def listed(content: bytes, path: Path) -> dict[str, int]:
    """Read a vocabulary with one piece per line, from id 0 on.

    Of a piece that is on several lines the last counts, as in transformers; the ids of the others have no piece.
    Raises TokenizerError: it is empty.
    """
    lines = [line.rstrip() for line in as_text(content, path).split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    if not lines:
        raise TokenizerError(f"{path} must hold a vocabulary: it is empty")
    return {piece: number for number, piece in enumerate(lines)}


def merged(content: bytes, path: Path, vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    """Read the merges of a `merges.txt`, in order.
    Raises TokenizerError: a line is not two pieces, or a piece or the result of a merge is not in the vocabulary.
    """
    merges: list[tuple[str, str]] = []
    for number, line in enumerate(as_text(content, path).split("\n"), 1):
        line = line.rstrip("\r")
        if not line or line.startswith("#version"):  # the first line of the library's files
            continue
        parts = line.split(" ")
        if len(parts) != 2 or not all(parts):
            raise TokenizerError(f"{path}, line {number}: a merge must be two pieces and a space between: got {line!r}")
        for piece in (parts[0], parts[1], parts[0] + parts[1]):
            if piece not in vocabulary:
                raise TokenizerError(f"{path}, line {number}: the vocabulary has no piece {piece!r}")
        merges.append((parts[0], parts[1]))
    return merges


def unknown(config: Mapping[str, object], default: str, vocabulary: Mapping[str, int], path: Path) -> str:
    """The unknown token, from the settings or the family. Raises TokenizerError: it is not in the vocabulary."""
    unk = token_text(config.get("unk_token")) or default
    if unk not in vocabulary:
        raise TokenizerError(f"{path} must hold {unk!r}, the piece for what is unknown")
    return unk


# Families


def bert(sources: Sources) -> Built:
    """WordPiece with BERT's pre-tokenization (Devlin et al. 2019), from `vocab.txt`.

    Settings and their defaults: `do_lower_case` (true), `strip_accents` (that of `do_lower_case`),
    `tokenize_chinese_chars` (true).
    """
    path = sources.directory / "vocab.txt"
    vocabulary = listed(sources.files["vocab.txt"], path)
    unk = unknown(sources.config, "[UNK]", vocabulary, path)
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=unk, max_input_chars_per_word=100))
    backend.normalizer = bert_normalizer(sources)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    return Built(backend, "wordpiece", bool(sources.flag("do_lower_case", True)), mask_takes_space=False)


def bert_normalizer(sources: Sources) -> normalizers.BertNormalizer:
    """BERT's normalisation, with the settings of `bert`."""
    return normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=bool(sources.flag("tokenize_chinese_chars", True)),
        strip_accents=sources.flag("strip_accents", None),
        lowercase=bool(sources.flag("do_lower_case", True)),
    )


def _vocabulary_and_merges(sources: Sources) -> tuple[dict[str, int], list[tuple[str, str]]]:
    vocabulary = numbered(sources.files["vocab.json"], sources.directory / "vocab.json")
    return vocabulary, merged(sources.files["merges.txt"], sources.directory / "merges.txt", vocabulary)


def byte_level(sources: Sources) -> Built:
    """Byte-level BPE (Radford et al. 2019) of GPT-2, RoBERTa and BART.

    Setting: `add_prefix_space` (false), whether the first word gets a space like the others.
    """
    vocabulary, merges = _vocabulary_and_merges(sources)
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges, fuse_unk=False))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=bool(sources.flag("add_prefix_space", False)))
    backend.decoder = decoders.ByteLevel()
    return Built(backend, "bpe")


def gpt1(sources: Sources) -> Built:
    """Lower-cased BPE with `</w>` at the end of words (Radford et al. 2018), with BERT's pre-tokenization."""
    vocabulary, merges = _vocabulary_and_merges(sources)
    unk = unknown(sources.config, "<unk>", vocabulary, sources.directory / "vocab.json")
    model = models.BPE(vocabulary, merges, unk_token=unk, end_of_word_suffix="</w>", fuse_unk=False)
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.BPEDecoder(suffix="</w>")
    return Built(backend, "bpe", True)


def stated_tokens(sources: Sources) -> dict[int, AddedToken]:
    """The tokens that the settings and `added_tokens.json` add to the vocabulary or mark in it, by id."""
    directory, stated = sources.directory, dict[int, AddedToken]()
    decoder = sources.config.get("added_tokens_decoder")
    for key, token in decoder.items() if isinstance(decoder, dict) else ():
        text = token_text(token)
        if text is None or not key.isdecimal() or len(key) > 8:  # longer numbers are no ids
            raise TokenizerError(
                f"`added_tokens_decoder` in {directory} must map ids to tokens: got {key!r}: {token!r}"
            )
        stated[int(key)] = added_token(text, token, special=bool(isinstance(token, dict) and token.get("special")))
    if "added_tokens.json" in sources.files:
        path = directory / "added_tokens.json"
        added = numbered(sources.files["added_tokens.json"], path, may_be_empty=True)  # BERTimbau's is `{}`
        for text, number in added.items():
            stated.setdefault(number, AddedToken(text, normalized=True, special=False))
    return stated


def added_token(text: str, flags: object, *, special: bool) -> AddedToken:
    """A token of the library, with the flags of the settings."""
    names = ("lstrip", "rstrip", "single_word", "normalized")
    flag_values = (
        {name: bool(flags.get(name, False)) for name in names} if isinstance(flags, dict) else {"normalized": False}
    )
    return AddedToken(text, special=special, **flag_values)


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

    The classes of `transformers` set them from the keys of `tokenizer_config.json`, whatever the file has; a generic
    class sets none.
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


def ignored_keys(config: Mapping[str, object], data: Part, template: Template) -> list[str]:
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
