"""Retrieval: ranks by hand and by sorting; perplexity from sums: token-weighted, whatever the order."""

import math
import random

import numpy as np
import pytest

from atento.base.errors import UsageError
from atento.metrics import perplexity, rankings, retrieval, retrieval_of_vectors
from failing import fails


def test_mean_reciprocal_rank_by_hand() -> None:
    """The right documents 0, 1 and 2 rank first, third and second."""
    score = retrieval([[0.9, 0.1, 0.2], [0.8, 0.1, 0.2], [0.1, 0.9, 0.5]], cutoffs=(1, 2, 3))
    assert score.value == pytest.approx((1 + 1 / 3 + 1 / 2) / 3)
    assert score.parts == pytest.approx({"recall@1": 1 / 3, "recall@2": 2 / 3, "recall@3": 1})
    assert str(score) == "MRR 0.6111 ties:last"
    # they rank 1 and 4: recall@1 is a half, and the reciprocal rank is that of the first
    score = retrieval([[0.9, 0.5, 0.4, 0.3]], [[0, 3]], cutoffs=(1, 3, 4))
    assert score.value == 1 and score.parts == {"recall@1": 0.5, "recall@3": 0.5, "recall@4": 1}


def test_right_documents_may_be_arrays() -> None:
    similarities = [[0.9, 0.5, 0.4, 0.3], [0.1, 0.2, 0.3, 0.4]]
    expected = retrieval(similarities, [[0, 3], [1, 1]])
    assert retrieval(similarities, [np.array([3, 0]), np.array([1])]) == expected
    assert retrieval(similarities, np.array([[0, 3], [1, 1]])) == expected


def test_equal_similarities_earn_nothing() -> None:
    score = retrieval(np.zeros((5, 5)))
    assert score.value == pytest.approx(1 / 5) and score.parts["recall@1"] == 0 and score.parts["recall@5"] == 1


def test_vectors_are_compared_by_their_cosine_and_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a plain sort; also in blocks of a few queries."""
    generator = np.random.default_rng(2)
    queries, documents = generator.normal(size=(30, 8)), generator.normal(size=(50, 8)) * generator.random((50, 1))
    relevant = [int(number) for number in generator.integers(0, 50, 30)]
    ranks = []
    for query, number in zip(queries, relevant):
        cosines = [query @ one / np.linalg.norm(query) / np.linalg.norm(one) for one in documents]
        ranks.append(1 + sorted(range(50), key=lambda n: -cosines[n]).index(number))
    for block in (4_000_000, 120):
        monkeypatch.setattr(rankings, "_BLOCK", block)
        score = retrieval_of_vectors(queries, documents, relevant)
        assert score.value == pytest.approx(np.mean([1 / rank for rank in ranks]))
        for k in (1, 5, 10):
            assert score.parts[f"recall@{k}"] == pytest.approx(np.mean([rank <= k for rank in ranks]))
    low, high = score.interval(samples=100)
    assert low < score.value < high
    for arguments, message in (
        (([1.0, 2.0],), r"must be a matrix of queries and documents: got the shape \(2,\)"),
        (([[math.nan]],), "`similarities` must be finite"),
        (([[1.0], [2.0]],), "query q has document q: got 2 queries and 1 documents"),
        (([[1.0, 2.0]], [2]), "query 0: right documents are numbers from 0 to 1: got 2"),
        (([[1.0, 2.0]], [[]]), "query 0: right documents are numbers from 0 to 1"),
        (([[1.0, 2.0]], [0.9]), "query 0: right documents are numbers from 0 to 1: got 0.9"),
        (([[1.0, 2.0]], [0, 1]), "each query needs its right documents: got 1 queries and 2"),
    ):
        fails(UsageError, message, retrieval, *arguments)
        fails(UsageError, r"one width: .* \(1, 2\) and \(1, 3\)", retrieval_of_vectors, [[1.0, 2.0]], [[1.0, 2.0, 3.0]])


def test_i6_perplexity_weights_texts_by_their_tokens_and_what_it_refuses() -> None:
    """Four tokens of probability 1/2 and one of 1/8: exp of 7 bits over 5 tokens, not the mean of 2 and 8."""
    score = perplexity([4 * math.log(1 / 2), math.log(1 / 8)], [4, 1])
    assert score.value == pytest.approx(2 ** (7 / 5))
    assert score.parts == pytest.approx({"nll": 7 / 5 * math.log(2), "bits": 7 / 5, "tokens": 5})
    assert score.per_sentence() == pytest.approx([2, 8])
    low, high = score.interval(samples=50)
    assert low == pytest.approx(2) and high == pytest.approx(8)
    draw = random.Random(1)
    texts = [(-draw.expovariate(0.1), draw.randint(1, 30)) for _ in range(500)]
    shuffled = draw.sample(texts, len(texts))
    assert perplexity(*zip(*texts)).value == perplexity(*zip(*shuffled)).value
    batches = [shuffled[start : start + 7] for start in range(0, 500, 7)]
    sums = [(math.fsum(log for log, _ in batch), sum(count for _, count in batch)) for batch in batches]
    assert perplexity(*zip(*sums)).value == pytest.approx(perplexity(*zip(*texts)).value, rel=1e-15)
    assert perplexity([-math.inf, -1.0], [1, 1]).value == math.inf
    assert perplexity([0.0, -1.0], [0, 1]).value == pytest.approx(math.e)  # an empty text
    for log_probs, counts, message in (
        ([-1.0], [1, 2], "each text needs its number of tokens: got 1 texts and 2 counts"),
        ([], [], "there is nothing to score: got 0 tokens"),
        ([0.5], [1], "the log-probability of text 1 must not be above 0: got 0.5"),
        ([math.nan], [1], "the log-probability of text 1 must not be above 0: got nan"),
        ([-1.0], [0], "the number of tokens of text 1 is not valid: got 0"),
    ):
        fails(UsageError, message, perplexity, log_probs, counts)
