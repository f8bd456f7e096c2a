"""Prefix language modelling: predict a text after a prefix that is attended to in full (Raffel et al. 2020).

ids "o gato pulou", prefix 2   labels "- pulou </s>" (docs/notes.md#c10, #e7)
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from atento.attention.masks import prefix as prefix_mask
from atento.base.splitmix import grid_hashes
from atento.config.tables.objective import ObjectiveConfig
from atento.data.batches.batch import Batch, Draw, MemoryStore, OneText, Ragged, Rows, Store
from atento.data.batches.planning import PlannedBatches
from atento.data.batches.special_tokens import begin_of
from atento.data.objectives.preparation import Preparation

HEAD = "vocabulary"
_PREFIX_KEY = 11  # keeps these hashes apart from hashes for other purposes


@dataclass(frozen=True)
class Prefix(OneText):
    """Batches with a random prefix length for each sequence in each epoch. Column "ids": at least two tokens each."""

    pad_id: int

    def sizes(self, store: Store) -> NDArray[np.float64]:
        """Return half the number of tokens, the mean over prefix lengths."""
        return store["ids"].lengths / 2.0

    def batch(self, store: Store, rows: Rows, draw: Draw) -> Batch:
        """Return a batch; prefixes have 1 to n - 1 tokens with equal probability."""
        sequences = store["ids"].padded(rows, -1)  # (B,L+1), -1: padding
        ids, labels = sequences[:, :-1].clone(), sequences[:, 1:].clone()  # (B,L) each
        ids[labels < 0] = self.pad_id
        lengths = store["ids"].lengths[rows]
        drawn = grid_hashes(rows, 1, draw.seed, draw.epoch, after=(_PREFIX_KEY,))[:, 0]  # (B,) 64-bit numbers
        prefixes = torch.from_numpy(1 + (drawn % (lengths - 1).astype(np.uint64)).astype(np.int64))  # (B,), 1 to n - 1
        # label i is token i + 1, so that the last token of the prefix predicts the first one after it
        labels[torch.arange(ids.shape[1]) < (prefixes - 1).unsqueeze(1)] = -1
        known = {"ids": torch.from_numpy(lengths - 1)}
        return Batch({"ids": ids}, {HEAD: labels}, prefix_mask(prefixes), lengths=known)


def prefix(preparation: Preparation, config: ObjectiveConfig) -> PlannedBatches:
    """Return batches for prefix language modelling; texts longer than `data.max_len` tokens are split."""
    tokenizer = preparation.tokenizer
    texts = [[*begin_of(tokenizer), *row, tokenizer.eos_id] for row in preparation.encoded()]
    pieces = preparation.pieces(texts, preparation.longest + 1, overlap=1)
    store = MemoryStore({"ids": Ragged([piece for piece in pieces if len(piece) > 1])})
    objective = Prefix(preparation.network.pad_id)
    return preparation.planned(store, objective, config.weight)
