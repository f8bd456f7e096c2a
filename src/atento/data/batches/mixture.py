"""A mixture of several data sets or objectives; the member that fills a slot of an update is a function of the seed."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atento.base.splitmix import hashes, uniform
from atento.data.batches.batch import EVERY, Batch, Batches, Part, PartSize
from atento.data.batches.planning import part_count

_MEMBER_KEY = 21  # keeps these hashes apart from hashes for other purposes
_MIN_SLOTS = 4  # per update, or as many as members if they are fewer, so that shares hold within few updates
_BLOCK = 4096  # updates whose members are drawn together


@dataclass(frozen=True)
class Shares:
    """The shares of the members by update: weights at some updates, interpolated linearly between them."""

    updates: NDArray[np.float64]  # (P,) rising numbers of updates, from 0
    weights: NDArray[np.float64]  # (P, members) weights there, not negative

    @classmethod
    def constant(cls, weights: Sequence[float]) -> "Shares":
        """Return shares that do not change."""
        return cls(np.zeros(1), np.array([weights], dtype=np.float64))

    @classmethod
    def over(cls, points: Sequence[tuple[float, Sequence[float]]], steps: int) -> "Shares":
        """Return shares by points (share of training, weights) of a run of `steps` updates."""
        at, weights = zip(*points)
        return cls(np.array(at, dtype=np.float64) * max(1, steps - 1), np.array(weights, dtype=np.float64))

    def at(self, updates: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the shares of the members in updates (U,): (U, members), each row with sum 1."""
        columns = [np.interp(updates, self.updates, column) for column in self.weights.T]
        weights = np.stack(columns, axis=1)
        return np.asarray(weights / weights.sum(axis=1, keepdims=True), dtype=np.float64)  # each row sums to 1

    def mean(self, steps: int) -> NDArray[np.float64]:
        """Return the mean shares of the members over updates 0 ... steps - 1, (members,)."""
        changes = len(self.updates) > 1
        return np.asarray(self.at(np.arange(steps if changes else 1)).mean(axis=0), dtype=np.float64)


