"""The noise of gradients, from the parts of an update."""

from collections.abc import Sequence

import torch
from torch import Tensor


class GradientNoise:
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
