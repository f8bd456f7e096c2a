"""A number for each text, or for a pair of texts.

ids "[CLS] o gato dorme [SEP] um gato dorme [SEP]"   number 4.6 (docs/notes.md#g5)
"""

import numpy as np

from atento.config.tables.objective import ObjectiveConfig
from atento.data.batches.batch import Ragged
from atento.data.batches.planning import PlannedBatches
from atento.data.objectives.labels import labelled_texts, network_head
from atento.data.objectives.preparation import Preparation

KIND = "regression"  # of the head's configuration


def numbers(preparation: Preparation, config: ObjectiveConfig) -> PlannedBatches:
    """Return batches of texts with their numbers; long texts are cut as for labels."""
    values = Ragged([[number] for number in preparation.split["score"]], np.float32)
    return labelled_texts(preparation, config, network_head(preparation.network, KIND), {"values": values})
