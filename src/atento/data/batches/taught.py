"""Examples with the outputs of teachers beside their labels (distillation)."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from atento.data.batches.batch import Batch, Draw, Objective, Teaching
from atento.data.batches.planning import Rows
from atento.data.batches.store import Store


@dataclass(frozen=True)
class Taught:
    """An objective whose batches say what K teachers give for each label: `Batch.extras["HEAD teacher"]` (N,K,C).

    Attributes:
        objective: makes the batches.
        teaching: how their head learns.
        outputs: of each example (T,K,C), for the first T labels of its row, or more.
    """

    objective: Objective
    teaching: Teaching
    outputs: Sequence[NDArray[np.float32]] = field(repr=False)

    def sizes(self, store: Store) -> NDArray[np.float64]:
        """Return those of the objective."""
        return self.objective.sizes(store)

    def lengths(self, store: Store) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return those of the objective."""
        return self.objective.lengths(store)

    def batch(self, store: Store, rows: Rows, draw: Draw) -> Batch:
        """Return the batch of the objective, with the outputs of the teachers for the labels that are not -1."""
        batch = self.objective.batch(store, rows, draw)
        ((head, labels),) = batch.labels.items()
        counts = (labels >= 0).reshape(len(labels), -1).sum(dim=1).tolist()
        outputs = np.concatenate([self.outputs[row][:count] for row, count in zip(rows.tolist(), counts)])
        name = f"{head} teacher"
        return replace(
            batch,
            extras={**batch.extras, name: torch.from_numpy(outputs)},
            settings={**batch.settings, name: self.teaching},
        )
