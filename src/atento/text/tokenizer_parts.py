"""The parts of a tokenizer, as read from files of any layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from atento.text.specials import SpecialTokens
from atento.text.templates import Template


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
    """A tokenizer as read from files.

    Attributes:
        definition: the text of a `tokenizer.json`, read or built from other files.
        kind: one of the six kinds.
        specials: its special tokens.
        lowercase: whether it lower-cases text.
        native: whether Atento trained it.
        files: the files that were read, name -> bytes.
        template: the special tokens around texts.
        backend: the tokenizer, if it is not one of the library.
        target: the tokenizer of the target side, if there are two.
        family: the model family whose classes in `transformers` give the same ids from these files; None if there is
            none.
        truncation_side: the side at which texts that are too long are cut, "right" or "left".
        markers: the special tokens that texts may spell.
    """

    definition: str
    kind: str
    specials: SpecialTokens
    lowercase: bool
    native: bool
    files: Mapping[str, bytes]
    template: Template
    backend: Backend | None = None
    target: Parts | None = None
    family: str | None = None
    truncation_side: Literal["right", "left"] = "right"
    markers: tuple[str, ...] = ()
