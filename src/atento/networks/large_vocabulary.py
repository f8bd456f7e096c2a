"""Losses over large vocabularies: the adaptive softmax, and a softmax over a sample of the words (docs/notes.md#c5)."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from atento.base.errors import RecipeError
from atento.networks.layers import TokenEmbedding
from atento.networks.vocabulary import Head, cross_entropy

_SHRINKS = 4  # the vectors of a cluster are so many times narrower than those of the cluster before it
_BLOCK_LOGITS = 1 << 23  # values of logits in memory at a time: 32 MiB in float32


class AdaptiveSoftmax(Head):
    """p(word) = p(cluster) · p(word | cluster), for words in the order of falling frequency (Grave et al. 2017).

    The words below the first cutoff and one logit for each cluster share the first matrix. Cluster i, from 1, reads
    vectors that are projected to D / 4**i. A target costs the first matrix and that of its own cluster alone. The
    probabilities are exact: they add up to 1 over all words.
    """

    kind = "vocabulary"

    def __init__(self, vocab_size: int, d_model: int, cutoffs: Sequence[int]) -> None:
        """Raises:
        RecipeError: a cutoff is not below the number of words.
        """
        super().__init__()
        if cutoffs[-1] >= vocab_size:
            raise RecipeError(
                f"`output.adaptive` must be below the {vocab_size} words of the vocabulary: got {list(cutoffs)}"
            )
        self.vocab_size, self.bounds = vocab_size, (*cutoffs, vocab_size)  # where frequent words and each cluster end
        self.first = nn.Linear(d_model, cutoffs[0] + len(cutoffs), bias=False)  # frequent words, and the clusters
        self.clusters = nn.ModuleList(  # the rarer their words, the narrower
            nn.Sequential(nn.Linear(d_model, width, bias=False), nn.Linear(width, end - begin, bias=False))
            for (begin, end), width in zip(  # (begin, end): the words of a cluster
                zip(cutoffs, self.bounds[1:]), (max(1, d_model // _SHRINKS**i) for i in range(1, len(cutoffs) + 1))
            )
        )
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Matrices normal, with deviation 1/√ of the width that they read."""
        for matrix in self.parameters():
            nn.init.normal_(matrix, std=matrix.shape[1] ** -0.5)

    def forward(self, hidden: Tensor, table: TokenEmbedding | None = None) -> Tensor:
        """hidden (...,D) -> log-probabilities (...,V), of which softmax gives the probabilities; `table` is ignored."""
        first = torch.log_softmax(self.first(hidden), dim=-1)  # (...,first cutoff + clusters)
        words, clusters = first[..., : self.bounds[0]], first[..., self.bounds[0] :]  # frequent ones; a place a cluster
        inside = [torch.log_softmax(cluster(hidden), dim=-1) for cluster in self.clusters]  # log p(word | cluster)
        return torch.cat([words, *(clusters[..., i, None] + log_probs for i, log_probs in enumerate(inside))], dim=-1)

    def nats(self, vectors: Tensor, targets: Tensor) -> Tensor:
        """vectors (N,D), targets (N,) -> the sum of -log p, without the clusters that no target is in."""
        starts = torch.tensor(self.bounds[:-1], device=targets.device)  # the first word of each cluster
        number = torch.searchsorted(starts, targets, right=True)  # of the cluster; 0 for words below the first cutoff
        column = torch.where(number == 0, targets, self.bounds[0] + number - 1)  # of the word, or of its cluster
        total, _ = cross_entropy(vectors, self.first.weight, column)
        cluster: Any
        for cluster, begin, end in zip(self.clusters, self.bounds, self.bounds[1:]):
            rows = ((targets >= begin) & (targets < end)).nonzero()[:, 0]  # (n,), rows whose target is in this cluster
            if len(rows):
                narrow, matrix = cluster  # two linear layers
                total = total + cross_entropy(narrow(vectors[rows]), matrix.weight, targets[rows] - begin)[0]
        return total


def sampled_nats(vectors: Tensor, targets: Tensor, matrix: Tensor, bias: Tensor | None, sampled: Tensor) -> Tensor:
    """The sum of -log p by a softmax over each target and a sample of the words (Jean et al. 2015, section 3).

    The words are drawn with replacement by P(k) = log((k + 2) / (k + 1)) / log(V + 1), which fits words in the order of
    falling frequency. A drawn word counts exp(its logit) / (S · P(k)) in the sum over the vocabulary, and nothing for a
    target that it equals. So the sum is right on average, as is 1 / p, and -log p is too small with few samples.

    Args:
        vectors: (N,D).
        targets: (N,).
        matrix: the output matrix (V,D).
        bias: (V,), or None.
        sampled: (S,), the drawn words.
    """
    numbers = sampled.to(torch.float64)
    share = torch.log((numbers + 2) / (numbers + 1)) / math.log(len(matrix) + 1)  # P(k)
    wide = torch.promote_types(vectors.dtype, torch.float32)
    drawn_bias = -torch.log(len(sampled) * share)  # -log (S · P(k)), added to a logit
    drawn_bias = (drawn_bias if bias is None else drawn_bias + bias[sampled]).to(wide)

    def nats(vectors: Tensor, targets: Tensor) -> Tensor:
        right = (vectors * F.embedding(targets, matrix)).sum(dim=-1, keepdim=True).to(wide)  # (n,1)
        right = right if bias is None else right + bias[targets, None]
        wrong = (vectors @ F.embedding(sampled, matrix).T).to(wide) + drawn_bias  # (n,S)
        wrong = wrong.masked_fill(sampled == targets.unsqueeze(1), -torch.inf)
        return (torch.logsumexp(torch.cat([right, wrong], dim=1), dim=1) - right[:, 0]).sum()  # log Z - logit, summed

    rows = max(1, _BLOCK_LOGITS // len(sampled))
    if len(vectors) <= rows:
        return nats(vectors, targets)
    blocks = zip(vectors.split(rows), targets.split(rows))
    sums = [checkpoint(nats, *block, use_reentrant=False, preserve_rng_state=False) for block in blocks]
    return torch.stack(sums).sum()
