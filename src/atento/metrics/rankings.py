"""Scores of rankings: of judged documents (trec_eval), by similarities, and of the vectors of pairs of texts."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from atento.base.errors import UsageError
from atento.metrics.correlation import spearman
from atento.metrics.label_counts import summed
from atento.metrics.score import Score, check_pairs, ratio

# Query, document and its grade. None: nobody judged the document, which counts as a wrong one.
Judgement = tuple[str, str, float | None]
Pair = tuple[str, float | None]  # the second text of a pair, and the score of the pair
Relevant = Sequence[int | Sequence[int]] | None  # of each query: its right document or documents
_BLOCK = 4_000_000  # similarities in memory at once: 32 MB

# Judged documents ----------------------------------------------------------------------------------------------------


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
    if not references or len(references[0]) != 3:  # no judgements of documents, but the second texts of pairs
        return _ranked_pairs(predictions, references)

    def value(ranked: list[float], right: list[float]) -> float:
        return next((1 / rank for rank, grade in enumerate(ranked, 1) if grade > 0), 0.0)

    return _score("MRR", value, predictions, references)


def recall_at_1(predictions: Sequence[Any], references: Sequence[Any]) -> Score:
    """The recall of the first document, as of `recall`; of vectors, that of their pairs."""
    if references and len(references[0]) == 3:
        return recall(predictions, references, k=1)
    score = _ranked_pairs(predictions, references)
    rows = [[row[1], row[-1]] for row in score.segments]  # recall@1, and 1 a query
    return replace(score, name="Recall@1", value=score.parts["recall@1"], segments=rows, combine=ratio)


def _check_first(k: int | None) -> None:
    if k is not None and k < 1:
        raise UsageError(f"`k` must be at least 1: got {k}")


def _score(
    name: str,
    value: Callable[[list[float], list[float]], float],
    predictions: Sequence[float | None],
    references: Sequence[Judgement],
) -> Score:
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
    rows = []
    for documents in queries.values():
        found = [(score, name, grade) for name, (score, grade) in documents.items() if score is not None]
        # trec_eval's order of equal scores: the larger name first
        found.sort(reverse=True, key=lambda document: (document[0], document[1].encode()))
        right = [grade for _, grade in documents.values() if grade > 0]  # also those that the ranking lacks
        # the 1 counts the query
        rows.append([value([grade for _, _, grade in found], right) if right else 0.0, 1.0])
    parts = {"queries": float(len(rows))}
    return Score(name, ratio(summed(rows)), parts, "ties:trec_eval", rows, ratio, digits=4)


# Similarities --------------------------------------------------------------------------------------------------------


def retrieval(similarities: object, relevant: Relevant = None, *, cutoffs: Sequence[int] = (1, 5, 10)) -> Score:
    """Mean reciprocal rank and recall at k of a matrix of similarities, 0 to 1.

    A document that ties with a right one counts as ranked before it, so that equal similarities earn nothing.

    Args:
        similarities: (Q,D), of each query to each document; larger is nearer.
        relevant: for each query the number of the right document, from 0, or the numbers of several; None: document q
            is the right one of query q.
        cutoffs: the k of recall@k: the share of a query's right documents among the first k, as a mean over queries.

    Returns:
        A Score whose value is the mean reciprocal rank of the first right document, with the parts `recall@K`.

    Raises:
        UsageError: no matrix, a similarity that is not finite, or `relevant` does not fit it.
    """
    import numpy as np

    matrix = np.asarray(similarities)
    if matrix.ndim != 2 or not matrix.size:
        raise UsageError(f"`similarities` must be a matrix of queries and documents: got the shape {matrix.shape}")
    if not np.isfinite(matrix).all():
        raise UsageError("`similarities` must be finite: got NaN or infinity")
    return _retrieved(matrix, matrix.shape, relevant, cutoffs)


def retrieval_of_vectors(
    queries: object,
    documents: object,
    relevant: Relevant = None,
    *,
    cutoffs: Sequence[int] = (1, 5, 10),
) -> Score:
    """As `retrieval`, by the cosines of vectors; a block of queries at a time.

    Args:
        queries: vectors (Q,D).
        documents: vectors (N,D).
        relevant: as in `retrieval`.
        cutoffs: as in `retrieval`.

    Raises:
        UsageError: the vectors do not fit each other, or as in `retrieval`.
    """
    import numpy as np

    sides = [np.asarray(side, dtype=np.float64) for side in (queries, documents)]
    if any(side.ndim != 2 or not side.size for side in sides) or sides[0].shape[1] != sides[1].shape[1]:
        raise UsageError(
            f"queries and documents must be vectors of one width: got the shapes {sides[0].shape} and {sides[1].shape}"
        )
    if not all(np.isfinite(side).all() for side in sides):
        raise UsageError("vectors must be finite: got NaN or infinity")
    # a vector of zeros has the cosine 0
    first, second = (side / np.maximum(np.linalg.norm(side, axis=1, keepdims=True), 1e-30) for side in sides)
    block = max(1, _BLOCK // len(second))  # queries at a time
    blocks = (first[begin : begin + block] @ second.T for begin in range(0, len(first), block))  # (block,N)
    rows = (row for similarities in blocks for row in similarities)
    return _retrieved(rows, (len(first), len(second)), relevant, cutoffs)


def _retrieved(
    similarities: Iterable[Any], shape: tuple[int, int], relevant: Relevant, cutoffs: Sequence[int]
) -> Score:
    """The score by the similarities of each query (N,); of right documents that tie, each has its own rank."""
    import numpy as np

    ranks = []  # of the right documents of each query, from 1
    for row, numbers in zip(similarities, _relevant(relevant, *shape)):
        wrong, right = np.delete(row, numbers), np.sort(row[numbers])[::-1]  # the most similar first
        ranks.append([int((wrong >= value).sum()) + number for number, value in enumerate(right, 1)])
    if not cutoffs or any(k < 1 for k in cutoffs):
        raise UsageError(f"`cutoffs` must be 1 or more: got {list(cutoffs)}")
    rows = [[1 / min(own), *(sum(rank <= k for rank in own) / len(own) for k in cutoffs), 1.0] for own in ranks]
    total = summed(rows)
    parts = {f"recall@{k}": share / len(rows) for k, share in zip(cutoffs, total[1:])}
    return Score("MRR", ratio(total), parts, "ties:last", rows, ratio, digits=4)


def _relevant(relevant: Relevant, queries: int, documents: int) -> list[list[int]]:
    """The numbers of the right documents of each query, each once."""
    if relevant is None:
        if queries > documents:
            raise UsageError(f"query q has document q: got {queries} queries and {documents} documents")
        return [[query] for query in range(queries)]
    if len(relevant) != queries:
        raise UsageError(f"each query needs its right documents: got {queries} queries and {len(relevant)}")
    import numpy as np

    answers = []
    for query, numbers in enumerate(relevant):
        several = sorted({*np.ravel(np.asarray(numbers)).tolist()})  # each once, the smallest first
        if not several or any(number % 1 for number in several) or several[0] < 0 or several[-1] >= documents:
            raise UsageError(f"query {query}: right documents are numbers from 0 to {documents - 1}: got {numbers!r}")
        answers.append([*map(int, several)])
    return answers


# Vectors of pairs ----------------------------------------------------------------------------------------------------


def _ranked_pairs(predictions: Sequence[object], references: Sequence[Pair]) -> Score:
    """The rank by cosine of the second text of each pair among all second texts; equal ones are one document.
    Raises UsageError: unequal lengths, no pairs, or pairs with scores: a pair of a low score does not belong together.
    """
    import numpy as np

    _check_vectors(predictions, references)
    if references[0][1] is not None:
        raise UsageError("ranks are for pairs that belong together, and these pairs have scores: use cosine-spearman")
    numbers: dict[str, int] = {}
    relevant = [numbers.setdefault(text, len(numbers)) for text, _ in references]
    pairs = np.stack([np.asarray(pair) for pair in predictions])  # (pairs,2,D)
    first = {number: row for row, number in reversed(list(enumerate(relevant)))}  # the first row that each text is in
    documents = pairs[[first[number] for number in range(len(numbers))], 1]  # one of each different text
    return retrieval_of_vectors(pairs[:, 0], documents, relevant)


def cosine_spearman(predictions: Sequence[object], references: Sequence[Pair]) -> Score:
    """Spearman correlation of the cosine of each pair with its score, -1 to 1.

    Args:
        predictions: two vectors (2,D) a pair.
        references: the second text of each pair, and its score.

    Raises:
        UsageError: unequal lengths, fewer than 2 pairs, or pairs without scores.
    """
    import numpy as np

    _check_vectors(predictions, references)
    scores = [score for _, score in references if score is not None]
    if len(scores) < len(references):
        raise UsageError("each pair needs a score: use mrr for pairs without")
    pairs = np.stack([np.asarray(pair, dtype=np.float64) for pair in predictions])
    # of equal vectors 1 without rounding, so that they are tied
    norms = np.maximum(np.sqrt(np.square(pairs).sum(axis=-1).prod(axis=1)), 1e-30)  # (pairs,)
    return spearman((np.prod(pairs, axis=1).sum(axis=-1) / norms).tolist(), scores)  # Σ a·b / (|a| |b|)


def _check_vectors(predictions: Sequence[object], references: Sequence[Pair]) -> None:
    check_pairs(predictions, references)
    if not predictions:
        raise UsageError("there is nothing to score: got 0 pairs")
