"""The score of a pair of texts as the cosine of their vectors.

ids "[CLS] a cat sleeps [SEP]"   pair_ids "[CLS] a kitten is napping [SEP]"   score 0.8
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from atento.config.sections.network import NetworkConfig
from atento.config.tables.objective import ObjectiveConfig
from atento.data.batches.batch import Batch, Contrast, Draw, PlannedBatches
from atento.data.batches.planning import Rows
from atento.data.batches.store import Ragged, Store
from atento.data.objectives.preparation import Preparation
from atento.data.objectives.text_sides import contrast, side_inputs, sides_as_store
from atento.data.records.splits import Split
from atento.errors import DataError

KIND = "cosine"  # of the loss


@dataclass(frozen=True)
class ScoredPairs:
    """Batches of pairs with the cosine that they should have. Columns "ids", "pair_ids" and "cosine", one number."""

    network: NetworkConfig
    settings: Contrast

    def sizes(self, store: Store) -> NDArray[np.float64]:
        """Return one target for each pair."""
        return np.ones(len(store))

    def lengths(self, store: Store) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the lengths of the first and of the second texts, with their special tokens."""
        return store["ids"].lengths, store["pair_ids"].lengths

    def batch(self, store: Store, rows: Rows, draw: Draw) -> Batch:
        """Return a batch; it is the same in every epoch."""
        inputs, lengths = side_inputs(store, rows, self.network)
        cosines = np.concatenate([store["cosine"][row] for row in rows.tolist()])
        labels, extras = {KIND: torch.zeros(len(rows), dtype=torch.long)}, {KIND: torch.from_numpy(cosines)}
        return Batch(inputs, labels, extras=extras, lengths=lengths, settings={KIND: self.settings})


def cosine(preparation: Preparation, config: ObjectiveConfig) -> PlannedBatches:
    """Return batches of scored pairs; long texts are cut, with a counted warning.

    Raises:
        DataError: records without a score or with a negative, or a score out of range; names file and line.
    """
    split, training = preparation.split, preparation.recipe.training
    if "score" not in split.columns:
        raise DataError(f"objective {config.kind} needs a `score` for each pair, and the records have none")
    if "negative" in split.columns:
        raise DataError(f"objective {config.kind} does not read the `negative` of the records: leave the column out")
    store = sides_as_store(preparation)
    store.columns["cosine"] = Ragged([[value] for value in cosines_of(split, config.score_range)], np.float32)
    objective = ScoredPairs(preparation.network, contrast(preparation))
    return PlannedBatches(
        store,
        objective,
        budget=training.batch_tokens,
        seed=training.seed,
        weight=config.weight,
        equal_examples=True,  # as sentence-transformers does: else long pairs would count more than short ones
    )


def cosines_of(split: Split, score_range: tuple[float, float] | None) -> list[float]:
    """Return the cosine for each score: the score itself, or its place in the range, 0 to 1.

    Raises:
        DataError: a score out of range; names file and line.
    """
    low, high = score_range or (-1.0, 1.0)
    for row, score in enumerate(split["score"]):
        if not low <= score <= high:
            why = "its `score_range`" if score_range else "as a cosine (`score_range` of the objective maps others)"
            raise DataError(f"{split.where(row)}: the score must lie in {low:g} to {high:g}, {why}: got {score:g}")
    if score_range is None:
        return list(split["score"])
    return [(score - low) / (high - low) for score in split["score"]]
