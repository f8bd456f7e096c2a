"""The verbs: what a model of a task does with the records of a split, and what would be right."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atento.config.recipe import Recipe
from atento.config.sections.network import NetworkConfig
from atento.config.tables.tasks import TaskSpec
from atento.data.records.reader import Split
from atento.tasks import answering, classification, regression, tagging, translation, vector_pairs
from atento.tasks.tag_sequences import scheme_of_labels
from atento.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Verb:
    """One use of a model: its outputs for the records of a split, and the right ones.

    Attributes:
        predict: the outputs of a network in training.
        call: the outputs of a loaded `Model`, with the options of a call.
        gold: the right outputs.
    """

    predict: Callable[[Any, Tokenizer, Split, Recipe], Sequence[Any]]
    call: Callable[[Any, Split, Mapping[str, Any]], Sequence[Any]]
    gold: Callable[[Split], Sequence[Any]]


def _written(verb: str) -> Callable[[Any, Split, Mapping[str, Any]], list[str]]:
    """The outputs of the method of that name for the sources of a split."""

    def call(model: Any, split: Split, options: Mapping[str, Any]) -> list[str]:
        outputs: list[str] = getattr(model, verb)(split["source"], **options)
        return outputs

    return call


VERBS: dict[str, Verb] = {
    "translate": Verb(translation.predict, _written("translate"), translation.gold),
    "summarize": Verb(translation.predict, _written("summarize"), translation.gold),
    "generate": Verb(translation.predict, _written("generate"), translation.gold),
    "classify": Verb(classification.predict, classification.call, classification.gold),
    "tag": Verb(tagging.predict, tagging.call, tagging.gold),
    "answer": Verb(answering.predict, answering.call, answering.gold),
    "embed": Verb(vector_pairs.predict, vector_pairs.call, vector_pairs.gold),
    "similarity": Verb(regression.predict, regression.call, regression.gold),
}


def usual_metrics(spec: TaskSpec, labels: Collection[str], columns: Collection[str] = ()) -> tuple[str, ...]:
    """The metrics of an evaluation that names none: by the labels of a model of tags, and the columns of the data."""
    if spec.scored_metrics and "score" in columns:
        return spec.scored_metrics
    if spec.plain_metrics and scheme_of_labels(labels) is None:
        return spec.plain_metrics
    return spec.evaluated or spec.metrics


def labels_of(network: NetworkConfig) -> set[str]:
    """The labels of all heads of a network."""
    return {label for head in network.heads for label in head.labels}
