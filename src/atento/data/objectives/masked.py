"""Masked language modelling: predict hidden tokens from the tokens on both sides.

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
    """BERT's masking (Devlin et al. 2019), drawn again in every epoch (Liu et al. 2019).

    A share `rate` of the tokens of a text is chosen, at least one. 80 % of them are replaced by the mask, 10 % by a
    random token, and 10 % stay unchanged.

    Attributes:
        mask_id: id of the mask token.
        first_word: the lowest id of a random token; special tokens have lower ids.
        vocab_size: random tokens are below it.
        rate: share of chosen tokens.
    """

    mask_id: int
    first_word: int
    vocab_size: int
    rate: float = 0.15

    def share(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return how many tokens of texts of these lengths are chosen, on average."""
        return np.maximum(1.0, self.rate * tokens.astype(np.float64))

    def hide(self, ids: Tensor, positions: NDArray[np.int64], labels: Tensor, row: int, draw: Draw) -> None:
        """Hide some tokens of one text, as a function of seed, epoch and row.

        Args:
            ids: (L,), changed in place.
            positions: (n,) the positions that may be chosen.
            labels: (L,) of -1; receives the original ids at the chosen positions.
            row: number of the example.
            draw: seed and epoch.
        """
        n = len(positions)
        drawn = hashes(3 * n + 1, draw.seed, draw.epoch, row)  # order, treatment and random token of each, and rounding
        share = float(self.share(np.array(n)))
        count = int(
            share + float(drawn[-1] >> np.uint64(11)) * 2.0**-53
        )  # rounded at random, so that the mean is exact
        chosen = positions[np.argsort(drawn[:n], kind="stable")[:count]]
        labels[chosen] = ids[chosen]
        treatment = drawn[n : 2 * n][: len(chosen)] % np.uint64(10)  # 0 to 7: mask, 8: random token, 9: unchanged
        random_ids = drawn[2 * n :][: len(chosen)] % np.uint64(self.vocab_size - self.first_word)
        ids[chosen[treatment < 8]] = self.mask_id
        replaced = treatment == 8
        ids[chosen[replaced]] = torch.from_numpy(random_ids[replaced].astype(np.int64) + self.first_word)


@dataclass(frozen=True)
class Masked:
    """Batches of masked texts. Column "ids": texts with a special token at each end, which is never hidden."""

    pad_id: int
    masking: Masking

    def sizes(self, store: Store) -> NDArray[np.float64]:
        """Return the expected number of hidden tokens."""
        return self.masking.share(store["ids"].lengths - 2)

    def lengths(self, store: Store) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the length of each text with its special tokens, twice."""
        return store["ids"].lengths, store["ids"].lengths

    def batch(self, store: Store, rows: Rows, draw: Draw) -> Batch:
        """Return a batch; each epoch hides other tokens."""
        ids = store["ids"].padded(rows, self.pad_id)
        labels = torch.full_like(ids, -1)
        lengths = store["ids"].lengths[rows]
        for i, row in enumerate(rows.tolist()):
            self.masking.hide(ids[i], 1 + np.arange(int(lengths[i]) - 2), labels[i], row, draw)
        return Batch(with_token_mask({"ids": ids}, lengths), {HEAD: labels}, lengths={"ids": torch.from_numpy(lengths)})


def with_token_mask(inputs: dict[str, Tensor], lengths: NDArray[np.int64]) -> dict[str, Tensor]:
    """Add a token mask to the inputs, if rows differ in length."""
    real = torch.arange(inputs["ids"].shape[1]) < torch.from_numpy(lengths).unsqueeze(1)
    return inputs if bool(real.all()) else inputs | {"token_mask": real}


def masking_of(network: NetworkConfig, tokenizer: Tokenizer, config: ObjectiveConfig) -> Masking:
    """Return the masking for a tokenizer; the ids of words follow those of its special tokens."""
    first_word = 1 + max(tokenizer.specials.ids.values())
    return Masking(tokenizer.mask_id, first_word, network.vocab_size, config.option("rate"))


def masked(preparation: Preparation, config: ObjectiveConfig) -> PlannedBatches:
    """Return batches for masked language modelling; texts longer than `data.max_len` tokens are split."""
    template = preparation.text_template()
    pieces = preparation.pieces(preparation.encoded(), preparation.longest - 2)
    store = MemoryStore({"ids": Ragged([template.apply(piece)[0] for piece in pieces])})
    objective = Masked(preparation.network.pad_id, masking_of(preparation.network, preparation.tokenizer, config))
    training = preparation.recipe.training
    return PlannedBatches(store, objective, budget=training.batch_tokens, seed=training.seed, weight=config.weight)
