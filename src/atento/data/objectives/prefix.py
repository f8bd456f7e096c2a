"""Prefix language modelling: the rest of a text from its beginning, which sees itself whole (Raffel et al. 2020).

ids "o gato pulou", prefix 2   labels "- pulou </s>" (docs/notes.md#c10, #e7)
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from atento.attention.masks import prefix as prefix_mask
from atento.config.objective import ObjectiveConfig
from atento.data.batches import Batch, Draw, PlannedBatches, Rows
from atento.data.objectives.preparation import Preparation
from atento.data.shuffle import hashes
from atento.data.store import MemoryStore, Ragged, Store

HEAD = "vocabulary"
_PLACE = 11  # what a hash is for


@dataclass(frozen=True)
class Prefix:
    """Column "ids": sequences of at least two tokens; where each is divided is drawn anew every epoch."""

    pad_id: int

    def sizes(self, store: Store) -> NDArray[np.float64]:
        """Half of the tokens, on average."""
        return store["ids"].lengths / 2.0

    def lengths(self, store: Store) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of the sequences."""
        return store["ids"].lengths, store["ids"].lengths

    def batch(self, store: Store, rows: Rows, draw: Draw) -> Batch:
        """A prefix of 1 to n - 1 tokens, all as probable."""
        whole = store["ids"].padded(rows, -1)
        ids, labels = whole[:, :-1].clone(), whole[:, 1:].clone()
        ids[labels < 0] = self.pad_id
        lengths = store["ids"].lengths[rows]
        sizes = [
            1 + int(hashes(1, draw.seed, draw.epoch, row, _PLACE)[0] % np.uint64(length - 1))
            for row, length in zip(rows.tolist(), lengths.tolist())
        ]
        prefixes = torch.tensor(sizes)
        labels[torch.arange(ids.shape[1]) < (prefixes - 1).unsqueeze(1)] = -1
        return Batch(
            {"ids": ids}, {HEAD: labels}, prefix_mask(prefixes), lengths={"ids": torch.from_numpy(lengths - 1)}
        )


def prefix(given: Preparation, config: ObjectiveConfig) -> PlannedBatches:
    """Each text between BOS and EOS; one longer than `data.max_len` tokens is cut in several."""
    tokenizer, training = given.tokenizer, given.recipe.training
    texts = [[tokenizer.bos_id, *row, tokenizer.eos_id] for row in given.encoded()]
    pieces = given.pieces(texts, given.longest + 1, overlap=1)
    store = MemoryStore({"ids": Ragged([piece for piece in pieces if len(piece) > 1])})
    objective = Prefix(given.network.pad_id)
    return PlannedBatches(store, objective, budget=training.batch_tokens, seed=training.seed, weight=config.weight)
