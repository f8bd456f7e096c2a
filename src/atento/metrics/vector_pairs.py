"""Scores of the vectors of pairs of texts: the rank of the second text, and the correlation of cosines with scores."""

from collections.abc import Sequence

from atento.base.errors import UsageError
from atento.metrics.correlation import spearman
from atento.metrics.retrieval import retrieval_of_vectors
from atento.metrics.score import Score, check_pairs, first_by_second

Reference = tuple[str, float | None]


def mrr(predictions: Sequence[object], references: Sequence[Reference]) -> Score:
    """Mean reciprocal rank of the second text of each pair among all second texts by cosine, 0 to 1.

    Equal second texts are one document.

    Args:
        predictions: two vectors (2,D) a pair.
        references: the second text of each pair, and its score or None.

    Raises:
        UsageError: unequal lengths, no pairs, or pairs with scores: a pair of a low score does not belong together.
    """
    import numpy as np

    _check(predictions, references)
    if references[0][1] is not None:
        raise UsageError("ranks are for pairs that belong together, and these pairs have scores: use cosine-spearman")
    numbers: dict[str, int] = {}
    relevant = [numbers.setdefault(text, len(numbers)) for text, _ in references]
    pairs = np.stack([np.asarray(pair) for pair in predictions])  # (pairs,2,D)
    first = {number: row for row, number in reversed(list(enumerate(relevant)))}  # the first row that each text is in
    documents = pairs[[first[number] for number in range(len(numbers))], 1]  # one of each different text
    return retrieval_of_vectors(pairs[:, 0], documents, relevant)


def recall_at_1(predictions: Sequence[object], references: Sequence[Reference]) -> Score:
    """The share of pairs whose second text is the nearest to the first; arguments and errors as of `mrr`."""
    score = mrr(predictions, references)
    rows = [[row[1], row[-1]] for row in score.segments]  # recall@1, and 1 a query
    return Score("Recall@1", score.parts["recall@1"], score.parts, score.settings, rows, first_by_second, digits=4)


def cosine_spearman(predictions: Sequence[object], references: Sequence[Reference]) -> Score:
    """Spearman correlation of the cosine of each pair with its score, -1 to 1.

    Args:
        predictions: two vectors (2,D) a pair.
        references: the second text of each pair, and its score.

    Raises:
        UsageError: unequal lengths, fewer than 2 pairs, or pairs without scores.
    """
    import numpy as np

    _check(predictions, references)
    scores = [score for _, score in references if score is not None]
    if len(scores) < len(references):
        raise UsageError("each pair needs a score: use mrr for pairs without")
    pairs = np.stack([np.asarray(pair, dtype=np.float64) for pair in predictions])
    # of equal vectors 1 without rounding, so that they are tied
    norms = np.maximum(np.sqrt(np.square(pairs).sum(axis=-1).prod(axis=1)), 1e-30)  # (pairs,)
    return spearman((np.prod(pairs, axis=1).sum(axis=-1) / norms).tolist(), scores)  # Σ a·b / (|a| |b|)


def _check(predictions: Sequence[object], references: Sequence[Reference]) -> None:
    check_pairs(predictions, references)
    if not predictions:
        raise UsageError("there is nothing to score: got 0 pairs")
