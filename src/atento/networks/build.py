"""From a configuration to a network: one table of architectures."""

from collections.abc import Callable

from torch import nn

from atento.config.network import NetworkConfig
from atento.errors import ModelError, nearest
from atento.networks.encoder_decoder import EncoderDecoder

ARCHITECTURES: dict[str, Callable[[NetworkConfig], EncoderDecoder]] = {"encoder-decoder": EncoderDecoder}


def build_network(config: NetworkConfig) -> EncoderDecoder:
    """A freshly initialised network; weights come from PyTorch's global generator, so seed that first."""
    if config.architecture not in ARCHITECTURES:
        raise ModelError(
            f"unknown architecture {config.architecture!r}{nearest(config.architecture, list(ARCHITECTURES))}"
        )
    return ARCHITECTURES[config.architecture](config)


def parameter_count(network: nn.Module) -> int:
    """How many numbers the network learns; shared ones count once."""
    return sum(parameter.numel() for parameter in network.parameters())
