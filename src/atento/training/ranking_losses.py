"""Losses of documents whose order is learned: of their numbers, given their grades and queries."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from atento.data.batches.batch import Batch

_MU = 10.0  # the factor of NDCG-Loss2 in NDCG-Loss2++


def listnet_loss(scores: Tensor, labels: Tensor, batch: Batch) -> Tensor:
    """Return Σ over queries of -Σ softmax(grades) · log softmax(scores), over the documents of the query.

    Paper: Cao et al. 2007 (Learning to Rank: From Pairwise Approach to Listwise Approach).
    """
    query = batch.extras["query"]
    others = query[:, None] != query  # (B,B): a document of another query
    logits = scores.expand(len(scores), -1).masked_fill(others, float("-inf"))  # (B,B)
    grades = batch.extras["grade"].to(scores.dtype).expand(len(scores), -1).masked_fill(others, float("-inf"))
    first = labels >= 0  # one row of each query
    terms = grades[first].softmax(dim=-1) * logits[first].log_softmax(dim=-1).masked_fill(others[first], 0.0)
    return -terms.sum()


def lambda_loss(scores: Tensor, labels: Tensor, batch: Batch) -> Tensor:
    """Return Σ -w_ij log2 σ(s_i - s_j) over the pairs of RankNet, with the weights of NDCG-Loss2++.

    w_ij = |G_i - G_j| · (10 |1/D(|r_i - r_j|) - 1/D(|r_i - r_j| + 1)| + |1/D(r_i) - 1/D(r_j)|), for the ranks r by
    score, D(r) = log2(1 + r), and the gains G = (2^grade - 1) / (the best DCG of the query).

    Paper: Wang et al. 2018 (The LambdaLoss Framework for Ranking Metric Optimization), equations 14 to 19.
    """
    grades, query = batch.extras["grade"].to(scores.dtype), batch.extras["query"]  # (B,) each
    same = query[:, None] == query  # (B,B): documents of one query
    gains = 2**grades - 1  # (B,)
    best = torch.zeros(int(query.max()) + 1, dtype=gains.dtype, device=gains.device)
    best.index_add_(0, query, gains / torch.log2(1 + _ranks(gains, same)))  # (Q): the gains in their best order
    gains = gains / best.clamp(min=1e-10)[query]  # a query of grades 0 alone has no best DCG
    ranks = _ranks(scores.detach(), same)  # weights are constants of the gradient
    apart = (ranks[:, None] - ranks).abs().clamp(min=1)  # the diagonal is not counted
    discounts = 1 / torch.log2(1 + ranks)  # 1 / D(r), (B,)
    weights = _MU * (1 / torch.log2(1 + apart) - 1 / torch.log2(2 + apart)) + (discounts[:, None] - discounts).abs()
    weights = weights * (gains[:, None] - gains).abs()  # (B,B)
    return -(weights * F.logsigmoid(scores[:, None] - scores))[labels >= 0].sum() / math.log(2)  # the pairs of RankNet


def _ranks(values: Tensor, same: Tensor) -> Tensor:
    """The rank of each value (B,) among those of its query, from 1, the largest first; equal ones in their order."""
    earlier = torch.ones_like(same).tril(-1)  # (B,B), True: j is before i
    above = (values[None, :] > values[:, None]) | ((values[None, :] == values[:, None]) & earlier)
    return 1 + (above & same).sum(dim=1).to(values.dtype)


# (numbers of the documents (B,), labels, batch) -> summed loss
RANKING_LOSSES: dict[str, Callable[[Tensor, Tensor, Batch], Tensor]] = {
    # binary cross-entropy of σ(score) and the grades, 0 to 1
    "pointwise": lambda scores, labels, batch: F.binary_cross_entropy_with_logits(
        scores, batch.extras["grade"].to(scores.dtype), reduction="sum"
    ),
    "listnet": listnet_loss,
    # Σ -log2 σ(s_i - s_j) over pairs of documents of a query, of which i has the higher grade: `labels` choose among
    # (B,B). Burges et al. 2005 (Learning to Rank using Gradient Descent)
    "ranknet": lambda scores, labels, batch: -F.logsigmoid(scores[:, None] - scores)[labels >= 0].sum() / math.log(2),
    "lambda-loss": lambda_loss,
}
