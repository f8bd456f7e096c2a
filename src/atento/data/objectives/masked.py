"""Masked language modelling: hidden tokens from the tokens on both sides.

ids "<s> o <mask> pulou </s>"   labels "- - gato - -" (docs/notes.md#e2)
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atento.config.network import NetworkConfig
from atento.config.objective import ObjectiveConfig
from atento.data.batches import Batch, Draw, PlannedBatches, Rows
from atento.data.objectives.preparation import Preparation
from atento.data.shuffle import hashes
from atento.data.store import MemoryStore, Ragged, Store
from atento.text.tokenizer import Tokenizer

HEAD = "vocabulary"


@dataclass(frozen=True)
class Masking:
    """Which tokens are hidden, and how (Devlin et al. 2019), drawn anew every epoch (Liu et al. 2019).

    Of a text a share `rate` of its tokens, at least one, is chosen. Of the chosen 80 % become the mask, 10 % another
    token drawn from those at or above `first_word`, 10 % stay as they are.
    """

    mask_id: int
    first_word: int
    vocab_size: int
    rate: float = 0.15

    def share(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """How many of so many tokens are hidden, on average."""
        return np.maximum(1.0, self.rate * tokens.astype(np.float64))

    def hide(self, ids: Tensor, places: NDArray[np.int64], labels: Tensor, row: int, draw: Draw) -> None:
        """Hide some tokens of one text.

        Args:
            ids: (L,), changed in place.
            places: (n,) the positions that may be hidden.
            labels: (L,) of -1, which gets the hidden tokens.
            row: the number of the example, on which with seed and epoch alone the choice depends.
        """
        inside = len(places)
        drawn = hashes(3 * inside + 1, draw.seed, draw.epoch, row)
        share = float(self.share(np.array(inside)))
        count = int(share + float(drawn[-1] >> np.uint64(11)) * 2.0**-53)  # rounded up as often as is fair
        chosen = places[np.argsort(drawn[:inside], kind="stable")[:count]]
        labels[chosen] = ids[chosen]
        fate = drawn[inside : 2 * inside][: len(chosen)] % np.uint64(10)
        other = drawn[2 * inside :][: len(chosen)] % np.uint64(self.vocab_size - self.first_word)
        ids[chosen[fate < 8]] = self.mask_id
        swapped = fate == 8
        ids[chosen[swapped]] = torch.from_numpy(other[swapped].astype(np.int64) + self.first_word)


@dataclass(frozen=True)
class Masked:
    """Column "ids": texts with a special token at either end, which is never hidden."""

    pad_id: int
    masking: Masking

    def sizes(self, store: Store) -> NDArray[np.float64]:
        """The share of the tokens between the special ones."""
        return self.masking.share(store["ids"].lengths - 2)

    def lengths(self, store: Store) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of the texts, special tokens with them."""
        return store["ids"].lengths, store["ids"].lengths

    def batch(self, store: Store, rows: Rows, draw: Draw) -> Batch:
        """Other tokens are hidden in every epoch."""
        ids = store["ids"].padded(rows, self.pad_id)
        labels = torch.full_like(ids, -1)
        lengths = store["ids"].lengths[rows]
        for i, row in enumerate(rows.tolist()):
            self.masking.hide(ids[i], 1 + np.arange(int(lengths[i]) - 2), labels[i], row, draw)
        return Batch(with_token_mask({"ids": ids}, lengths), {HEAD: labels}, lengths={"ids": torch.from_numpy(lengths)})


def with_token_mask(inputs: dict[str, Tensor], lengths: NDArray[np.int64]) -> dict[str, Tensor]:
    """The inputs with a token mask, where a row is shorter than others."""
    real = torch.arange(inputs["ids"].shape[1]) < torch.from_numpy(lengths).unsqueeze(1)
    return inputs if bool(real.all()) else inputs | {"token_mask": real}


def masking_of(network: NetworkConfig, tokenizer: Tokenizer, config: ObjectiveConfig) -> Masking:
    """Masking with the ids of a tokenizer; words begin behind its special tokens."""
    first_word = 1 + max(tokenizer.specials.ids.values())
    return Masking(tokenizer.mask_id, first_word, network.vocab_size, config.option("rate"))


def masked(given: Preparation, config: ObjectiveConfig) -> PlannedBatches:
    """Each text between its special tokens; one longer than `data.max_len` tokens is cut in several."""
    around = given.around()
    pieces = given.pieces(given.encoded(), given.longest - 2)
    store = MemoryStore({"ids": Ragged([around.apply(piece)[0] for piece in pieces])})
    objective = Masked(given.network.pad_id, masking_of(given.network, given.tokenizer, config))
    training = given.recipe.training
    return PlannedBatches(store, objective, budget=training.batch_tokens, seed=training.seed, weight=config.weight)
