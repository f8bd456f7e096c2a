"""Which weights are trained, from which update on, at what share of the learning rate; the groups of AdamW."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from atento.networks.network import Network


@dataclass(frozen=True)
class TrainedWeights:
    """The weights that a run trains.

    Attributes:
        begins: name of each trained weight -> the first update (from 1) that trains it.
        scales: name of each trained weight -> the factor of its learning rate.
        stages: the first update of each stage, with the lowest level trained in it, for messages.
    """

    begins: Mapping[str, int]
    scales: Mapping[str, float]
    stages: tuple[tuple[int, int], ...] = ()

    def names(self, step: int) -> frozenset[str]:
        """The weights that the update of that number trains."""
        return frozenset(name for name, begin in self.begins.items() if begin <= step)

    def stage(self, step: int) -> int:
        """The number of the stage that an update belongs to; it changes when weights are unfrozen."""
        return sum(begin <= step for begin in set(self.begins.values()))


def all_weights(network: Network) -> TrainedWeights:
    """Every weight that needs a gradient, from the first update, at the whole learning rate."""
    names = [name for name, parameter in network.named_parameters() if parameter.requires_grad]
    return TrainedWeights(dict.fromkeys(names, 1), dict.fromkeys(names, 1.0))


def parameter_groups(parameters: Mapping[str, Tensor], trained: TrainedWeights) -> list[dict[str, object]]:
    """The groups of AdamW: matrices with weight decay, biases and norms without; one pair for each factor of the rate.

    Each group has `scale`, the factor of its learning rate.
    """
    return [
        group
        for scale in sorted(set(trained.scales.values()), reverse=True)
        for group in _pair(parameters, trained, scale)
    ]


def _pair(parameters: Mapping[str, Tensor], trained: TrainedWeights, scale: float) -> Iterator[dict[str, object]]:
    ours = [parameter for name, parameter in parameters.items() if trained.scales.get(name) == scale]
    matrices = [parameter for parameter in ours if parameter.dim() > 1]
    vectors = [parameter for parameter in ours if parameter.dim() <= 1]
    if matrices:
        yield {"params": matrices, "scale": scale}
    if vectors:
        yield {"params": vectors, "scale": scale, "weight_decay": 0.0}
