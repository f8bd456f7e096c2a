"""Languages in the tokenizer of a multilingual model: new ones, and the one that its sources are in."""

import json
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from atento.base.errors import TokenizerError
from atento.base.nfc import tag_of
from atento.text.read_tokenizer import READS
from atento.text.released.sentencepiece_families import MBART50_LANGUAGES
from atento.text.released.sentencepiece_ids import M2M_LANGUAGES
from atento.text.specials import languages_of, token_like, token_of
from atento.text.tokenizer import Tokenizer
from atento.text.tokenizer_folder import CONFIG, DEFINITION, MAP, as_settings, write_folder

_LISTS = ("additional_special_tokens", "extra_special_tokens")
_FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
# the classes of transformers that take no other language for `src_lang`
_FIXED = {"m2m_100": M2M_LANGUAGES["m2m100"], "mbart50": MBART50_LANGUAGES, "marian": ()}


def in_languages(tokenizer: Tokenizer, new: Mapping[str, str], reads: str | None) -> Tokenizer:
    """A tokenizer with other languages, in files that `transformers` reads too.

    Args:
        tokenizer: of a multilingual model.
        new: the languages to add, each with a language that the tokenizer knows, whose token its own is like.
        reads: the language whose token a source has; None: as before.

    Raises:
        TokenizerError: there are no languages; a new one is there already, or is not named as the others are; a
            neighbour, or the language of sources, is unknown.
    """
    files, ids = tokenizer.files(), dict(zip(_new_tokens(tokenizer, new), count(tokenizer.vocab_size)))
    settings: dict[str, Any] = as_settings(files)
    stated = settings.get("added_tokens_decoder")
    if DEFINITION in files:  # the library's own file
        data = json.loads(files[DEFINITION])
        data["added_tokens"] += [{"id": number, "content": token, **_FLAGS} for token, number in ids.items()]
        files[DEFINITION] = _bytes(data)
    elif stated is not None:  # classes that state added tokens in their settings
        stated |= {str(number): {"content": token, **_FLAGS} for token, number in ids.items()}
    elif ids:  # classes that number them in a file
        name = "vocab.json" if tokenizer.family == "marian" else "added_tokens.json"
        files[name] = _bytes(json.loads(files.get(name, b"{}")) | ids)
    if ids:
        special = json.loads(files.get(MAP, b"{}"))
        key = next((key for key in _LISTS if isinstance((settings | special).get(key), list)), _LISTS[0])
        settings[key] = [*(settings | special).get(key, ()), *ids]
        if key in special:  # which holds over the settings
            files[MAP] = _bytes(special | {key: settings[key]})
    if reads is not None:
        (reads,) = languages_of([token_of(reads, [*tokenizer.specials.ids, *ids])])  # as the tokenizer spells it
        takes = reads in _FIXED.get(tokenizer.family or "", (reads,))
        settings |= {READS: reads, "src_lang": reads if takes else None}  # else the class would refuse it
    with TemporaryDirectory() as folder:
        write_folder(Path(folder), files | {CONFIG: _bytes(settings)})
        return Tokenizer.load(folder)


def _new_tokens(tokenizer: Tokenizer, new: Mapping[str, str]) -> list[str]:
    """The tokens of new languages, in their order. Raises TokenizerError: as `in_languages`."""
    languages, tokens = languages_of(tokenizer.specials.ids), list[str]()
    if not languages:
        raise TokenizerError(
            "the model has no tokens of languages: one of a single pair learns another by `init` and its pairs alone"
        )
    for name, neighbour in new.items():
        if tag_of(name) in map(tag_of, languages):
            raise TokenizerError(f"the model has the language {name!r} already: leave it out")
        (neighbour,) = languages_of([token_of(neighbour, languages.values())])
        token = token_like(name, neighbour, languages[neighbour])
        if token is None or tokenizer.token_id(token) is not None:
            raise TokenizerError(
                f"{name!r} would be read as text: name it as the model names its languages, such as {neighbour!r}"
            )
        tokens.append(token)
    return tokens


def _bytes(data: object) -> bytes:
    return (json.dumps(data, ensure_ascii=False, indent=2) + "\n").encode("utf-8")
