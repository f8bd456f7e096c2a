"""A linear-chain conditional random field over tags: sums over all sequences, and the best one (docs/tagging.md).

log p(y | x) = start[y_1] + Σ_t scores_t[y_t] + Σ_t transitions[y_t-1, y_t] + end[y_N] - log Z(x)

Papers: Lafferty et al. 2001 (Conditional Random Fields), Lample et al. 2016 (Neural Architectures for Named Entity
Recognition). Scores are (B,N,C), the words of each row first; what stands behind its last word changes nothing.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# In nats. A sequence with such a transition has the probability 0 in float32 and float64, as with minus infinity, but
# no gradient is NaN, and where no sequence is legal, the best one has as few illegal transitions as possible.
ILLEGAL = -1e6
TRANSITIONS = (".start", ".transitions", ".end")
"""The endings of the names of a head's transitions."""


class Chain(NamedTuple):
    """The scores of the transitions between tags."""

    start: Tensor  # (C,), of the first tag
    transitions: Tensor  # (C,C), from the tag of a row to the tag of a column
    end: Tensor  # (C,), of the last tag; or (B,C)


def illegal_scores(legal: Sequence[Sequence[bool]]) -> tuple[NDArray[np.float64], ...]:
    """The scores of a `Chain` that has `ILLEGAL` where (C+1,C+1), whose first is the border of a sentence, is False."""
    scores = np.where(legal, 0.0, ILLEGAL)
    return scores[0, 1:], scores[1:, 1:], scores[1:, 0]


def _forward(scores: Tensor, start: Tensor, transitions: Tensor, *, best: bool = False) -> Tensor:
    """The forward algorithm: log Σ exp of the scores of all sequences up to each word that end in each tag, (B,N,C).

    It is known up to a number for each word. `best`: the score of the best sequence instead (Viterbi 1967).
    """
    over_tags = torch.amax if best else torch.logsumexp
    # a number that all tags of a word share changes no probability, and this one keeps sums over many words small
    first, *others = scores.log_softmax(dim=-1).unbind(1)
    totals = [first + start]
    for word in others:
        totals.append(over_tags(totals[-1].unsqueeze(2) + transitions, 1) + word)
    return torch.stack(totals, dim=1)


def tag_log_probs(scores: Tensor, lengths: Tensor, tags: Tensor, chain: Chain) -> Tensor:
    """log p(tag | all words, the tag behind it) of the tags (B,N) of rows of `lengths` (B,) words, at least one: (B,N).

    Their sum over the words of a row is log p(tags | words): each is a softmax over the sums of the forward algorithm,
    so that log Z, a large number, is never subtracted from another one.
    """
    behind = chain.transitions.T[tags[:, 1:]]  # (B,N-1,C), from each tag to the tag of the next word
    behind = torch.cat([behind, behind.new_zeros(len(scores), 1, scores.shape[2])], dim=1)
    is_last = torch.arange(scores.shape[1], device=scores.device) == lengths.unsqueeze(1) - 1  # (B,N)
    behind = torch.where(is_last.unsqueeze(2), chain.end.expand(len(scores), -1).unsqueeze(1), behind)
    log_probs = (_forward(scores, chain.start, chain.transitions) + behind).log_softmax(dim=-1)
    return log_probs.gather(2, tags.unsqueeze(2)).squeeze(2)


def log_marginals(scores: Tensor, lengths: Tensor, chain: Chain) -> Tensor:
    """log p(tag of a word | all words), by the forward and the backward algorithm: (B,N,C)."""
    # the sequences from each word on are those up to it, in the reversed order
    order = (lengths.unsqueeze(1) - 1 - torch.arange(scores.shape[1], device=scores.device)).clamp(min=0)  # (B,N)
    index = order.unsqueeze(2).expand_as(scores)
    backward = _forward(scores.gather(1, index), chain.end, chain.transitions.T).gather(1, index)
    return (_forward(scores, chain.start, chain.transitions) + backward - scores).log_softmax(dim=-1)


def best_tags(scores: Tensor, lengths: Tensor, chain: Chain) -> Tensor:
    """The tags (B,N) of the most probable sequence of each row (Viterbi 1967)."""
    totals = _forward(scores, chain.start, chain.transitions, best=True)
    tags = (totals + chain.end).argmax(dim=-1)  # as if each word were the last
    for word in reversed(range(scores.shape[1] - 1)):
        before = (totals[:, word] + chain.transitions.T[tags[:, word + 1]]).argmax(dim=-1)
        tags[:, word] = torch.where(word < lengths - 1, before, tags[:, word])
    return tags
