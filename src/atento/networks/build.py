"""Builds a network from a configuration, with one table of architectures."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from atento.base.errors import ModelError
from atento.config.sections.network import NetworkConfig
from atento.networks.interface import Network
from atento.networks.recurrent.elmo import ELMo
from atento.networks.recurrent.language_model import RecurrentLM
from atento.networks.recurrent.seq2seq import RecurrentSeq2Seq
from atento.networks.stack.encoder import Encoder
from atento.networks.stack.stack_decoders import Decoder, EncoderDecoder
from atento.networks.words.cbow import CBOW

Seq2Seq = EncoderDecoder | RecurrentSeq2Seq  # encode a source and decode a target; with the same signature
ARCHITECTURES: dict[str, Callable[[NetworkConfig], Network]] = {
    "encoder-decoder": EncoderDecoder,
    "encoder": Encoder,
    "decoder": Decoder,
    "recurrent-seq2seq": RecurrentSeq2Seq,
    "recurrent-lm": RecurrentLM,
    "elmo": ELMo,
    "cbow": CBOW,
}
_turn = threading.RLock()  # held while numbers are drawn
if hasattr(os, "register_at_fork"):  # a forked process has no thread that could give it back
    os.register_at_fork(before=_turn.acquire, after_in_parent=_turn.release, after_in_child=_turn.release)


_DRAWS = (nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_)


class WithoutDraws(TorchFunctionMode):
    """Leaves out random draws, for a network on the device meta, which has no values.

    The first normal one there makes PyTorch import 800 modules, which takes a second; the uniform ones of each linear
    map take a third of the time of making a network.
    """

    def __torch_function__(
        self, func: Callable[..., object], types: Sequence[type], args: Sequence[object] = (), kwargs: Any = None
    ) -> object:
        """Call a function of PyTorch, but for the draws."""
        if func in _DRAWS:
            return kwargs["tensor"] if kwargs and "tensor" in kwargs else args[0]  # the tensor as it is
        return func(*args, **(kwargs or {}))


@contextmanager
def own_draws(seed: int | None = None) -> Iterator[None]:
    """Leave PyTorch's random numbers as they are before, whatever is drawn; with a seed, those drawn are of the seed.

    One thread at a time: its generator is that of all threads.
    """
    with _turn, torch.random.fork_rng(devices=[]):  # `devices=[]`: the CPU's generator alone
        if seed is not None:
            torch.manual_seed(seed)
        yield


def build_network(config: NetworkConfig) -> Network:
    """A freshly initialised network; weights come from PyTorch's global generator, so seed that first (`own_draws`)."""
    return ARCHITECTURES[config.architecture](config)


def build_seq2seq(config: NetworkConfig) -> Seq2Seq:
    """As `build_network`, for a network that encodes a source and decodes a target.

    Raises:
        ModelError: the architecture is another one.
    """
    network = build_network(config)
    if not isinstance(network, Seq2Seq):
        raise ModelError(f"an {config.architecture} network reads no source to write a target from")
    return network


def parameter_count(network: nn.Module) -> int:
    """The number of parameters of the network; shared ones count once, packed ones as what they stand for."""
    held = sum(getattr(module, "held", 0) for module in network.modules())
    return held + sum(parameter.numel() for parameter in network.parameters())
