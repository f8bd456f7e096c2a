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
    """The attention maps of one text; see `record.AttentionRecord`."""

    @property
    def title(self) -> str:
        """The title, "" if there is none."""
        ...

    @property
    def model(self) -> str:
        """The name of the model, "" if it is not known."""
        ...

    @property
    def kinds(self) -> Mapping[str, Sequence[Matrix]]:
        """The layers of each kind, (H,rows,columns) each."""
        ...

    @property
    def masks(self) -> Mapping[str, str]:
        """The name of the mask of each kind."""
        ...

    @property
    def output_tokens(self) -> Sequence[str]:
        """The tokens that the decoder wrote, empty if they are not known."""
        ...

    @property
    def default_kind(self) -> str:
        """The kind that is meant if none is given."""
        ...

    def layers(self, kind: str | None = None) -> Sequence[Matrix]:
        """The layers of a kind, (H,rows,columns) each."""
        ...

    def sides(self, kind: str) -> tuple[Side, Side]:
        """The tokens of the rows and of the columns."""
        ...

    def weights(self, layer: int, head: Head, kind: str | None = None) -> Matrix:
        """The weights (rows,columns) of a layer and a head."""
        ...

    def word_weights(self, layer: int, head: Head, kind: str | None = None) -> WordWeights:
        """The weights merged by word."""
        ...
