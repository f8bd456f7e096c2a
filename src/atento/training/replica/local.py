"""One process that trains a network alone; those that share the training of one override it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from atento.data.batches.batch import EVERY
from atento.networks.interface import Network
from atento.networks.vocabulary import add_wide
from atento.storage.writer import Writers
from atento.training.ema import EMA
from atento.training.replica.gradient_sum import DeterministicAccumulator, Gradients, buckets

T = TypeVar("T")
Tensors = Mapping[str, Tensor]
_CONVERTED = 1 << 26  # bytes of gradients that are held in full precision beside their sum


class Weights:
    """The weights that a process trains: here all; in bfloat16, passes run on a copy of the network.

    Args:
        network: the original network.
        dtype: data type to compute in.
    """

    # whether weights, gradients and optimizer state are sharded over processes. Then all processes compute a part at
    # the same time, and none of them two
    sharded = False

    def __init__(self, network: Network, dtype: torch.dtype) -> None:
        self.original = network
        # the network that computes losses and gradients
        self.network = network if dtype == torch.float32 else deepcopy(network).to(dtype)
        # what the optimizer changes, by the names of the weights: each weight, or this process's shard of it
        self.parameters: dict[str, Tensor] = dict(network.named_parameters())
        self._computed: list[Tensor] = list(
            self.network.parameters()
        )  # found once: modules are walked in a tenth of a small update

    @torch.no_grad()
    def copy(self) -> None:
        """Copy the weights to the network that computes in bfloat16; in float32 it is the same network."""
        if self.network is not self.original:
            torch._foreach_copy_(self._computed, list(self.parameters.values()))

    def gradients(self, loss: Tensor) -> list[Tensor | None]:
        """Return the gradient of a loss for each parameter, in the data type that it was computed in.

        None where there is none; empty if the weights are sharded.
        """
        trainable = [parameter for parameter in self._computed if parameter.requires_grad]
        # autograd.grad returns gradients instead of adding to `.grad`, so that threads can share the network
        trainable_gradients = iter(torch.autograd.grad(loss, trainable, allow_unused=True))
        return [next(trainable_gradients) if parameter.requires_grad else None for parameter in self._computed]

    def norm(self, gradients: Sequence[Tensor]) -> float:
        """Return the norm of the gradients of all parameters together."""
        return float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(gradients)))))

    def evaluated(self, average: EMA | None) -> AbstractContextManager[None]:
        """Let the original network have all weights meanwhile, or their moving average if there is one."""
        return nullcontext() if average is None else average.in_place()

    def own(self, tensors: Tensors) -> dict[str, Tensor]:
        """Return this process's shards of tensors of the sizes of weights; or the tensors, if weights are whole."""
        return dict(tensors)

    def load(self, weights: Tensors) -> None:
        """Load the whole weights and buffers of the network."""
        self.original.load_state_dict(weights)

    def release(self) -> None:
        """Let the original network have all weights again, at the end of training, and free the copy that computes."""
        self.network = self.original
        self._computed.clear()


class GradientSum(Protocol):
    """Adds the gradients of the parts of an update, on one process or over several."""

    def add(self, number: int, gradients: Gradients) -> None:
        """Take in the gradients of a part, by its number in the update."""

    def finish(self) -> None:
        """Set `.grad` of each parameter to the sum over all parts of the update; None where no part has a gradient."""


class GradientAccumulator:
    """Adds gradients to `.grad` as they come, in the order of the parts.

    Args:
        parameters: the parameters, whose `.grad` is None.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = parameters

    def add(self, number: int, gradients: Gradients) -> None:
        """Take in the gradients of a part."""
        given = [(weight, gradient) for weight, gradient in zip(self.parameters, gradients) if gradient is not None]
        further = [(weight.grad, gradient) for weight, gradient in given if weight.grad is not None]
        first = [(weight, gradient) for weight, gradient in given if weight.grad is None]
        # autograd may return one tensor twice, so the sums are copies
        for (weight, _), copied in zip(first, _converted(first)):
            weight.grad = copied
        if further and further[0][0].is_cuda:  # one kernel adds many gradients, but only of the type of the sums
            for group in buckets([total for total, _ in further], _CONVERTED):
                part, further = further[: len(group)], further[len(group) :]  # as many as the group has
                torch._foreach_add_(group, _converted(part))
        for total, gradient in further:
            add_wide(total, gradient)

    def finish(self) -> None:
        """`.grad` has the sum already; the gradient of a matrix may be a transposed view, which no optimizer takes."""
        for weight in self.parameters:
            weight.grad = None if weight.grad is None else weight.grad.contiguous()


def _converted(pairs: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """Copies of the second tensors in the data type of the first."""
    copies = [torch.empty_like(gradient, dtype=like.dtype) for like, gradient in pairs]
    if copies:
        torch._foreach_copy_(copies, [gradient for _, gradient in pairs])
    return copies


class Replica:
    """A process that trains a network alone; `Processes` is one of several, with a copy of it or a shard of a copy.

    All processes take the same steps in the same order. The first one also writes the run folder. Where a method does
    some work, an exception on any process is raised on all.

    Args:
        exact: sum gradients as any number of processes does in exact mode.
    """

    # whether this is the first process, the one that writes; the number of this process; how many there are
    main, rank, size = True, 0, 1
    # the processes as they save sharded weights together; None: the first one saves whole weights
    writers: Writers | None = None

    def __init__(self, exact: bool = False) -> None:
        self.exact = exact

    def ours(self) -> Iterator[bool]:
        """Return for each part of an update, in order, whether this process computes it."""
        return EVERY

    def lacks_part(self, own: int, total: int) -> bool:
        """Return whether other processes compute a part of an update when this one has computed its own.

        It counts where weights are sharded: then all of them compute the same number of parts.
        """
        return False

    def weights(self, network: Network, dtype: torch.dtype) -> Weights:
        """Return the weights of a network as this process trains them, to compute in that data type."""
        return Weights(network, dtype)

    def check(self, step: int, parameters: Sequence[Tensor]) -> None:
        """Compare the weights of all processes, now and then. Raises TrainingError: they differ."""

    def exchange(self, values: list[T]) -> list[T]:
        """Give the plain values of the parts of this process, and get those of all parts of the update, in order."""
        return values

    def together(self, compute: Callable[[], list[T]]) -> list[T]:
        """Compute the values of the parts of this process, and get those of all parts."""
        return compute()

    def gradient_sum(self, weights: Weights, parts: int) -> GradientSum:
        """Return a sum over all parts of an update, of which there are `parts` on all processes together.

        It adds in the order of the parts, or in exact mode in a tree over their numbers.
        """
        parameters = list(weights.parameters.values())
        return DeterministicAccumulator(parameters, parts) if self.exact else GradientAccumulator(parameters)

    def slow_process(self) -> str | None:
        """Return a sentence about a process that computes much slower than the others, once; None: there is none."""
        return None

    def highest(self, value: int) -> int:
        """Return the highest of the values of all processes."""
        return value

    def on_main_process(self, work: Callable[[], T]) -> T:
        """Let the first process alone do something, and return its result, which is plain data, on all of them."""
        return work()

    def gather(self, value: T) -> list[T]:
        """Give plain data to all processes and get what each gave, by number; in work of `on_all_processes`."""
        return [value]

    def on_all_processes(self, work: Callable[[], T]) -> T:
        """Do something on all processes at the same time, and return the result of this one."""
        return work()

    def main_process_first(self, work: Callable[[], T]) -> T:
        """Do something on the first process, then on the others at the same time."""
        return work()
