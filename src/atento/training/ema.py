"""Exponential moving average of the trained weights, which validation and checkpoints use."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

_SUFFIX = ".raw"  # of the weights that are trained, beside the optimizer's state in a checkpoint


class MovingAverage:
    """The moving average of weights: average ← d · average + (1 - d) · weights, d = min(decay, (1 + t) / (10 + t)).

    The first averages forget the random start quickly: t is the number of the update, as in TensorFlow's
    `ExponentialMovingAverage`. Every average is a function of the updates, so that it resumes exactly.

    Args:
        parameters: the trained weights by name.
        decay: the decay rate, 0 to below 1.
    """

    def __init__(self, parameters: Mapping[str, Tensor], decay: float) -> None:
        self.parameters, self.decay = dict(parameters), decay
        self.averages = {name: value.detach().clone() for name, value in parameters.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after an update, counted from 1."""
        decay = min(self.decay, (1 + step) / (10 + step))
        averages, weights = list(self.averages.values()), [value.detach() for value in self.parameters.values()]
        torch._foreach_lerp_(averages, weights, 1 - decay)  # a + (1 - d) · (w - a)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the network have the average as its weights; afterwards it has its own again."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchange(self) -> None:
        for name, parameter in self.parameters.items():
            parameter.data, self.averages[name] = self.averages[name], parameter.data  # they change places

    def raw(self) -> dict[str, Tensor]:
        """Return the weights that are trained under names of their own, for a checkpoint."""
        return {f"{name}{_SUFFIX}": value for name, value in self.parameters.items()}

    def start(self) -> None:
        """Begin at the present weights."""
        for name, value in self.parameters.items():
            self.averages[name] = value.detach().clone()


def divide(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the trained weights of a checkpoint by name, empty without an average, and the optimizer's state."""
    raw = {name.removesuffix(_SUFFIX): value for name, value in tensors.items() if name.endswith(_SUFFIX)}
    return raw, {name: value for name, value in tensors.items() if not name.endswith(_SUFFIX)}
