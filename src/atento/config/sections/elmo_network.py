"""Options of ELMo and of networks of word vectors (CBOW, skip-gram)."""

from dataclasses import dataclass
from typing import Literal

from atento.base.errors import RecipeError
from atento.config.literals import check_choices, check_numbers

N_CHARACTERS = 262  # ELMo's alphabet: 0 for no word, the 256 bytes, five marks (`atento.text.characters`)


@dataclass(frozen=True)
class CharacterConfig:
    """How a word is read from its characters (Peters et al. 2018; Kim et al. 2016; docs/notes.md#c14)."""

    d_char: int = 16
    """Width of a character's vector. [at least 1]"""
    filters: tuple[tuple[int, int], ...] = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
    """Width and count of the convolutions. [width at most `max_characters`]"""
    n_highway: int = 2
    """Highway layers after the convolutions. [0 to 100]"""
    max_characters: int = 50
    """Length of words, with marks of begin and end. [3 to 10,000]"""
    activation: Literal["relu", "tanh"] = "relu"
    """Activation after the convolutions."""
    projection: bool = True
    """Project to d_model; else the counts of `filters` must add up to it."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_numbers(self, d_char="be at least 1")
        if not 3 <= self.max_characters <= 10_000:
            raise RecipeError(
                f"`max_characters` must lie from 3, a word's two marks and one byte, to 10,000: "
                f"got {self.max_characters}"
            )
        if not self.filters:
            raise RecipeError("`filters` must hold at least one (width, count): got none")
        for pair in self.filters:
            if len(pair) != 2 or min(pair) < 1:
                raise RecipeError(f"`filters` must be pairs of width and count, both at least 1: got {tuple(pair)}")
            if pair[0] > self.max_characters:
                raise RecipeError(
                    f"the width of `filters` must not exceed `max_characters`: got {pair[0]} and {self.max_characters}"
                )
        if not 0 <= self.n_highway <= 100:
            raise RecipeError(f"`n_highway` must lie from 0 to 100: got {self.n_highway}")

    @property
    def n_filters(self) -> int:
        """Width of what the convolutions find: all counts together."""
        return sum(count for _, count in self.filters)


@dataclass(frozen=True)
class ELMoConfig:
    """The bidirectional LSTM language model (Peters et al. 2018); `d_model` is the width of one direction.

    See docs/notes.md#c14.
    """

    characters: CharacterConfig | None = CharacterConfig()
    """Options of words as characters. [null: words are read by id]"""
    d_cell: int = 4096
    """Width of the memory cell. [at least 1]"""
    cell_clip: float | None = 3.0
    """Bound of the cell's values. [above 0; null: none]"""
    projection_clip: float | None = 3.0
    """Bound of the projected values. [above 0; null: none]"""
    skip: bool = True
    """Add a layer's input to its output, from the second layer on."""
    mix_norm: bool = False
    """Normalise layers before they are mixed."""

    def __post_init__(self) -> None:
        check_numbers(self, d_cell="be at least 1")
        for name in ("cell_clip", "projection_clip"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise RecipeError(f"`{name}` must be above 0, or null for none: got {value}")


@dataclass(frozen=True)
class CBOWConfig:
    """Word vectors from a window of words (Mikolov et al. 2013; docs/notes.md#c15)."""

    window: int = 5
    """Words on each side that are neighbours. [at least 1]"""
    mode: Literal["cbow", "skip-gram"] = "cbow"
    """A word from the mean of its neighbours (`cbow`), or each neighbour from it (`skip-gram`)."""
    negatives: int = 5
    """Negative words drawn for each neighbour. [0 or more; 0: softmax over all words]"""
    subsample: float = 1e-3
    """Share of the text above which words are randomly left out. [0 to 1; 0: never]"""
    exponent: float = 0.75
    """Negative words are drawn in proportion to count ** this. [0 to 1]"""
    shared_negatives: int = 0
    """Negative words that 32 neighbouring words share; 16 or 32, with `training.batch_tokens` from 4,096 on, train many
    times faster. [0 or more; 0: each target draws its own]
    """

    def __post_init__(self) -> None:
        check_choices(self, "cbow.")
        check_numbers(self, window="be at least 1", negatives="not be negative", shared_negatives="not be negative")
        if self.shared_negatives and not self.negatives:
            raise RecipeError(
                f"`shared_negatives` needs `negatives` of at least 1: got {self.shared_negatives} and {self.negatives}"
            )
        check_numbers(self, subsample="lie in [0, 1]", exponent="lie in [0, 1]")
