"""What training asks of the processes that share it, and the case of one process, which shares with nobody."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from atento.data.batches import EVERY
from atento.networks.network import Network
from atento.storage.shards import Writers
from atento.training.replica.gradient_sum import GradientSum, RunningSum, TreeSum
from atento.training.replica.weights import Weights, WholeWeights

T = TypeVar("T")


class Replica(Protocol):
    """One of the processes that train one network together, each with a copy of it or a shard of a copy.

    All processes take the same steps in the same order. The first one also writes the run folder.

    Attributes:
        main: whether this is the first process, the one that writes.
        rank: number of this process.
        size: number of processes.
        writers: the processes as they save divided weights together; None: the first one saves whole weights.
    """

    main: bool
    rank: int
    size: int
    writers: Writers | None

    def ours(self) -> Iterator[bool]:
        """Return for each part of an update, in order, whether this process computes it."""

    def numbers(self, count: int) -> list[int]:
        """Return the numbers of the first `count` parts of an update that this process computes."""

    def lacks_part(self, own: int, total: int) -> bool:
        """Return whether other processes compute a part of an update when this one has computed its own.

        It counts where weights are divided: then all of them compute the same number of parts.
        """

    def weights(self, network: Network, dtype: torch.dtype) -> Weights:
        """Return the weights of a network as this process trains them, to compute in that data type."""

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

    def gradient_sum(self, weights: Weights, parts: int) -> GradientSum:
        """Return a sum over all parts of an update, of which there are `parts` on all processes together."""

    def highest(self, value: int) -> int:
        """Return the highest of the values of all processes."""

    def main_does(self, work: Callable[[], T]) -> T:
        """Let the first process alone do something, and return its result, which is plain data, on all of them.

        Raises:
            An exception on all processes, if `work` raises one.
        """

    def gather(self, value: T) -> list[T]:
        """Give plain data to all processes, and get what each has given, by its number; in work of `all_do`."""

    def all_do(self, work: Callable[[], T]) -> T:
        """Do something on all processes at the same time, and return the result of this one.

        Raises:
            An exception on all processes, if `work` raises one on any.
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

    main, rank, size = True, 0, 1
    writers: Writers | None = None

    def __init__(self, exact: bool = False) -> None:
        self.exact = exact

    def ours(self) -> Iterator[bool]:
        """Every part."""
        return EVERY

    def numbers(self, count: int) -> list[int]:
        """All numbers."""
        return list(range(count))

    def lacks_part(self, own: int, total: int) -> bool:
        """There are no other processes."""
        return False

    def weights(self, network: Network, dtype: torch.dtype) -> WholeWeights:
        """All weights."""
        return WholeWeights(network, dtype)

    def check(self, step: int, parameters: Sequence[Tensor]) -> None:
        """There is nothing to compare with."""

    def exchange(self, values: list[T]) -> list[T]:
        """The values of this process are all."""
        return values

    def together(self, compute: Callable[[], list[T]]) -> list[T]:
        """Compute all values."""
        return compute()

    def gradient_sum(self, weights: Weights, parts: int) -> GradientSum:
        """Return a sum in the order of the parts, or in exact mode in a tree over their numbers."""
        parameters = list(weights.parameters.values())
        return TreeSum(parameters, parts) if self.exact else RunningSum(parameters)

    def highest(self, value: int) -> int:
        """Return the value."""
        return value

    def main_does(self, work: Callable[[], T]) -> T:
        """Do it."""
        return work()

    def gather(self, value: T) -> list[T]:
        """The value of this process is all."""
        return [value]

    def all_do(self, work: Callable[[], T]) -> T:
        """Do it."""
        return work()

    def main_first(self, work: Callable[[], T]) -> T:
        """Do it."""
        return work()