class Mixture:
    """Fills the slots of each update with batches of its members, at random so that each has its share of the targets.

    The slots have about an equal part of the budget. A slot holds one update of one member, or as many as fill it if
    the member is small. The member of slot k of update u is drawn from (seed, u, k). How many slots a member has filled
    before says which of its updates comes next; so the position in all members follows from the number of the update,
    and training can resume at any update.

    An epoch has as many updates as it takes to read each source once, each text under one of the objectives.
    """

    def __init__(
        self,
        members: Sequence[Callable[[int], Batches]],
        shares: Callable[[Sequence[Batches]], Shares],
        *,
        budget: int | None,
        seed: int,
        sources: int = 1,
    ) -> None:
        """Make the members.

        Args:
            members: for each member a function from a budget of real targets to its batches.
            shares: a function from the members to their shares of the targets, which may depend on their sizes.
            budget: real targets of an update. None: an update is one of a member, which has its own budget, and the
                shares are of updates.
            seed: seed of the choice of members.
            sources: sources of data that the members read, an equal number of members each, one after another.
        """
        self.sources = sources
        least = min(_MIN_SLOTS, len(members))  # few: a part costs time of its own
        slots = max(least, part_count(budget or 0))  # as many as an update has parts
        slot = max(1, (budget or 0) // slots)  # targets of a slot
        self.members = [make(slot) for make in members]
        self.targets = sum(member.targets for member in self.members)
        self.shares = shares(self.members)
        self.seed = seed
        each = np.array([member.targets / member.updates_per_epoch for member in self.members])  # of a member's update
        each = np.ones(len(each)) if budget is None else np.maximum(each, 1.0)  # an update of a member has a target
        self._updates_per_slot = np.maximum(1, np.rint(slot / each)).astype(np.int64)  # (members,)
        self._slot_targets = each * self._updates_per_slot
        mean = self.shares.mean(round(self.shares.updates[-1]) + 1)
        mean_targets = 1 / (mean / self._slot_targets).sum()  # of the slots as they are drawn
        self.slots = 1 if budget is None else max(least, round(budget / mean_targets))
        sizes = [member.updates_per_epoch if budget is None else max(1, member.targets) for member in self.members]
        passes = mean / np.array(sizes)  # over a source, a target or an update read
        of_source, passes_of_source = (each.reshape(sources, -1).sum(axis=1) for each in (mean, passes))
        is_read = of_source > 0
        once = float((of_source[is_read] / passes_of_source[is_read]).sum())  # targets that read each source once
        self.updates_per_epoch = max(1, round(once / (self.slots * mean_targets)))
        self._cached_block: tuple[int, NDArray[np.int64]] | None = None
        self._filled_before_block = np.zeros((1, len(members)), dtype=np.int64)  # (blocks, members)

    def __len__(self) -> int:
        each = len(self.members) // self.sources  # several objectives may read one source
        sizes = [len(member) for member in self.members]
        return sum(max(sizes[first : first + each]) for first in range(0, len(sizes), each))

    def slot_members(self, update: int) -> NDArray[np.int64]:
        """Return the index of the member that fills each slot of an update, (slots,)."""
        members: NDArray[np.int64] = self._block(update // _BLOCK)[update % _BLOCK]
        return members

    def _block(self, number: int) -> NDArray[np.int64]:
        """Return the members of the slots of a block of updates, (updates, slots); the last block is cached."""
        if self._cached_block is None or self._cached_block[0] != number:
            drawn = hashes(_BLOCK * self.slots, self.seed, number, _MEMBER_KEY).reshape(_BLOCK, self.slots)
            rates = self.shares.at(np.arange(number * _BLOCK, (number + 1) * _BLOCK)) / self._slot_targets
            rates /= rates.sum(axis=1, keepdims=True)  # how often each member is drawn
            cumulative = np.cumsum(rates, axis=1)[:, np.newaxis]  # (updates, 1, members)
            members = (cumulative <= uniform(drawn)[..., np.newaxis]).sum(axis=2)  # (updates, slots)
            self._cached_block = number, np.minimum(members, len(self.members) - 1).astype(np.int64)
        return self._cached_block[1]

    def expected(self, steps: int) -> list[tuple[float, float]]:
        """Return for each member its share of the target tokens and its epochs in a run of `steps` updates."""
        rates = self.shares.mean(steps) / self._slot_targets
        slots = rates / rates.sum() * self.slots * steps  # slots of the run that each fills
        epochs = slots * self._updates_per_slot / np.array([member.updates_per_epoch for member in self.members])
        tokens = slots * self._slot_targets
        return list(zip((tokens / tokens.sum()).tolist(), epochs.tolist()))

    def parts(self, update: int, micro_batches: int = 1, ours: Iterator[bool] = EVERY) -> Iterator[Part]:
        """Yield the parts of an update; updates are counted from 0 over all epochs."""
        # the number of slots that each member has filled before an update, (members,)
        block, index = divmod(update, _BLOCK)
        filled = self._filled_before_block
        while len(filled) <= block:  # count the blocks up to this one, once
            filled = np.concatenate([filled, filled[-1:] + _counts(self._block(len(filled) - 1), len(self.members))])
        self._filled_before_block = filled
        before: NDArray[np.int64] = filled[block] + _counts(self._block(block)[:index], len(self.members))
        member_updates = (before * self._updates_per_slot).tolist()  # where each member stands
        for member in self.slot_members(update).tolist():
            for _ in range(self._updates_per_slot[member]):
                yield from self.members[member].parts(member_updates[member], micro_batches, ours)
                member_updates[member] += 1

    def resize(self, size: PartSize) -> None:
        """As `Batches.resize`, within the slots of an update, which stay as they are."""
        for member in self.members:
            member.resize(size)

    def in_order(self, budget: int) -> Iterator[Batch]:
        """Yield every example of every member once."""
        for member in self.members:
            yield from member.in_order(budget)


def _counts(slot_members: NDArray[np.int64], members: int) -> NDArray[np.int64]:
    """Return how often each member occurs, (members,)."""
    return np.bincount(slot_members.reshape(-1), minlength=members).astype(np.int64)
