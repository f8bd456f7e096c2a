"""Exponential moving average of the trained weights, and the noise of gradients."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor


class GradientNoiseScale:
    """The gradient noise scale S / |G|², the batch in targets at which noise and gradient are equally large.

    For gradients that are means over n targets, E|g|² = |G|² + S / n. The parts of an update and the whole update give
    two such equations (McCandlish et al. 2018, A.1). Their sides are averaged over a log interval.

    Attributes:
        sums: summed sides of the equations since the last train event; plain data, for a checkpoint.
    """

    def __init__(self) -> None:
        self.sums: dict[str, float] = {}
        self.squares: list[tuple[float, int]] = []  # |gradient|² and targets of each part of the update

    def begin(self) -> None:
        """Begin an update."""
        self.squares = []

    def part(self, gradients: Sequence[Tensor | None], factor: float, targets: int) -> None:
        """Take in a part: `factor` times its gradients is their mean over its targets."""
        norms = torch._foreach_norm([gradient for gradient in gradients if gradient is not None], dtype=torch.float32)
        norm = float(torch.linalg.vector_norm(torch.stack(norms)))  # of all parameters together
        self.squares.append(((norm * factor) ** 2, targets))  # |g|² of the mean over the part's targets

    def update(self, norm: float) -> None:
        """Take in the norm of the gradient of the whole update, before clipping; one part alone says nothing."""
        parts = [(square, targets) for square, targets in self.squares if targets]  # parts without a target say nothing
        if len(parts) < 2:
            return
        terms = {
            "updates": 1.0,
            "small": sum(square for square, _ in parts) / len(parts),  # |g|² of a part, the mean over parts
            "small_inverse": sum(1 / targets for _, targets in parts) / len(parts),  # 1 / n of a part
            "large": norm**2,  # |g|² of the whole update
            "large_inverse": 1 / sum(targets for _, targets in parts),  # 1 / n of the whole update
        }
        self.sums = {name: self.sums.get(name, 0.0) + value for name, value in terms.items()}

    def scale(self) -> float | None:
        """Return the noise scale in targets, and begin anew; None: too few parts, or a gradient lost in noise."""
        sums, self.sums = self.sums, {}
        if not sums:
            return None
        noise = (sums["small"] - sums["large"]) / (sums["small_inverse"] - sums["large_inverse"])
        gradient = (sums["large"] - noise * sums["large_inverse"]) / sums["updates"]  # |G|²
        return noise / gradient if gradient > 0 and noise > 0 else None


_SUFFIX = ".raw"  # of the weights that are trained, beside the optimizer's state in a checkpoint


class EMA:
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
