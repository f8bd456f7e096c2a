"""Read SentencePiece `.model` files: pieces with scores, the kind of model, the normalisation table.

The files are protocol buffers: a sequence of fields, each a key (number * 8 + wire type) and a value. Only the fields
that decide ids are read. Field numbers are those of `sentencepiece_model.proto`.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from atento.base.errors import TokenizerError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""The types of pieces."""

_KINDS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}


@dataclass(frozen=True)
class Piece:
    """One entry of the vocabulary; `type` is one of NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE."""

    text: str
    score: float
    type: int


@dataclass(frozen=True)
class SentencePieceModel:
    """The content of a `.model` file.

    Attributes:
        one_space: whether runs of spaces become one and spaces at both ends are removed (`remove_extra_whitespaces`).
    """

    pieces: tuple[Piece, ...]
    kind: str
    byte_fallback: bool
    charsmap: bytes  # its compiled table of replacements; empty if it has none
    dummy_prefix: bool = True  # whether a space is added in front of a text
    one_space: bool = True

    @property
    def unk_id(self) -> int:
        """The id of the unknown piece."""
        return next(i for i, piece in enumerate(self.pieces) if piece.type == UNKNOWN)


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protocol buffer: number and value; packed, nested and text values are bytes.
    Raises ValueError: the bytes end inside a field, or are not a protocol buffer.
    """
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        coding = key & 7  # 0: a varint, 1 and 5: of 8 and 4 bytes, 2: behind its size
        if coding == 0:
            value: int | bytes
            value, at = _varint(data, at)
        else:
            if coding == 2:
                size, at = _varint(data, at)
            elif coding in (1, 5):
                size = 8 if coding == 1 else 4
            else:
                raise ValueError(f"byte {at} begins no field")
            value, at = data[at : at + size], at + size
            if at > len(data):
                raise ValueError("it ends inside a field")
        yield key >> 3, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A variable-length integer (seven bits per byte, the last byte below 128), and the offset of its end."""
    number = shift = 0
    while True:
        if at >= len(data):
            raise ValueError("it ends inside a field")
        if shift > 63:  # 64 bits at most
            raise ValueError(f"byte {at} is in no number")
        number |= (data[at] & 127) << shift  # seven bits, the lowest first
        at += 1
        if data[at - 1] < 128:
            return number, at
        shift += 7


def read_model(data: bytes, path: Path) -> SentencePieceModel:
    """Parse the bytes of a `.model` file.

    Args:
        data: the bytes.
        path: the file, for messages.

    Raises:
        TokenizerError: the file is truncated or not a SentencePiece model, its kind is not unigram or bpe, or a piece
            occurs twice; the message names the file and the rule.
    """
    pieces: list[Piece] = []
    trainer: dict[int, int | bytes] | None = None
    normalizer: dict[int, int | bytes] | None = None
    try:
        for number, value in fields(data):  # the fields of ModelProto
            if number == 1:
                content = dict(fields(_bytes(value)))  # 1: the piece, 2: its score, 3: its type
                score: float = struct.unpack("<f", _bytes(content.get(2, b"\0\0\0\0")))[0]
                form = content.get(3, NORMAL)
                if not isinstance(form, int) or not NORMAL <= form <= BYTE or score != score:  # NaN: unequal to itself
                    raise ValueError("a piece has a type or score that cannot be")
                pieces.append(Piece(_bytes(content.get(1, b"")).decode("utf-8"), score, form))
            elif number == 2:
                trainer = dict(fields(_bytes(value)))
            elif number == 3:
                normalizer = dict(fields(_bytes(value)))
        kind = _KINDS.get(int((trainer or {}).get(3, 1)), "unknown")  # 3: model_type; 1 is unigram
        charsmap = _bytes((normalizer or {}).get(2, b""))  # 2: precompiled_charsmap
        spaces = [bool((normalizer or {}).get(number, 1)) for number in (3, 4)]  # dummy prefix; extra spaces go
    except (ValueError, struct.error) as error:
        raise TokenizerError(f"{path} must be a complete SentencePiece model: {error}") from None
    if trainer is None or normalizer is None or not pieces:
        # These fields come last in the file, so a truncation between two fields is found here.
        missing = "pieces" if not pieces else "training settings" if trainer is None else "normaliser settings"
        raise TokenizerError(f"{path} must be a complete SentencePiece model: it has no {missing}")
    if kind not in ("unigram", "bpe"):
        raise TokenizerError(f"{path} must be a unigram or bpe model: got {kind}")
    if sum(piece.type == UNKNOWN for piece in pieces) != 1:
        raise TokenizerError(f"{path} must have one piece for the unknown")
    known: set[str] = set()
    for i, piece in enumerate(pieces):
        if piece.text in known:
            raise TokenizerError(f"the pieces of {path} must differ from one another: got {piece.text!r} again at {i}")
        known.add(piece.text)
    return SentencePieceModel(tuple(pieces), kind, bool(trainer.get(35, 0)), charsmap, *spaces)  # 35: byte_fallback


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("got a number in place of text or a table")
    return value


def merges_of(model: SentencePieceModel) -> list[tuple[str, str]]:
    """The merges of a bpe model: all ways to join two pieces to a third, ordered by the id of the third, then lengths.

    Control, unknown and byte pieces are not used.
    """
    ids = {piece.text: i for i, piece in enumerate(model.pieces) if piece.type in (NORMAL, USER_DEFINED)}
    merges: list[tuple[str, str]] = []
    for text in ids:  # in the order of the ids
        splits = [(text[:cut], text[cut:]) for cut in range(1, len(text))]
        known = [(left, right) for left, right in splits if left in ids and right in ids]
        merges += sorted(known, key=lambda pair: (len(pair[0]), len(pair[1])))
    return merges
