"""Which weights are trained, from which update on, and at what share of the learning rate."""

from collections.abc import Mapping
from dataclasses import dataclass

from atento.networks.interface import Network


@dataclass(frozen=True)
class TrainedWeights:
    """The weights that a run trains.

    Attributes:
        begins: name of each trained weight -> the first update (from 1) that trains it.
        scales: name of each trained weight -> the factor of its learning rate.
    """

    begins: Mapping[str, int]
    scales: Mapping[str, float]

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
