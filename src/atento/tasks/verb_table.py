"""The verbs: what a model of a task does with the records of a split, and what would be right."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atento.data.records.splits import Split
from atento.tasks import classification, model_vectors, question_answering, regression, tagging
from atento.tasks.model_outputs import gold, written
from atento.tasks.task_model import TaskModel


@dataclass(frozen=True)
class Verb:
    """One use of a model: its outputs for the records of a split, and the right ones."""

    # the outputs, with the options of a call; the model is loaded or in training
    call: Callable[[TaskModel, Split, Mapping[str, Any]], Sequence[Any]]
    gold: Callable[[Split], Sequence[Any]]  # the right outputs


VERBS: dict[str, Verb] = {
    "translate": Verb(written("translate"), gold),
    "summarize": Verb(written("summarize"), gold),
    "generate": Verb(written("generate"), gold),
    "classify": Verb(classification.call, classification.gold),
    "tag": Verb(tagging.call, tagging.gold),
    "answer": Verb(question_answering.call, question_answering.gold),
    "embed": Verb(model_vectors.call, model_vectors.gold),
    "similarity": Verb(regression.call, regression.gold),
}
