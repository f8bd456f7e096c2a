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


def forward_sums(scores: Tensor, start: Tensor, transitions: Tensor) -> Tensor:
    """The forward algorithm: log Σ exp of the scores of all sequences up to each word that end in each tag, (B,N,C).

    They are known up to a number for each word.
    """
    first, *others = _without_common_part(scores)
    sums = [first + start]
    for word in others:
        sums.append((sums[-1].unsqueeze(2) + transitions).logsumexp(dim=1) + word)
    return torch.stack(sums, dim=1)


def _without_common_part(scores: Tensor) -> tuple[Tensor, ...]:
    """The scores (B,C) of each word; a number that all its tags share changes no probability, and makes sums large."""
    return scores.log_softmax(dim=-1).unbind(1)


def tag_log_probs(sums: Tensor, lengths: Tensor, tags: Tensor, chain: Chain) -> Tensor:
    """log p(tag | all words, the tag behind it) of the tags (B,N) of rows of `lengths` (B,) words, at least one: (B,N).

    Their sum over the words of a row is log p(tags | words): each is a softmax over `sums`, those of the forward
    algorithm, so that log Z, a large number, is never subtracted from another one.
    """
    behind = chain.transitions.T[tags[:, 1:]]  # (B,N-1,C), from each tag to the tag of the next word
    behind = torch.cat([behind, behind.new_zeros(len(sums), 1, sums.shape[2])], dim=1)
    is_last = torch.arange(sums.shape[1], device=sums.device) == lengths.unsqueeze(1) - 1  # (B,N)
    behind = torch.where(is_last.unsqueeze(2), chain.end.expand(len(sums), -1).unsqueeze(1), behind)
    return (sums + behind).log_softmax(dim=-1).gather(2, tags.unsqueeze(2)).squeeze(2)


def log_marginals(scores: Tensor, sums: Tensor, lengths: Tensor, chain: Chain) -> Tensor:
    """log p(tag of a word | all words), by the sums of the forward algorithm and by the backward one: (B,N,C)."""
    # the sequences from each word on are those up to it, in the reversed order
    order = (lengths.unsqueeze(1) - 1 - torch.arange(scores.shape[1], device=scores.device)).clamp(min=0)  # (B,N)
    index = order.unsqueeze(2).expand_as(scores)
    backward = forward_sums(scores.gather(1, index), chain.end, chain.transitions.T).gather(1, index)
    return (sums + backward - scores).log_softmax(dim=-1)


def best_tags(scores: Tensor, lengths: Sequence[int], chain: Chain) -> list[list[int]]:
    """The tags of the most probable sequence of each row (Viterbi 1967)."""
    first, *others = _without_common_part(scores)
    bests, pointers = [first + chain.start], []
    for word in others:
        best, before = (bests[-1].unsqueeze(2) + chain.transitions).max(dim=1)  # over the tags before, (B,C)
        bests.append(best + word)
        pointers.append(before)
    last = (torch.stack(bests, dim=1) + chain.end).argmax(dim=-1).tolist()  # (B,N), as if each word were the last
    arrived = [pointer.tolist() for pointer in pointers]  # (N-1,B,C)
    found = []
    for row, length in enumerate(lengths):
        tags = [last[row][length - 1]]
        for place in reversed(range(length - 1)):
            tags.append(arrived[place][row][tags[-1]])
        found.append(tags[::-1])
    return found
