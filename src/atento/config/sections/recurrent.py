"""Options of recurrent networks, ELMo among them, and of networks of word vectors (CBOW, skip-gram)."""

from dataclasses import dataclass
from typing import Annotated, Literal

from atento.base.errors import RecipeError
from atento.config.literals import FROM_0_TO_1, Count, Natural, Rule, Section

CellName = Literal["lstm", "gru", "rnn"]
ScoreName = Literal["none", "additive", "bilinear", "dot"]
ASKED_BEFORE = ("none", "additive")  # the context enters the cell; with the other scores it is read after the cell


@dataclass(frozen=True)
class RecurrentConfig(Section, path="recurrent."):
    """Recurrent encoder-decoders and language models (docs/notes.md#a5); width and depth are the network's."""

    cell: CellName = "lstm"
    """The recurrence: `lstm`, `gru`, or the plain `rnn`."""
    bidirectional: bool = True
    """The encoder reads both ways, with half of `d_model` each."""
    attention: ScoreName = "additive"
    """The decoder's state is compared with the source before the word (`additive`, Bahdanau), after it (`bilinear`,
    `dot`, Luong), or not (`none`: its last state alone).
    """
    values: Literal["keys", "projected"] = "keys"
    """Vectors that attention averages: `keys`, or `projected` ones."""
    input_feeding: bool = False
    """Pass the result of bilinear or dot attention to the next step (Luong)."""

    def _check(self) -> None:
        if self.values == "projected" and self.attention == "none":
            raise RecipeError("`recurrent.values` 'projected' needs attention: got `recurrent.attention` 'none'")
        if self.input_feeding and self.attention in ASKED_BEFORE:
            raise RecipeError(
                "`recurrent.input_feeding` is for bilinear and dot attention (with additive the context enters the "
                f"cell as it is): got `recurrent.attention` {self.attention!r}"
            )


_Clip = Annotated[float, Rule("be above 0, or null for none", lambda bound: bound > 0)] | None
N_CHARACTERS = 262  # ELMo's alphabet: 0 for no word, the 256 bytes, five marks (`atento.text.characters`)

_LENGTH = Rule("lie from 3, a word's two marks and one byte, to 10,000", lambda length: 3 <= length <= 10_000)


@dataclass(frozen=True)
class CharacterConfig(Section):
    """How a word is read from its characters (Peters et al. 2018; Kim et al. 2016; docs/notes.md#c14)."""

    d_char: Count = 16
    """Width of a character's vector. [at least 1]"""
    filters: tuple[tuple[int, int], ...] = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
    """Width and count of the convolutions. [width at most `max_characters`]"""
    n_highway: Annotated[int, Rule("lie from 0 to 100", lambda layers: 0 <= layers <= 100)] = 2
    """Highway layers after the convolutions. [0 to 100]"""
    max_characters: Annotated[int, _LENGTH] = 50
    """Length of words, with marks of begin and end. [3 to 10,000]"""
    activation: Literal["relu", "tanh"] = "relu"
    """Activation after the convolutions."""
    projection: bool = True
    """Project to d_model; else the counts of `filters` must add up to it."""

    def _check(self) -> None:
        if not self.filters:
            raise RecipeError("`filters` must hold at least one (width, count): got none")
        for pair in self.filters:
            if len(pair) != 2 or min(pair) < 1:
                raise RecipeError(f"`filters` must be pairs of width and count, both at least 1: got {tuple(pair)}")
            if pair[0] > self.max_characters:
                rule = "the width of `filters` must not exceed `max_characters`"
                raise RecipeError(f"{rule}: got {pair[0]} and {self.max_characters}")

    @property
    def n_filters(self) -> int:
        """Width of what the convolutions find: all counts together."""
        return sum(count for _, count in self.filters)


@dataclass(frozen=True)
class ELMoConfig(Section):
    """The bidirectional LSTM language model (Peters et al. 2018); `d_model` is the width of one direction.

    See docs/notes.md#c14.
    """

    characters: CharacterConfig | None = CharacterConfig()
    """Options of words as characters. [null: words are read by id]"""
    d_cell: Count = 4096
    """Width of the memory cell. [at least 1]"""
    cell_clip: _Clip = 3.0
    """Bound of the cell's values. [above 0; null: none]"""
    projection_clip: _Clip = 3.0
    """Bound of the projected values. [above 0; null: none]"""
    skip: bool = True
    """Add a layer's input to its output, from the second layer on."""
    mix_norm: bool = False
    """Normalise layers before they are mixed."""


@dataclass(frozen=True)
class CBOWConfig(Section, choices="cbow."):
    """Word vectors from a window of words (Mikolov et al. 2013; docs/notes.md#c15)."""

    window: Count = 5
    """Words on each side that are neighbours. [at least 1]"""
    mode: Literal["cbow", "skip-gram"] = "cbow"
    """A word from the mean of its neighbours (`cbow`), or each neighbour from it (`skip-gram`)."""
    negatives: Natural = 5
    """Negative words drawn for each neighbour. [0 or more; 0: softmax over all words]"""
    subsample: Annotated[float, FROM_0_TO_1] = 1e-3
    """Share of the text above which words are randomly left out. [0 to 1; 0: never]"""
    exponent: Annotated[float, FROM_0_TO_1] = 0.75
    """Negative words are drawn in proportion to count ** this. [0 to 1]"""
    shared_negatives: Natural = 0
    """Negative words that 32 neighbouring words share; 16 or 32, with `training.batch_tokens` from 4,096 on, train many
    times faster. [0 or more; 0: each target draws its own]
    """

    def _check(self) -> None:
        if self.shared_negatives and not self.negatives:
            rule = "`shared_negatives` needs `negatives` of at least 1"
            raise RecipeError(f"{rule}: got {self.shared_negatives} and {self.negatives}")
