"""Scores of rankings of judged documents, as trec_eval computes them: nDCG, MAP, reciprocal rank, recall."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from atento.base.errors import UsageError
from atento.metrics import vector_pairs
from atento.metrics.score import Score
from atento.metrics.score import first_by_second as mean

# Query, document and its grade. None: nobody judged the document, which counts as a wrong one.
Judgement = tuple[str, str, float | None]
# Of the documents that were ranked, their grades in that order, 0 for wrong ones; and the grades of all right ones
Ranked = tuple[list[float], list[float]]


def ndcg(predictions: Sequence[float | None], references: Sequence[Judgement], *, k: int | None = None) -> Score:
    """Normalised discounted cumulative gain, 0 to 1: Σ grade / log2(rank + 1), divided by that of the best order.

    The queries weigh the same, and one without a right document scores 0. Documents of equal score (in float32) are in
    the falling order of their names. So the value is that of trec_eval.

    Args:
        predictions: the score of each document; None: the ranking does not have it.
        references: query, document and grade of each; grades above 0 are right ones.
        k: count the first k documents alone; None: all.

    Raises:
        UsageError: unequal lengths, nothing to score, a document twice, no right document at all, or k below 1.
    """

    if k is not None:
        _check_first(k)

    def gain(grades: Sequence[float]) -> float:
        return sum(grade / math.log2(rank + 1) for rank, grade in enumerate(grades[:k], 1))

    def value(ranked: list[float], right: list[float]) -> float:
        return gain(ranked) / gain(sorted(right, reverse=True))  # `right` is not empty here: no division by 0

    return _score("nDCG" if k is None else f"nDCG@{k}", value, predictions, references)


def mean_average_precision(predictions: Sequence[float | None], references: Sequence[Judgement]) -> Score:
    """The mean over queries of the mean precision at each right document; arguments, ties and errors as of `ndcg`."""

    def value(ranked: list[float], right: list[float]) -> float:
        ranks = [rank for rank, grade in enumerate(ranked, 1) if grade > 0]
        return sum(number / rank for number, rank in enumerate(ranks, 1)) / len(right)  # precision at each right one

    return _score("MAP", value, predictions, references)


def recall(predictions: Sequence[float | None], references: Sequence[Judgement], *, k: int) -> Score:
    """The share of a query's right documents that are among the first k; arguments, ties and errors as of `ndcg`."""
    _check_first(k)

    def value(ranked: list[float], right: list[float]) -> float:
        return sum(grade > 0 for grade in ranked[:k]) / len(right)

    return _score(f"Recall@{k}", value, predictions, references)


def mrr(predictions: Sequence[Any], references: Sequence[Any]) -> Score:
    """The mean over queries of 1 / rank of the first right document, as of `ndcg`; of vectors, that of their pairs."""
    if not _judged(references):
        return vector_pairs.mrr(predictions, references)

    def value(ranked: list[float], right: list[float]) -> float:
        return next((1 / rank for rank, grade in enumerate(ranked, 1) if grade > 0), 0.0)

    return _score("MRR", value, predictions, references)


def recall_at_1(predictions: Sequence[Any], references: Sequence[Any]) -> Score:
    """The recall of the first document, as of `recall`; of vectors, that of their pairs."""
    if not _judged(references):
        return vector_pairs.recall_at_1(predictions, references)
    return recall(predictions, references, k=1)


def _check_first(k: int) -> None:
    if k < 1:
        raise UsageError(f"`k` must be at least 1: got {k}")


def _judged(references: Sequence[Sequence[object]]) -> bool:
    """Whether references are judgements of documents, not the second texts of pairs."""
    return bool(references) and len(references[0]) == 3


def _score(
    name: str,
    value: Callable[[list[float], list[float]], float],
    predictions: Sequence[float | None],
    references: Sequence[Judgement],
) -> Score:
    queries = _by_query(predictions, references)
    rows = [[value(ranked, right) if right else 0.0, 1.0] for ranked, right in queries]  # the 1 counts the query
    parts = {"queries": float(len(rows))}
    return Score(name, mean([sum(column) for column in zip(*rows)]), parts, "ties:trec_eval", rows, mean, digits=4)


def _by_query(predictions: Sequence[float | None], references: Sequence[Judgement]) -> list[Ranked]:
    """The rankings of all queries."""
    import numpy as np

    if not len(predictions) and not references:
        raise UsageError("there is nothing to score: got 0 documents")
    if len(predictions) != len(references):
        raise UsageError(
            f"each document needs its score: got {len(predictions)} scores and {len(references)} documents"
        )
    queries: dict[str, dict[str, tuple[float | None, float]]] = {}
    for score, (query, document, grade) in zip(predictions, references):
        documents = queries.setdefault(query, {})
        if document in documents:
            raise UsageError(f"query {query!r} has the document {document[:40]!r} twice")
        # trec_eval keeps scores in single precision, where more are equal
        documents[document] = None if score is None else float(np.float32(score)), max(0.0, grade or 0.0)
    if not any(grade > 0 for documents in queries.values() for _, grade in documents.values()):
        raise UsageError("no document is right: a grade must be above 0")
    ranked = []
    for documents in queries.values():
        found = [(score, name, grade) for name, (score, grade) in documents.items() if score is not None]
        # trec_eval's order of equal scores: the larger name first
        found.sort(reverse=True, key=lambda document: (document[0], document[1].encode()))
        right = [grade for _, grade in documents.values() if grade > 0]  # also those that the ranking lacks
        ranked.append(([grade for _, _, grade in found], right))
    return ranked
