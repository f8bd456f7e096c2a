"""Which continuations a beam weighs, and in what order it prefers them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from atento.decoding.greedy import BLOCK, WIDE, among


@dataclass
class Candidates:
    """The c continuations of each of U searches, the preferred first; a score of -inf is none."""

    scores: Tensor  # (U,c) summed scores of the whole beginnings
    parents: Tensor  # (U,c) the place, 0 to w-1, of the beginning that each goes on from
    tokens: Tensor  # (U,c)

    def at(self, places: Tensor) -> "Candidates":
        """Those at `places` (U,n)."""
        return Candidates(*(part.gather(1, places) for part in (self.scores, self.parents, self.tokens)))

    def first(self, count: int) -> "Candidates":
        """The preferred ones."""
        return Candidates(self.scores[:, :count], self.parents[:, :count], self.tokens[:, :count])


class Proposer(Protocol):
    """A way of weighing continuations: plain, group after group, or with words that have to come."""

    def propose(self, log_probs: Tensor, scores: Tensor, length: int) -> Candidates:
        """Changed log-probabilities (U*w,V), scores (U,w) of the beginnings, `length` tokens each with this one."""

    def took(self, chosen: Candidates) -> None:
        """Those (U,w) go on."""

    def select(self, units: Tensor) -> None:
        """Only those of the U searches are left."""


class Best:
    """The continuations of the highest sums: kV of them pruned to as many as can leave k that go on.

    See docs/notes.md#h6.
    """

    def __init__(self, count: int) -> None:
        self.count = count

    def propose(self, log_probs: Tensor, scores: Tensor, length: int) -> Candidates:
        """See `Proposer`."""
        return highest(log_probs.view(*scores.shape, -1), scores, self.count)

    def took(self, chosen: Candidates) -> None:
        """Nothing has to be remembered."""

    def select(self, units: Tensor) -> None:
        """Nothing has to be remembered."""


def highest(log_probs: Tensor, scores: Tensor, count: int) -> Candidates:
    """log_probs (U,w,V) added to scores (U,w): the `count` highest sums of each search, or all if there are fewer.

    Of equal sums the one of the earlier place and the lower token comes first, as argmax has it; for all of them to be
    in order, `count` must be above w.
    """
    width, vocab_size = log_probs.shape[1:]
    count, flat = min(count, width * vocab_size), log_probs.flatten(1)  # (U,w*V)
    if vocab_size < WIDE or width * (vocab_size // BLOCK) < 2 * count:
        best, index = (scores.unsqueeze(-1) + log_probs).flatten(1).topk(count, dim=1)
    else:
        some = _promising(log_probs, scores, count)  # (U,m)
        total = flat.gather(1, some) + scores.gather(1, some.div(vocab_size, rounding_mode="floor"))
        best, place = total.topk(count, dim=1)
        index = some.gather(1, place)
    if best.is_cuda or bool((best[:, 1:] == best[:, :-1]).any()):
        best, index = _in_order(best, index)
        if bool(((best[:, width - 1] == best[:, -1]) & (best[:, -1] > -torch.inf)).any()):  # more than were looked at
            best, index = (scores.unsqueeze(-1) + log_probs).flatten(1).sort(dim=1, descending=True, stable=True)
            best, index = best[:, :count], index[:, :count]
    parents = index.div(vocab_size, rounding_mode="floor")
    return Candidates(best, parents, index - parents * vocab_size)


def _in_order(best: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Sums and places (U,c), the highest first, equal ones by their places."""
    index, order = index.sort(dim=1)
    best, order = best.gather(1, order).sort(dim=1, descending=True, stable=True)
    return best, index.gather(1, order)


def _promising(log_probs: Tensor, scores: Tensor, count: int) -> Tensor:
    """Places (U,m) in the flat (U,w*V), among which the `count` highest sums are.

    `topk` over a whole vocabulary sorts more than it must: the highest sums lie in the `count` blocks of tokens that
    have the highest maxima, and maxima of blocks are found at the speed of memory.
    """
    units, width, vocab_size = log_probs.shape
    blocks = vocab_size // BLOCK
    maxima = log_probs[..., : blocks * BLOCK].unflatten(2, (blocks, BLOCK)).amax(dim=3) + scores.unsqueeze(2)
    block = maxima.flatten(1).topk(count, dim=1).indices  # (U,count)
    parent = block.div(blocks, rounding_mode="floor")
    first = parent * vocab_size + (block - parent * blocks) * BLOCK
    places: Tensor = (first.unsqueeze(2) + torch.arange(BLOCK, device=block.device)).flatten(1)
    if vocab_size == blocks * BLOCK:
        return places
    rest = torch.arange(blocks * BLOCK, vocab_size, device=block.device)  # what makes no whole block
    rest = (torch.arange(width, device=block.device).unsqueeze(1) * vocab_size + rest).flatten()
    return torch.cat([places, rest.expand(units, -1)], dim=1)


def going_on(gone: Tensor, width: int) -> Tensor:
    """Which candidates gone (U,c) go on: the places (U,w) of the first ones that are not gone, in their order.

    Where there are too few, some that are gone stand behind them.
    """
    return gone.byte().argsort(dim=1, stable=True)[:, :width]


class InTurns:
    """Groups of a sentence one after the other, each avoiding what earlier ones have just taken (Vijayakumar 2018).

    Each token's score falls by `diversity` for every time that an earlier group goes on with it at this step. What is
    taken off stays off, in the sums by which a search ranks; the scores handed out do not know of it.
    """

    def __init__(self, count: int, groups: int, diversity: float, eos_ids: Sequence[int]) -> None:
        self.count, self.groups, self.diversity, self.eos_ids = count, groups, diversity, eos_ids

    def propose(self, log_probs: Tensor, scores: Tensor, length: int) -> Candidates:
        """The U searches are G groups of each sentence, side by side."""
        units, width = scores.shape
        by_group = scores.view(-1, self.groups, width)
        spread = log_probs.view(len(by_group), self.groups, width, -1)  # (N,G,w,V)
        taken = torch.zeros_like(spread[:, 0, 0])  # (N,V)
        found = []
        for group in range(self.groups):
            told_off = spread[:, group] - self.diversity * taken.unsqueeze(1) if group else spread[:, group]
            one = highest(told_off, by_group[:, group], self.count)
            gone = among(one.tokens, self.eos_ids) | (one.scores == -torch.inf)
            places = going_on(gone, width)
            taken.scatter_add_(1, one.tokens.gather(1, places), (~gone.gather(1, places)).to(taken.dtype))
            found.append(one)
        parts = zip(*((one.scores, one.parents, one.tokens) for one in found))
        return Candidates(*(torch.stack(part, dim=1).view(units, -1) for part in parts))

    def took(self, chosen: Candidates) -> None:
        """Nothing has to be remembered."""

    def select(self, units: Tensor) -> None:
        """Nothing has to be remembered."""
