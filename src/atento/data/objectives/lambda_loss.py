"""Which of two documents of a query answers it better, weighted by what their order means for nDCG (LambdaLoss)."""

from atento.config.tables.objective import ObjectiveConfig
from atento.data.batches.planning import PlannedBatches
from atento.data.objectives.preparation import Preparation
from atento.data.objectives.ranked_documents import ranked_documents
from atento.data.objectives.ranknet import worse_documents


def lambda_loss(preparation: Preparation, config: ObjectiveConfig) -> PlannedBatches:
    """Return batches of documents, with the targets of `ranknet`. Errors as of `ranked_documents`."""
    return ranked_documents(preparation, config, worse_documents)
