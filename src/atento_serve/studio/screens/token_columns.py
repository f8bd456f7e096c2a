"""The screen Tokens: a text under several tokenizers, the merges of a word, and a tokenizer trained on the spot."""

import hashlib
import json
from typing import Any, cast

from atento.base.errors import AtentoError
from atento.base.nfc import nfc
from atento.config.recipe import TokenizerConfig
from atento.text import Tokenizer, train_tokenizer, word_spans
from atento.text.kinds import KINDS
from atento_serve.http.errors import ServiceError, too_long
from atento_serve.http.fields import Fields, Row, bounded
from atento_serve.studio.shelf import MOST_TOKENIZERS, Function, Shelf, Values

_MOST_PIECES = 8_000
_MOST_TRAINING = 100_000  # characters: a few seconds, whatever they are
_MOST_WORD = 128  # characters of a word whose merges are shown
_CHARACTERS = 8  # of a text, for each token that the service reads


class ColumnFields(Fields):
    """A text; models or tokenizer folders by name; and tokenizers that were trained here, by their keys."""

    text: str
    names: Row[str]
    trained: Row[str]


class MergeFields(Fields):
    """A word, and a tokenizer: a name, or the key of one that was trained here."""

    word: str
    name: str | None = None
    trained: str | None = None


class TrainFields(Fields):
    """What a tokenizer is trained on, and how."""

    text: str
    kind: str
    vocab_size: int
    lowercase: bool = False


def _columns(shelf: Shelf, fields: ColumnFields) -> Values:
    """The text itself, and what each tokenizer makes of it; in the place of one that cannot be read, why."""
    bounded("names", len(fields.names), 0, MOST_TOKENIZERS)
    bounded("trained", len(fields.trained), 0, MOST_TOKENIZERS)
    text, most = fields.text, _CHARACTERS * shelf.limits.input_tokens
    if len(text) > most:
        raise too_long(f"a text must have at most {most:,} characters here: got {len(text):,}")
    normal = nfc(text)
    about = {
        "characters": len(text),
        "bytes": len(text.encode("utf-8", "surrogatepass")),  # half a surrogate pair counts too
        "words": len(word_spans(text)),
        "nfc": text == normal,
        "composed": len(normal),
    }
    columns = []
    for key, name, trained in [(n, n, None) for n in fields.names] + [(k, None, k) for k in fields.trained]:
        try:
            columns.append({"key": key, **_column(_found(shelf, name, trained), text, about["words"])})
        except (AtentoError, ServiceError) as error:
            columns.append({"key": key, "error": str(error)})
    return {"text": about, "columns": columns, "kinds": list(KINDS)}


def _found(shelf: Shelf, name: str | None, trained: str | None) -> Tokenizer:
    return shelf.trained(trained) if name is None and trained is not None else shelf.tokenizer(name or "")


def _column(tokenizer: Tokenizer, text: str, words: int) -> Values:
    encoded = tokenizer.encode_with_offsets(text)
    decoded, unknown = tokenizer.decode(encoded.ids), tokenizer.specials.get("unk")
    return {
        "kind": tokenizer.kind,
        "vocabulary": tokenizer.vocab_size,
        "notes": list(tokenizer.notes),
        "tokens": [
            [piece, number, start, end, -1 if word is None else word]
            for piece, number, (start, end), word in zip(
                encoded.tokens, encoded.ids, encoded.offsets, encoded.word_ids, strict=True
            )
        ],
        "unknown": unknown,
        "fertility": len(encoded.ids) / words if words else None,
        "decoded": decoded,
        "normalized": tokenizer.normalize(text),
    }


def _merges(shelf: Shelf, fields: MergeFields) -> Values:
    """For each part of a word that the model gets: (rank of the merge or null, pieces after it)."""
    if len(fields.word) > _MOST_WORD:
        raise too_long(f"a word must have at most {_MOST_WORD} characters here: got {len(fields.word):,}")
    return {"parts": list(_found(shelf, fields.name, fields.trained).sampler.merges(fields.word))}


def _train(shelf: Shelf, fields: TrainFields) -> Values:
    """The key of a tokenizer trained on a text; who has the text, and no one else, can make the key."""
    bounded("vocab_size", fields.vocab_size, 1, _MOST_PIECES)
    if len(fields.text) > _MOST_TRAINING:
        raise too_long(f"a text to train on must have at most {_MOST_TRAINING:,} characters: got {len(fields.text):,}")
    config = TokenizerConfig(cast(Any, fields.kind), vocab_size=fields.vocab_size, lowercase=fields.lowercase)
    key = hashlib.sha256(json.dumps(fields.model_dump()).encode("ascii")).hexdigest()
    tokenizer = shelf.trained(key, lambda: train_tokenizer(config, fields.text.splitlines()))
    return {"key": key, "kind": tokenizer.kind, "vocabulary": tokenizer.vocab_size, "notes": list(tokenizer.notes)}


FUNCTIONS: dict[str, Function] = {
    "tokens": (ColumnFields, _columns),
    "merges": (MergeFields, _merges),
    "train_tokenizer": (TrainFields, _train),
}
