"""What a run watches besides its loss: gradient noise, the size of updates by layer, heads without targets."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from atento.errors import counted

_LAYER = re.compile(r".*?\b(?:blocks|layers|forward_layers|backward_layers)\.\d+(?=\.)")


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
        norm = float(torch.linalg.vector_norm(torch.stack(norms)))
        self.squares.append(((norm * factor) ** 2, targets))

    def update(self, norm: float) -> None:
        """Take in the norm of the gradient of the whole update, before clipping; one part alone says nothing."""
        parts = [(square, targets) for square, targets in self.squares if targets]
        if len(parts) < 2:
            return
        terms = {
            "updates": 1.0,
            "small": sum(square for square, _ in parts) / len(parts),
            "small_inverse": sum(1 / targets for _, targets in parts) / len(parts),
            "large": norm**2,
            "large_inverse": 1 / sum(targets for _, targets in parts),
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


class TargetCounts:
    """Counts the targets of each head since a command began, and tells of heads that have none: they learn nothing.

    Args:
        updates_per_epoch: after so many updates every example was seen.
    """

    def __init__(self, updates_per_epoch: int) -> None:
        self._per_epoch = updates_per_epoch
        self._targets, self._updates = Counter[str](), Counter[str]()
        self._told: set[str] = set()

    def add(self, targets: Mapping[str, int]) -> None:
        """Add the targets of an update, by head."""
        self._updates.update(targets.keys())
        self._targets.update(targets)

    def warnings(self, *, is_whole: bool) -> list[str]:
        """Return a sentence for each head without a target in an epoch, or in a whole run; each is told once."""
        empty = [
            head
            for head, updates in self._updates.items()
            if not self._targets[head] and head not in self._told and (is_whole or updates >= self._per_epoch)
        ]
        self._told.update(empty)
        return [
            f"warning: the head {head!r} has had no target in {counted(self._updates[head], 'update')} and learns "
            "nothing: `atento data peek` shows the labels"
            for head in empty
        ]


def update_ratios(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> dict[str, float]:
    """Return |change| / |weights before| of each layer, and of each other part of the network by the first of its name.

    About 1e-3 is usual; a layer far below learns little, one far above is unstable.
    """
    squares: dict[str, tuple[float, float]] = {}
    for name, old in before.items():
        match = _LAYER.match(name)
        layer = match[0] if match else name.partition(".")[0]  # what is in no layer goes by the first part of its name
        change, size = squares.get(layer, (0.0, 0.0))
        squares[layer] = (
            change + float((after[name].detach() - old).double().square().sum()),
            size + float(old.double().square().sum()),
        )
    return {layer: (change / size) ** 0.5 for layer, (change, size) in squares.items() if size > 0}
