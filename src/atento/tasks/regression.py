"""Regression: a number for each text, for a pair of texts, or for each document of a query, which it ranks."""

from collections.abc import Mapping, Sequence

from atento.data.objectives.labels import NUMBER
from atento.data.records.splits import Split, pairs_of, qrels_of
from atento.metrics.rankings import Judgement
from atento.tasks.decoding_setup import refuse_options
from atento.tasks.task_model import TaskModel, head_of
from atento.tasks.text_outputs import text_outputs, texts_of_split


def has_regression_head(model: TaskModel) -> bool:
    """Whether the model was trained to give numbers."""
    return any(head.kind == NUMBER for head in model.network.config.heads)


def numbers_of(model: TaskModel, texts: Sequence[str] | Sequence[tuple[str, str]]) -> list[float]:
    """The number that a loaded model gives for each text or pair.
    Raises CapabilityError: the model has no regression head. UsageError: texts for a model of pairs, or pairs for a
    model of texts.
    """
    return [number for (number,) in text_outputs(model, head_of(model, NUMBER), texts)]


def call(model: TaskModel, split: Split, options: Mapping[str, object]) -> list[float]:
    """The number of each record of a split; for ranking, of each document of each query."""
    refuse_options(options, "numbers: a regression model writes nothing")
    if "query" in split.columns:
        return numbers_of(model, pairs_of(qrels_of(split)))
    return numbers_of(model, texts_of_split(split))


def gold(split: Split) -> Sequence[float] | Sequence[Judgement]:
    """The numbers of a split; for ranking, query, document and grade of each document."""
    if "query" in split.columns:
        queries = qrels_of(split).items()
        return [(query, document, grade) for query, judged in queries for document, (grade, _) in judged.items()]
    return list(split["score"])
