"""Any number of labels for each text, or for a pair of texts.

ids "[CLS] ótimo filme , longo [SEP]"   labels "positive", "length": 1 for these, 0 for others (docs/notes.md#g1)
"""

from collections.abc import Sequence

import numpy as np

from atento.base.errors import DataError, nearest
from atento.config.tables.objective import ObjectiveConfig
from atento.data.batches.batch import Ragged
from atento.data.batches.planning import PlannedBatches
from atento.data.objectives.labels import labelled_texts, network_head
from atento.data.objectives.preparation import Preparation
from atento.data.records.splits import Split

KIND = "multi-label"  # of the head's configuration


def label_sets(preparation: Preparation, config: ObjectiveConfig) -> PlannedBatches:
    """Return batches of texts with their sets of labels; long texts are cut as for labels.
    Raises DataError: a label that the training data does not have.
    """
    head = network_head(preparation.network, KIND)
    check_label_sets(preparation.split, head.labels)
    rows = [[float(name in labels) for name in head.labels] for labels in preparation.split["label"]]  # (texts, labels)
    weights: tuple[tuple[float, ...], ...] = ()
    if config.class_weights == "balanced" and not preparation.held_out:  # of texts without and with each label
        present = np.array(rows).sum(axis=0)  # (labels,) texts that have each
        both = (len(rows) - present, present)
        weights = tuple(tuple((len(rows) / (2 * np.maximum(count, 1))).tolist()) for count in both)
    return labelled_texts(preparation, config, head, {"values": Ragged(rows, np.float32)}, weights)


def check_label_sets(split: Split, names: Sequence[str]) -> None:
    """Raises DataError: a label that is not among `names`; the message names file and line."""
    for row, labels in enumerate(split["label"]):
        for label in labels:
            if label not in names:
                raise DataError(f"{split.where(row)}: unknown label {label!r}{nearest(label, list(names))}")
