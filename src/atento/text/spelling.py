"""From ids to text: the piece of each id, its spelling, and the text that ids decode to."""

from collections.abc import Mapping, Sequence
from typing import Any

from atento.text.detokenize import detokenize
from atento.text.pipelines import kind_named, spellings
from atento.text.specials import SpecialTokens
from atento.text.tokenizer_parts import Backend

UNREADABLE = "\ufffd"
"""The replacement character, which stands for an unknown piece."""


class Spelling:
    """The spelling of the ids of a tokenizer.

    Attributes:
        hidden: the special ids that have no text.
    """

    def __init__(
        self, backend: Backend, definition: Mapping[str, Any], kind: str, specials: SpecialTokens, native: bool
    ) -> None:
        """Args:
        backend: the tokenizer of the library.
        definition: the parsed `tokenizer.json`.
        kind: the kind of tokenizer.
        specials: its special tokens.
        native: whether Atento trained it.
        """
        self._backend, self._kind, self._native = backend, kind, native
        self._row, self._spell = kind_named(kind), spellings(definition)
        self._unk = specials.get("unk")
        self._special_ids = frozenset(specials.ids.values())
        self.hidden = self._special_ids - specials.visible_ids

    def piece(self, token_id: int) -> str:
        """The piece of an id, as in the vocabulary."""
        return self._backend.id_to_token(token_id) or ""

    def of(self, token_id: int) -> bytes | str:
        """The text of an id, or its bytes, which may be part of a character; U+FFFD for the unknown token."""
        if token_id == self._unk:
            return UNREADABLE if self._row.spaces else " " + UNREADABLE
        return self._spell(self.piece(token_id))

    def text(self, ids: Sequence[int]) -> str:
        """The text of ids, special ones included."""
        if not self._row.spaces and self._native:
            return self._joined_words(ids)
        text = str(self._backend.decode(ids, skip_special_tokens=False))
        return self._joined_bytes(ids) if self._native and UNREADABLE in text and self._row.bytes else text

    def _joined_words(self, ids: Sequence[int]) -> str:
        """The text of pieces that do not encode spaces, which are added by rule."""
        words: list[str] = []
        for token_id in ids:
            piece = self.piece(token_id)
            spelling = " " + piece if token_id in self._special_ids else self._spell(piece)
            if isinstance(spelling, bytes):
                spelling = spelling.decode("utf-8", "replace")
            if spelling.startswith(" ") or not words:
                words.append(spelling.removeprefix(" "))
            else:
                words[-1] += spelling
        return detokenize(words)

    def _joined_bytes(self, ids: Sequence[int]) -> str:
        """The text of pieces, byte by byte; the library makes a whole run unreadable for one broken character."""
        spelt = [self._spell(self.piece(token_id)) for token_id in ids]
        joined = b"".join(spelling if isinstance(spelling, bytes) else spelling.encode("utf-8") for spelling in spelt)
        return joined.decode("utf-8", "replace").removeprefix("" if self._kind == "byte" else " ")
