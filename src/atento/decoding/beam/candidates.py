"""The candidates of a beam step: which continuations are ranked, in what order, and their record in a trace."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, inf

from atento.decoding.beam.groups import Ranked
from atento.decoding.choosing import BLOCK, isin
from atento.decoding.trace import FINISHED, OUTSIDE, PLACE, STAGE, Trace

_WIDE = 4096  # the smallest vocabulary for which blocks are faster


@dataclass
class Candidates:
    """The c candidates of each of U groups, the preferred first; a score of -inf marks an empty entry."""

    scores: Tensor  # (U,c) sums of the scores of all tokens of a hypothesis
    parents: Tensor  # (U,c) the slot, 0 to w-1, of the live hypothesis that each extends
    tokens: Tensor  # (U,c)

    def select(self, index: Tensor) -> "Candidates":
        """The candidates at `index` (U,n)."""
        return Candidates(*(part.gather(1, index) for part in (self.scores, self.parents, self.tokens)))


class HighestScores:
    """The `count` candidates with the highest sums, of the w*V that there are (docs/notes.md#h6).

    The base of all that ranks continuations.
    """

    def __init__(self, count: int) -> None:
        self.count = count

    def propose(self, log_probs: Tensor, scores: Tensor, length: int) -> Candidates:
        """The candidates of one step.

        Args:
            log_probs: (U*w,V), after the rules.
            scores: (U,w) of the live hypotheses.
            length: of the candidates, in tokens.
        """
        return highest(log_probs.view(*scores.shape, -1), scores, self.count)

    def advance(self, chosen: Candidates) -> None:
        """Update the state, if there is one: these candidates (U,w) are the live hypotheses of the next step."""

    def select(self, groups: Tensor) -> None:
        """Update the state, if there is one: only these of the U groups remain."""


def highest(log_probs: Tensor, scores: Tensor, count: int) -> Candidates:
    """The `count` highest sums of scores (U,w) and log_probs (U,w,V) of each group, or all if there are fewer.

    Equal sums are ordered by slot, then by token, as in `argmax`. For this order to hold for all of them, `count` must
    be above w.
    """
    width, vocab_size = log_probs.shape[1:]
    count, flat = min(count, width * vocab_size), log_probs.flatten(1)  # (U,w*V)
    if vocab_size < _WIDE or width * (vocab_size // BLOCK) < 2 * count:  # small, or nearly all would be read anyway
        best, index = (scores.unsqueeze(-1) + log_probs).flatten(1).topk(count, dim=1)  # (U,c): indices into w·V
    else:
        promising = _promising(log_probs, scores, count)  # (U,m)
        total = flat.gather(1, promising) + scores.gather(1, promising.div(vocab_size, rounding_mode="floor"))
        best, rank = total.topk(count, dim=1)  # (U,c) among the m
        index = promising.gather(1, rank)
    if best.is_cuda or bool((best[:, 1:] == best[:, :-1]).any()):  # `topk` leaves the order of equal sums open
        # the highest sum first, equal sums by index: by index first, then stably by sum
        index, order = index.sort(dim=1)
        best, order = best.gather(1, order).sort(dim=1, descending=True, stable=True)
        index = index.gather(1, order)
        # a tie that runs past the last candidate: some of the equal sums were cut off, perhaps not the right ones
        if bool(((best[:, width - 1] == best[:, -1]) & (best[:, -1] > -torch.inf)).any()):
            best, index = (scores.unsqueeze(-1) + log_probs).flatten(1).sort(dim=1, descending=True, stable=True)
            best, index = best[:, :count], index[:, :count]
    parents = index.div(vocab_size, rounding_mode="floor")
    return Candidates(best, parents, index - parents * vocab_size)  # index = parent · V + token


def _promising(log_probs: Tensor, scores: Tensor, count: int) -> Tensor:
    """Indices (U,m) into the flat (U,w*V) that include those of the `count` highest sums.

    `topk` over the full vocabulary sorts more than necessary. The highest sums are in the `count` blocks of tokens with
    the highest maxima, and maxima of blocks are found at the speed of memory.
    """
    groups, width, vocab_size = log_probs.shape
    blocks = vocab_size // BLOCK
    maxima = log_probs[..., : blocks * BLOCK].unflatten(2, (blocks, BLOCK)).amax(dim=3) + scores.unsqueeze(2)
    block = maxima.flatten(1).topk(count, dim=1).indices  # (U,count)
    parent = block.div(blocks, rounding_mode="floor")  # the slot of each block
    first = parent * vocab_size + (block - parent * blocks) * BLOCK  # the index of its first token
    index: Tensor = (first.unsqueeze(2) + torch.arange(BLOCK, device=block.device)).flatten(1)
    if vocab_size == blocks * BLOCK:
        return index
    tail = torch.arange(blocks * BLOCK, vocab_size, device=block.device)  # the tokens after the last full block
    tail = (torch.arange(width, device=block.device).unsqueeze(1) * vocab_size + tail).flatten()
    return torch.cat([index, tail.expand(groups, -1)], dim=1)


def first_live(dropped: Tensor, width: int) -> Tensor:
    """The indices (U,w) of the first candidates that are not `dropped` (U,c), in their order.

    Where there are too few, dropped candidates follow.
    """
    return dropped.byte().argsort(dim=1, stable=True)[:, :width]  # stable: 0 first, each in its order


class DiverseGroups(HighestScores):
    """Diverse beam search: the groups of a sentence choose one after the other (Vijayakumar et al. 2018).

    A token's score falls by `diversity` for each earlier group that has taken it at this step. The penalty stays in the
    sums by which a search ranks; the returned scores do not contain it.
    """

    def __init__(self, count: int, groups: int, diversity: float, eos_ids: Sequence[int]) -> None:
        super().__init__(count)
        self.groups, self.diversity, self.eos_ids = groups, diversity, eos_ids

    def propose(self, log_probs: Tensor, scores: Tensor, length: int) -> Candidates:
        """As of the base; the U groups are the G groups of each sentence, side by side."""
        total, width = scores.shape
        by_group = scores.view(-1, self.groups, width)  # (N,G,w)
        by_group_log_probs = log_probs.view(len(by_group), self.groups, width, -1)  # (N,G,w,V)
        times_taken = torch.zeros_like(by_group_log_probs[:, 0, 0])  # (N,V)
        proposed = []
        for group in range(self.groups):
            penalised = by_group_log_probs[:, group]
            if group:
                penalised = penalised - self.diversity * times_taken.unsqueeze(1)  # (N,1,V), the same for all slots
            candidates = highest(penalised, by_group[:, group], self.count)
            dropped = isin(candidates.tokens, self.eos_ids) | (candidates.scores == -torch.inf)  # they take no slot
            index = first_live(dropped, width)  # (N,w): the candidates that will fill the slots of this group
            times_taken.scatter_add_(
                1, candidates.tokens.gather(1, index), (~dropped.gather(1, index)).to(times_taken.dtype)
            )
            proposed.append(candidates)
        parts = zip(*((candidates.scores, candidates.parents, candidates.tokens) for candidates in proposed))
        return Candidates(*(torch.stack(part, dim=1).view(total, -1) for part in parts))  # groups side by side again


def record_step(
    trace: Trace,
    ranked: Sequence[Ranked],
    ends: Sequence[set[int]],
    taken: Sequence[Ranked],
    slots: list[int],
    fates: list[str],
) -> None:
    """Record the candidates of each group, of which those in `ends` finish an output and `taken` stay in the beam.

    Args:
        slots: how many slots each group had when the candidates were ranked.
        fates: of the taken candidates of each group: kept, unless the group's search is over.
    """
    for group, (one, held) in enumerate(zip(ranked, taken)):
        width = len(held.scores)
        live_scores = [score for score in held.scores if score > -inf]  # -inf: an empty slot
        staying = {
            (parent, token) for parent, token, score in zip(held.parents, held.tokens, held.scores) if score > -inf
        }
        recorded: set[tuple[int, int]] = set()
        lowest = min(live_scores, default=inf)
        live = 0  # how many candidates before this one could stay in the beam
        for rank, (score, parent, token) in enumerate(zip(one.scores, one.parents, one.tokens)):
            if score == -inf:
                continue
            fate, end = OUTSIDE, rank in ends[group]
            if end:
                fate = FINISHED if rank < min(width, slots[group]) else OUTSIDE
            elif (parent, token) in staying:
                fate = fates[group]
            elif live < width:  # it is among the best, but the beam has shrunk
                fate = PLACE
            elif score > lowest:
                fate = STAGE
            live += not end
            recorded.add((parent, token))
            trace.candidate(group * width + parent, token, fate, total=score)
        for row in range(group * width, (group + 1) * width):  # the most probable ones that were not even candidates
            for token in trace.most_probable(row):
                if (row - group * width, token) not in recorded:
                    trace.candidate(row, token, trace.removal_fate(row, token) or OUTSIDE)
