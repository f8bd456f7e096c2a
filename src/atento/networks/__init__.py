"""Networks: the block, the stack and the families that are configurations of it."""

from atento.config import network as presets
from atento.networks.build import build_network, parameter_count
from atento.networks.encoder_decoder import EncoderDecoder
from atento.networks.output import Output

__all__ = ["EncoderDecoder", "Output", "build_network", "parameter_count", "presets"]
