"""What training asks of the processes that share it, and the case of one process, which shares with nobody."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from torch import Tensor

from atento.data.batches import EVERY
from atento.training.replica.gradient_sum import GradientSum, RunningSum, TreeSum

T = TypeVar("T")


class Replica(Protocol):
    """One of the processes that train one network together, each with a copy of it.

    All processes take the same steps in the same order. The first one also writes the run folder.

    Attributes:
        main: whether this is the first process, the one that writes.
        size: number of processes.
    """

    main: bool
    size: int

    def ours(self) -> Iterator[bool]:
        """Return for each part of an update, in order, whether this process computes it."""

    def numbers(self, count: int) -> list[int]:
        """Return the numbers of the first `count` parts of an update that this process computes."""

    def check(self, step: int, parameters: Sequence[Tensor]) -> None:
        """Compare the weights of all processes, now and then.

        Raises:
            TrainingError: they differ.
        """

    def exchange(self, values: list[T]) -> list[T]:
        """Give the plain values of the parts of this process, and get those of all parts of the update, in order."""

    def together(self, compute: Callable[[], list[T]]) -> list[T]:
        """Compute the values of the parts of this process, and get those of all parts.

        Raises:
            An exception on all processes, if `compute` raises one on any.
        """

    def gradient_sum(self, parameters: Sequence[Tensor], parts: int) -> GradientSum:
        """Return a sum over all parts of an update, of which there are `parts` on all processes together."""

    def highest(self, value: int) -> int:
        """Return the highest of the values of all processes."""

    def main_does(self, work: Callable[[], T]) -> T:
        """Let the first process alone do something, and return its result, which is plain data, on all of them.

        Raises:
            An exception on all processes, if `work` raises one.
        """

    def main_first(self, work: Callable[[], T]) -> T:
        """Do something on the first process, then on the others.

        Raises:
            An exception on all processes, if `work` raises one on any.
        """


class Local:
    """The only process.

    Args:
        exact: sum gradients as any number of processes does in exact mode.
    """

    main, size = True, 1

    def __init__(self, exact: bool = False) -> None:
        self.exact = exact

    def ours(self) -> Iterator[bool]:
        """Every part."""
        return EVERY

    def numbers(self, count: int) -> list[int]:
        """All numbers."""
        return list(range(count))

    def check(self, step: int, parameters: Sequence[Tensor]) -> None:
        """There is nothing to compare with."""

    def exchange(self, values: list[T]) -> list[T]:
        """The values of this process are all."""
        return values

    def together(self, compute: Callable[[], list[T]]) -> list[T]:
        """Compute all values."""
        return compute()

    def gradient_sum(self, parameters: Sequence[Tensor], parts: int) -> GradientSum:
        """Return a sum in the order of the parts, or in exact mode in a tree over their numbers."""
        return TreeSum(parameters, parts) if self.exact else RunningSum(parameters)

    def highest(self, value: int) -> int:
        """Return the value."""
        return value

    def main_does(self, work: Callable[[], T]) -> T:
        """Do it."""
        return work()

    def main_first(self, work: Callable[[], T]) -> T:
        """Do it."""
        return work()
