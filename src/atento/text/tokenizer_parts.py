"""What a tokenizer is made of once its files are read, whatever files they were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from atento.text.specials import SpecialTokens
from atento.text.templates import Template


class Encoding(Protocol):
    """One text cut into pieces; `offsets` count characters of the text that was given."""

    @property
    def ids(self) -> list[int]: ...
    @property
    def tokens(self) -> list[str]: ...
    @property
    def offsets(self) -> list[tuple[int, int]]: ...


class Backend(Protocol):
    """What cuts text into pieces, for files that the `tokenizers` library cannot be told of (Marian's).

    The names are that library's, so that its own tokenizer can stand in the same place.
    """

    def encode(self, sequence: str, *, add_special_tokens: bool) -> Encoding: ...
    def encode_batch_fast(self, input: Sequence[str], *, add_special_tokens: bool) -> Sequence[Encoding]: ...
    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str: ...
    def normalize(self, text: str) -> str: ...
    def id_to_token(self, id: int) -> str | None: ...
    def token_to_id(self, token: str) -> int | None: ...
    def get_vocab(self, *, with_added_tokens: bool) -> Mapping[str, int]: ...


@dataclass(frozen=True)
class Parts:
    """A tokenizer as it was read.

    `definition`: the text of a `tokenizer.json`, read or put together. `kind`: one of the six. `own`: whether we
    trained it. `files`: what was read, by name, byte for byte. `template`: where its model wants special tokens.
    `backend`: what cuts text where the library does not. `target`: the other side, where there are two. `family`: that
    of the released models whose classes in `transformers` cut the same from these files.
    """

    definition: str
    kind: str
    specials: SpecialTokens
    lowercase: bool
    own: bool
    files: Mapping[str, bytes]
    template: Template
    backend: Backend | None = None
    target: Parts | None = None
    family: str | None = None
