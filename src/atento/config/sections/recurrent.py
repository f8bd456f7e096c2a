"""Options of recurrent networks."""

from dataclasses import dataclass
from typing import Literal

from atento.base.errors import RecipeError
from atento.config.literals import Section

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
