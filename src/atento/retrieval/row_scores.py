"""Scores of the lines of an index for a query: BM25 of words, cosines of vectors, and both joined by rank."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from atento.retrieval.index_segments import Segment

Found = tuple[NDArray[np.int64], NDArray[np.floating]]  # rows (n,) and their scores (n,), the best first
K1, B = 1.2, 0.75  # of BM25, as Lucene has them
_FUSION = 60  # the constant of reciprocal rank fusion (Cormack, Clarke and Büttcher 2009)
_BLOCK = 2048  # rows that are multiplied at once, so that they stay in the cache


def bm25(segments: Sequence[Segment], words: Sequence[str]) -> list[NDArray[np.float64]]:
    """The BM25 of each line of each segment (N,); 0 without a word of the query.

    Σ over words of idf · tf / (tf + k1 · (1 - b + b · length / mean length)), idf = log(1 + (N - n + ½) / (n + ½)), as
    Lucene computes it (Robertson and Zaragoza 2009); lines that were taken out count nowhere.
    """
    lines = sum(int(segment.alive.sum()) for segment in segments)
    mean = sum(int(segment.lengths[segment.alive].sum()) for segment in segments) / max(1, lines) or 1.0
    scores = [np.zeros(len(segment.alive)) for segment in segments]
    for word, times in Counter(words).items():
        found = [segment.postings(word) for segment in segments]
        n = sum(int(segment.alive[rows].sum()) for segment, (rows, _) in zip(segments, found))
        idf = math.log(1 + (lines - n + 0.5) / (n + 0.5))
        for segment, (rows, counts), own in zip(segments, found, scores):
            own[rows] += times * idf * counts / (counts + K1 * (1 - B + B * segment.lengths[rows] / mean))
    return scores


def cosines(segment: Segment, query: NDArray[np.float32]) -> NDArray[np.float32]:
    """The cosine of each line (N,) with a query (D,) of length 1: one product, a block of rows at a time."""
    vectors, side = torch.from_numpy(segment.vectors), torch.from_numpy(query)
    if vectors.dtype == torch.float32:
        return torch.mv(vectors, side).numpy()
    products, buffer = torch.empty(len(vectors)), torch.empty(_BLOCK, len(query))
    for begin in range(0, len(vectors), _BLOCK):
        block = vectors[begin : begin + _BLOCK]
        rows = buffer[: len(block)].copy_(block)  # in float32
        torch.mv(rows, side, out=products[begin : begin + _BLOCK])
    return (products * torch.from_numpy(segment.scales)).numpy()


def best(scores: NDArray[np.floating], allowed: NDArray[np.bool_], n: int) -> Found:
    """The `n` allowed rows of highest score (N,); of equal ones the earlier."""
    rows = np.flatnonzero(allowed)
    own = scores[rows]
    if len(rows) > n > 0:
        rows = rows[own >= np.partition(own, len(own) - n)[len(own) - n]]
        own = scores[rows]
    order = np.argsort(-own, kind="stable")[:n]
    return rows[order], own[order]


def fused(rankings: Iterable[Sequence[tuple[int, float]]]) -> list[tuple[int, float]]:
    """Rankings of numbered lines joined: Σ 1 / (60 + rank) of each, the highest first; of equal ones the first seen."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, (line, _) in enumerate(ranking, 1):
            scores[line] = scores.get(line, 0.0) + 1 / (_FUSION + rank)
    return sorted(scores.items(), key=lambda item: -item[1])
