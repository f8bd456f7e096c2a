"""A mixture of several kinds of batches in one run: which of them gives a part is a function of the seed alone."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from atento.data.batches import Batch, Batches, Part, part_count
from atento.data.shuffle import hashes

_MEMBER = 21  # what a hash is for
_FEWEST = 4  # slots of an update, so that shares hold within few updates
_BLOCK = 4096  # updates whose members are drawn together


class Mixture:
    """An update has some slots; each is an update of one member, with as large a part of the budget.

    Which member fills slot k of update u is drawn by shares from (seed, u, k), so that the place in the data is one
    integer here too: a member's own number is how many slots it has filled before.
    """

    def __init__(self, members: Sequence[tuple[Callable[[int], Batches], float]], *, budget: int, seed: int) -> None:
        """`members` make the batches for a budget of real targets, each with its share."""
        self.slots = max(_FEWEST, part_count(budget))
        self.members = [make(max(1, budget // self.slots)) for make, _ in members]
        shares = np.array([share for _, share in members], dtype=np.float64)
        self.bounds = np.cumsum(shares / shares.sum())
        self.seed = seed
        whole = [member.updates_per_epoch / part for member, part in zip(self.members, shares / shares.sum())]
        self.updates_per_epoch = max(1, round(min(whole) / self.slots))
        self._last: tuple[int, NDArray[np.int64]] | None = None
        self._filled = np.zeros((1, len(members)), dtype=np.int64)  # slots before each block of updates

    def __len__(self) -> int:
        return max(len(member) for member in self.members)

    def chosen(self, update: int) -> NDArray[np.int64]:
        """Which member fills each slot of an update, (slots,)."""
        chosen: NDArray[np.int64] = self._block(update // _BLOCK)[update % _BLOCK]
        return chosen

    def _block(self, number: int) -> NDArray[np.int64]:
        """Which member fills each slot of a block of updates, (updates, slots); the last block is kept."""
        if self._last is None or self._last[0] != number:
            drawn = hashes(_BLOCK * self.slots, self.seed, number, _MEMBER).reshape(_BLOCK, self.slots)
            uniform = (drawn >> np.uint64(11)).astype(np.float64) * 2.0**-53
            members = np.searchsorted(self.bounds, uniform, side="right")
            self._last = number, np.minimum(members, len(self.members) - 1).astype(np.int64)
        return self._last[1]

    def _before(self, update: int) -> NDArray[np.int64]:
        """How many slots each member has filled before an update."""
        block, rest = divmod(update, _BLOCK)
        while len(self._filled) <= block:
            counts = _counts(self._block(len(self._filled) - 1), len(self.members))
            self._filled = np.concatenate([self._filled, self._filled[-1:] + counts])
        before: NDArray[np.int64] = self._filled[block] + _counts(self._block(block)[:rest], len(self.members))
        return before

    def parts(self, update: int, micro_batches: int = 1) -> Iterator[Part]:
        """Yield the parts of an update, counted from 0 over all epochs."""
        numbers = self._before(update).tolist()
        for member in self.chosen(update).tolist():
            yield from self.members[member].parts(numbers[member], micro_batches)
            numbers[member] += 1

    def in_order(self, budget: int) -> Iterator[Batch]:
        """Yield every example of every member once."""
        for member in self.members:
            yield from member.in_order(budget)


def _counts(chosen: NDArray[np.int64], members: int) -> NDArray[np.int64]:
    return np.bincount(chosen.reshape(-1), minlength=members).astype(np.int64)
