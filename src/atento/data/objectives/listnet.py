"""The grades of all documents of a query as a distribution (ListNet)."""

import torch
from torch import Tensor

from atento.config.tables.objective import ObjectiveConfig
from atento.data.batches.planning import PlannedBatches
from atento.data.objectives.preparation import Preparation
from atento.data.objectives.ranked_documents import ranked_documents


def listnet(preparation: Preparation, config: ObjectiveConfig) -> PlannedBatches:
    """Return batches of documents; each query is a target. Errors as of `ranked_documents`."""
    return ranked_documents(preparation, config, first_documents)


def first_documents(query: Tensor, grades: Tensor) -> Tensor:
    """Return 0 for the first document of each query and -1 for the others, (B,)."""
    return torch.where(torch.arange(len(query)) == torch.searchsorted(query, query), 0, -1)
