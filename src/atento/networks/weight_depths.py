"""How high each weight of a network stands: the embeddings lowest, then the layers from the bottom, then the head."""

import re
from dataclasses import dataclass

from atento.networks.interface import Network

_LAYER = re.compile(r"(?P<stack>.*?)\b(?:blocks|layers|forward_layers|backward_layers)\.(?P<layer>\d+)\.")
_SCHEME = re.compile(r"(?P<stack>\w+)\.positions\.(?:sparse|added)\.(?P<layer>\d+)\.")
_HEAD = ("heads.", "pooler.", "mix.", "projections.")  # what reads the layers


@dataclass(frozen=True)
class LayerDepths:
    """The level of each weight by its name: 0 for embeddings and what all layers share, 1 for the lowest layer.

    A decoder that reads a source stands on its encoder, so its first layer is one above the encoder's last. `layers` is
    how many there are; the head has level `layers` + 1, and a norm behind the last layer belongs to that layer.
    """

    layers: int
    of: dict[str, int]


def layer_depths(network: Network, *, reads_only: bool = False) -> LayerDepths:
    """The levels of a network's weights; a network without layers has embeddings and a head alone.

    Args:
        reads_only: the head stands on the encoder, so nothing is written: the decoder's weights have level -1, as the
            frozen ones of `network.features` always do.
    """
    names = [name for name, _ in network.named_parameters()]
    below = 0  # layers under those of the decoder
    if network.config.architecture in ("encoder-decoder", "recurrent-seq2seq"):
        below = 1 + max(_layer(name) for name in names if name.startswith("encoder."))  # layers of the encoder
    unused = {name for name in names if below and reads_only and name.startswith("decoder.")}
    unused |= {name for name in names if name.startswith("source_features.encoder.")}
    layers = max(
        (_above(name, below) + _layer(name) + 1 for name in names if _layer(name) >= 0 and name not in unused),
        default=0,
    )
    return LayerDepths(layers, {name: -1 if name in unused else _level(name, layers, below) for name in names})


def _layer(name: str) -> int:
    """The number of the layer that a weight belongs to, in its own stack; -1: to none."""
    match = _LAYER.match(name) or _SCHEME.match(name)  # a weight of a block, or a scheme of one layer
    return int(match["layer"]) if match else -1


def _above(name: str, below: int) -> int:
    """How many layers stand under the stack of a weight."""
    return below if name.startswith("decoder.") else 0


def _level(name: str, layers: int, below: int) -> int:
    if name.startswith(_HEAD):
        return layers + 1
    if _layer(name) >= 0:
        return _above(name, below) + _layer(name) + 1
    if name.startswith(("stack.norm.", "encoder.norm.", "decoder.norm.")):  # belongs to the last layer of its stack
        return below if name.startswith("encoder.") else layers
    if name.startswith("stack.convolution."):  # read by the second layer
        return 1
    if name.startswith("decoder.bridge."):  # the state that the decoder begins with
        return below + 1
    return layers if name.startswith("decoder.") and "positions." not in name else 0
