"""What a trained model says of training records, for another network to learn (distillation)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atento.config.tables.head_kinds import HEAD_KINDS, HeadConfig
from atento.data.records.splits import Split
from atento.errors import CapabilityError
from atento.tasks.classification import label_scores
from atento.tasks.regression import numbers_of
from atento.tasks.tagging import word_tags
from atento.tasks.task_model import TaskModel

Outputs = list[NDArray[np.float32]]  # of each record (T,C): one row, or one a word


def head_records(split: Split) -> list[Any]:
    """What a head reads of each record: a text, a pair of texts, or words."""
    if "tokens" in split.columns:
        return split["tokens"]
    return list(zip(split["text"], split["pair"])) if "pair" in split.columns else split["text"]


def teaching_head(model: TaskModel, head: HeadConfig) -> HeadConfig:
    """The head of a model that teaches `head` of another network.

    Raises:
        CapabilityError: the model has no head of that kind, or one of other labels.
    """
    own = next((own for own in model.network.config.heads if own.kind == head.kind), None)
    if own is None:
        raise CapabilityError(f"it was trained for {model.config.get('task')} and has no {head.kind} head")
    for names, others, which in ((head.labels, own.labels, "does not know"), (own.labels, head.labels, "also knows")):
        if unknown := [name for name in names if name not in others]:
            raise CapabilityError(f"it {which} the label {unknown[0]!r}: its labels must be those of the training data")
    return own


def head_outputs(model: TaskModel, head: HeadConfig, records: Sequence[Any]) -> Outputs:
    """What that head of a model gives for each record: the scores of its labels, or a number.

    The scores of tags are the logarithms of their probabilities.
    """
    kind = HEAD_KINDS[head.kind]
    if kind == "number":
        return [np.array([[number]], dtype=np.float32) for number in numbers_of(model, records)]
    if kind == "tag":
        smallest = np.finfo(np.float32).tiny
        return [np.log(np.maximum(rows, smallest)).astype(np.float32) for rows in word_tags(model, records)]
    return list(label_scores(model, records)[1].numpy().astype(np.float32)[:, np.newaxis])
