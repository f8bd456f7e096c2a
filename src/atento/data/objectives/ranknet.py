"""Which of two documents of a query answers it better (RankNet)."""

import torch
from torch import Tensor

from atento.config.tables.objective import ObjectiveConfig
from atento.data.batches.planning import PlannedBatches
from atento.data.objectives.preparation import Preparation
from atento.data.objectives.ranked_documents import ranked_documents


def ranknet(preparation: Preparation, config: ObjectiveConfig) -> PlannedBatches:
    """Return batches of documents; each pair of a better and a worse one is a target. Errors of `ranked_documents`."""
    return ranked_documents(preparation, config, worse_documents)


def worse_documents(query: Tensor, grades: Tensor) -> Tensor:
    """Return for each document the numbers of those of its query with lower grades, -1 for others, (B,B)."""
    worse = (query[:, None] == query) & (grades[:, None] > grades)  # (B,B): column worse than row
    return torch.where(worse, torch.arange(len(query)), -1)  # the number of the worse one
