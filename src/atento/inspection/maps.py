"""Attention maps as figures and pages read them: heads, tokens of both sides, and the interface of a record."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from atento.inspection.token_display import visible
from atento.inspection.word_groups import Group, Matrix, word_groups

Head = int | Literal["mean", "max"]


@dataclass(frozen=True)
class Side:
    """The tokens of one side of a map, with the word index of each (-1 for none), and whether it is special."""

    tokens: list[str]
    words: list[int]
    special: list[bool]

    def groups(self) -> list[Group]:
        """The tokens grouped into words."""
        return word_groups(self.tokens, self.words, self.special)

    def single_groups(self) -> list[Group]:
        """Each token as a group, with its subword marker."""
        return [
            Group(visible(token), word, at, at + 1, special)
            for at, (token, word, special) in enumerate(zip(self.tokens, self.words, self.special))
        ]


@dataclass(frozen=True)
class WordWeights:
    """A map merged by word: `weights` (T,S), with one row for each of `rows` and one column for each of `columns`."""

    weights: Matrix
    rows: list[Group]
    columns: list[Group]

    def __repr__(self) -> str:
        return f"WordWeights({len(self.rows)} x {len(self.columns)} words)"


class AttentionMaps(Protocol):
    """The attention maps of one text, with the names and meanings of `attention_record.AttentionRecord`."""

    @property
    def title(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def kinds(self) -> Mapping[str, Sequence[Matrix]]: ...
    @property
    def masks(self) -> Mapping[str, str]: ...
    @property
    def output_tokens(self) -> Sequence[str]: ...
    @property
    def default_kind(self) -> str: ...
    def layers(self, kind: str | None = None) -> Sequence[Matrix]: ...
    def sides(self, kind: str) -> tuple[Side, Side]: ...
    def weights(self, layer: int, head: Head, kind: str | None = None) -> Matrix: ...
    def word_weights(self, layer: int, head: Head, kind: str | None = None) -> WordWeights: ...
