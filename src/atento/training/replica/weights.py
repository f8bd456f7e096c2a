"""How a process holds the weights that it trains: a copy of all of them, or in `divided.py` a shard of each."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from typing import Protocol

import torch
from torch import Tensor

from atento.networks.network import Network
from atento.training.ema import MovingAverage

Tensors = Mapping[str, Tensor]


class Weights(Protocol):
    """The weights that a process trains.

    Attributes:
        network: the network that computes losses and gradients.
        parameters: what the optimizer changes, by the names of the weights: each weight, or this process's shard of it.
        divided: whether weights, gradients and optimizer state are divided among processes. Then all processes compute
            a part at the same time, and none of them two.
    """

    network: Network
    parameters: dict[str, Tensor]
    divided: bool

    def copy(self) -> None:
        """Copy the weights to a network that computes in another data type."""

    def gradients(self, loss: Tensor) -> list[Tensor | None]:
        """Return the gradient of a loss for each parameter, None where there is none; empty if they are divided."""

    def norm(self, gradients: Sequence[Tensor]) -> float:
        """Return the norm of the gradients of all parameters together."""

    def evaluated(self, average: MovingAverage | None) -> AbstractContextManager[None]:
        """Let the original network have all weights meanwhile, or their moving average if there is one."""

    def own(self, tensors: Tensors) -> dict[str, Tensor]:
        """Return this process's shards of tensors of the sizes of weights; or the tensors, if weights are whole."""

    def load(self, weights: Tensors) -> None:
        """Load the whole weights and buffers of a network."""

    def release(self) -> None:
        """Let the original network have all weights again, at the end of training."""


class WholeWeights:
    """All weights of a network; in bfloat16, forward and backward passes run on a copy of the network.

    Args:
        network: the network to train.
        dtype: data type to compute in.
    """

    divided = False

    def __init__(self, network: Network, dtype: torch.dtype) -> None:
        self.original = network
        self.network = network if dtype == torch.float32 else deepcopy(network).to(dtype)
        self.parameters: dict[str, Tensor] = dict(network.named_parameters())

    @torch.no_grad()
    def copy(self) -> None:
        """Copy the weights to the network that computes in bfloat16; in float32 it is the same network."""
        if self.network is not self.original:
            torch._foreach_copy_(list(self.network.parameters()), list(self.parameters.values()))

    def gradients(self, loss: Tensor) -> list[Tensor | None]:
        """Return the gradient for each parameter, in the data type that it was computed in."""
        parameters = list(self.network.parameters())
        trainable = [parameter for parameter in parameters if parameter.requires_grad]
        # autograd.grad returns gradients instead of adding to `.grad`, so that threads can share the network
        trainable_gradients = iter(torch.autograd.grad(loss, trainable, allow_unused=True))
        return [next(trainable_gradients) if parameter.requires_grad else None for parameter in parameters]

    def norm(self, gradients: Sequence[Tensor]) -> float:
        """Return the norm of all gradients together."""
        return float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(gradients)))))

    def evaluated(self, average: MovingAverage | None) -> AbstractContextManager[None]:
        """The network has its weights already; with a moving average, it has the average meanwhile."""
        return nullcontext() if average is None else average.in_place()

    def own(self, tensors: Tensors) -> dict[str, Tensor]:
        """Return the tensors."""
        return dict(tensors)

    def load(self, weights: Tensors) -> None:
        """Load the weights and buffers of the network."""
        self.original.load_state_dict(weights)

    def release(self) -> None:
        """The network has its weights already."""
