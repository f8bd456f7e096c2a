"""Scores of retrieval: the ranks of the right documents by their similarity to a query."""

from collections.abc import Sequence
from typing import Any

from atento.base.errors import UsageError
from atento.metrics.label_counts import summed
from atento.metrics.score import Score

_BLOCK = 4_000_000  # similarities in memory at once: 32 MB


def retrieval(
    similarities: object, relevant: Sequence[int | Sequence[int]] | None = None, *, cutoffs: Sequence[int] = (1, 5, 10)
) -> Score:
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
    answers = _relevant(relevant, *matrix.shape)
    return _scored([_ranks(matrix[query], numbers) for query, numbers in enumerate(answers)], cutoffs)


def retrieval_of_vectors(
    queries: object,
    documents: object,
    relevant: Sequence[int | Sequence[int]] | None = None,
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
    answers = _relevant(relevant, len(first), len(second))
    block, ranks = max(1, _BLOCK // len(second)), []  # queries at a time
    for begin in range(0, len(first), block):
        for row, similarities in enumerate(first[begin : begin + block] @ second.T, begin):  # (block,N)
            ranks.append(_ranks(similarities, answers[row]))
    return _scored(ranks, cutoffs)


def _ranks(similarities: Any, numbers: Sequence[int]) -> list[int]:
    """The ranks of the right documents of a query, from 1; of right documents that tie, each has its own rank."""
    import numpy as np

    wrong = np.delete(similarities, numbers)
    right = np.sort(similarities[list(numbers)])[::-1]  # the most similar first
    return [int((wrong >= value).sum()) + number for number, value in enumerate(right, 1)]


def _scored(ranks: Sequence[Sequence[int]], cutoffs: Sequence[int]) -> Score:
    if not cutoffs or any(k < 1 for k in cutoffs):
        raise UsageError(f"`cutoffs` must be 1 or more: got {list(cutoffs)}")
    rows = [[1 / min(own), *(sum(rank <= k for rank in own) / len(own) for k in cutoffs), 1.0] for own in ranks]
    total = summed(rows)
    parts = {f"recall@{k}": share / len(rows) for k, share in zip(cutoffs, total[1:])}
    return Score("MRR", _mean(total), parts, "ties:last", rows, _mean, digits=4)


def _mean(total: Sequence[float]) -> float:
    return total[0] / total[-1]


def _relevant(relevant: Sequence[int | Sequence[int]] | None, queries: int, documents: int) -> list[tuple[int, ...]]:
    """The numbers of the right documents of each query, each once."""
    if relevant is None:
        if queries > documents:
            raise UsageError(f"query q has document q: got {queries} queries and {documents} documents")
        return [(query,) for query in range(queries)]
    if len(relevant) != queries:
        raise UsageError(f"each query needs its right documents: got {queries} queries and {len(relevant)}")
    answers = []
    for query, numbers in enumerate(relevant):
        # each once, the smallest first
        several = tuple(sorted({*map(int, numbers)})) if isinstance(numbers, Sequence) else (int(numbers),)
        if not several or several[0] < 0 or several[-1] >= documents:
            raise UsageError(f"query {query}: right documents are numbers from 0 to {documents - 1}: got {numbers!r}")
        answers.append(several)
    return answers
