"""Tokenizer of one side of a Marian model: SentencePiece splits the text, and `vocab.json` maps pieces to ids.

`vocab.json` serves both languages, so a piece of a `.spm` file may have no id, which makes it unknown, and an id may
have no piece. The package `sentencepiece` splits the text, so that its normalisation is exact.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atento.errors import MissingPartError, TokenizerError
from atento.text.pipelines import SPACE
from atento.text.spm import fields, read_model


@dataclass(frozen=True)
class Cut:
    """A text split into pieces; `offsets` count characters."""

    ids: list[int]
    tokens: list[str]
    offsets: list[tuple[int, int]]


class MarianSide:
    """The tokenizer of one side: a `.spm` file and a vocabulary."""

    def __init__(self, model: bytes, vocabulary: Mapping[str, int], specials: Mapping[str, int], unk: str, path: Path):
        """Args:
            model: the bytes of `source.spm` or `target.spm`.
            vocabulary: piece -> id.
            specials: the special pieces, with their ids.
            unk: the unknown piece, one of `specials`.
            path: the `.spm` file, for messages.

        Raises:
            TokenizerError: the file is truncated or not a SentencePiece model.
            MissingPartError: the package `sentencepiece` is not installed.
        """
        self.kind = read_model(model, path).kind
        try:
            import sentencepiece
        except ImportError:
            raise MissingPartError(f"reading {path.name} needs sentencepiece: pip install 'atento[spm]'") from None
        self._processor: Any = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model)
        except (RuntimeError, ValueError, OSError, TypeError) as error:
            raise TokenizerError(f"{path} must be a complete SentencePiece model: {error}") from None
        self._ids = vocabulary
        self._pieces = {i: piece for piece, i in vocabulary.items()}
        self._specials = specials
        self._unk_id = vocabulary[unk]

    def _id(self, piece: str) -> int:
        """The id of a piece of user text, which is never a special id except that of `unk`."""
        return self._unk_id if piece in self._specials else self._ids.get(piece, self._unk_id)

    def encode_batch_fast(self, input: Sequence[str], *, add_special_tokens: bool = False) -> list[Cut]:
        """Split many texts, without offsets; no special tokens are added."""
        cut = self._processor.Encode(list(input), out_type=str, num_threads=1)
        return [Cut([self._id(piece) for piece in pieces], list(pieces), []) for pieces in cut]

    def encode(self, sequence: str, *, add_special_tokens: bool = False) -> Cut:
        """Split a text, with the character offsets of each piece."""
        serialized = self._processor.Encode(sequence, out_type="serialized_proto")
        piece_fields = [
            dict(fields(value)) for number, value in fields(serialized) if number == 2 and isinstance(value, bytes)
        ]
        pieces = [bytes(piece_field.get(1, b"")).decode("utf-8", "replace") for piece_field in piece_fields]
        char_at: list[int] = []  # of each byte of the text, and of its end
        for i, char in enumerate(sequence):
            char_at += [i] * len(char.encode("utf-8"))
        char_at.append(len(sequence))
        offsets = [
            (char_at[int(piece_field.get(4, 0))], char_at[int(piece_field.get(5, 0))]) for piece_field in piece_fields
        ]
        return Cut([self._id(piece) for piece in pieces], pieces, offsets)

    def normalize(self, text: str) -> str:
        """Normalise a text as SentencePiece does."""
        return str(self._processor.Normalize(text)).replace(SPACE, " ").strip(" ")

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """The text of the pieces; special tokens have a space on both sides."""
        out: list[str] = []
        run = ""
        for i in ids:
            piece = self._pieces.get(i, "")
            if piece not in self._specials:
                run += piece
            elif not skip_special_tokens:
                out += [self._spelled(run), piece, " "]
                run = ""
        return ("".join(out) + self._spelled(run)).strip()

    @staticmethod
    def _spelled(run: str) -> str:
        return run.replace(SPACE, " ").removeprefix(" ")

    def id_to_token(self, id: int) -> str | None:
        """The piece of an id; None if the vocabulary has a gap there."""
        return self._pieces.get(id)

    def token_to_id(self, token: str) -> int | None:
        """The id of a piece; None if it has none."""
        return self._ids.get(token)

    def get_vocab(self, *, with_added_tokens: bool = True) -> Mapping[str, int]:
        """Piece -> id."""
        return self._ids
