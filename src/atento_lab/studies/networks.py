"""The small networks of the position laboratory, equal except for their position scheme, and their training."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atento.attention.masks import bidirectional, causal
from atento.attention.positions import Learned
from atento.config.sections.network import NetworkConfig
from atento.config.sections.position_scheme import PositionConfig
from atento.networks import EncoderDecoder
from atento.networks.layers import TokenEmbedding
from atento.networks.stack.stack import Stack
from atento.networks.stack.stack_positions import AddedPositions, input_positions
from atento_lab.studies.tasks import REORDER_VOCABULARY, TASKS

ABSOLUTE = ("sinusoidal", "learned")
RELATIVE = ("rotary", "shaw", "t5", "alibi", "matrix")
HYBRID = ("sinusoidal+shaw", "gated sinusoidal+shaw")
Network = TypeVar("Network", bound=nn.Module)
SCHEMES = ("none", *ABSOLUTE, *RELATIVE, *HYBRID)


@dataclass(frozen=True)
class Size:
    """The size of the laboratory.

    Args:
        length: L, the length of training texts; evaluation uses texts of up to 8 L.
        texts: the number of evaluation texts of each length.
        steps: a factor for the steps of every task.
        cost_length: tokens of the measurement of cost.
        long: memory growth is measured from this length to twice this length; 0 omits it.
    """

    d_model: int = 64
    n_heads: int = 4
    n_layers: int = 2
    length: int = 16
    batch: int = 32
    texts: int = 128
    seeds: int = 3
    steps: float = 1.0
    cost_length: int = 256
    long: int = 1024


SIZES = {"cpu": Size(), "cuda": Size(256, 8, 4, 64, 64, 512, 5, 4.0, 1024, 4096)}


def position_configs(scheme: str, length: int) -> tuple[PositionConfig, ...]:
    """Return the configuration of a scheme.

    Distances are clipped within the trained length, so every row is trained.
    """
    limit = length // 2
    return {
        "none": (),
        "sinusoidal": (PositionConfig("sinusoidal"),),
        "learned": (PositionConfig("learned"),),
        "rotary": (PositionConfig("rotary"),),
        "shaw": (PositionConfig("shaw", max_distance=limit),),
        "t5": (PositionConfig("t5", n_buckets=16, max_distance=length),),
        "alibi": (PositionConfig("alibi"),),
        "matrix": (PositionConfig("matrix", max_distance=limit),),
        "sinusoidal+shaw": (PositionConfig("sinusoidal"), PositionConfig("shaw", max_distance=limit)),
        "gated sinusoidal+shaw": (
            PositionConfig("sinusoidal", gate=True),
            PositionConfig("shaw", max_distance=limit, gate=True),
        ),
    }[scheme]


def network_config(scheme: str, size: Size, vocab_size: int, *, max_len: int | None = None) -> NetworkConfig:
    """Return a pre-norm configuration without dropout.

    A learned table has `max_len` positions, by default the trained length.
    """
    return NetworkConfig(
        vocab_size=vocab_size,
        d_model=size.d_model,
        d_ff=4 * size.d_model,
        n_heads=size.n_heads,
        n_layers=size.n_layers,
        n_decoder_layers=1,
        dropout=0.0,
        norm="pre",
        positions=position_configs(scheme, size.length),
        max_len=size.length if max_len is None else max_len,
    )


class PositionNetwork(nn.Module):
    """An embedding, one stack, and an output: the next token (causal), or a class from the mean (bidirectional).

    The parameters of a scheme are initialised last, so all others are the same for the same seed.
    """

    def __init__(self, config: NetworkConfig, classes: int = 0) -> None:
        super().__init__()
        self.embedding = TokenEmbedding(config.vocab_size, config.d_model)
        nn.init.normal_(self.embedding.weight, std=config.d_model**-0.5)
        self.head = nn.Linear(config.d_model, classes) if classes else None
        mask = bidirectional() if classes else causal()
        self.stack = Stack(config, kind="encoder", n_layers=config.n_layers, masks=[mask] * config.n_layers)
        self.positions = input_positions(config)

    def hidden(self, ids: Tensor, position_ids: Tensor | None = None) -> Tensor:
        """ids (B,L) -> (B,L,D), at positions 0 ... L - 1 or `position_ids` (B,L)."""
        x = self.positions(self.embedding(ids), position_ids=position_ids)
        out: Tensor = self.stack(x, position_ids=position_ids)
        return out

    def forward(self, ids: Tensor) -> Tensor:
        """ids (B,L) -> logits (B,L,V), or (B,C) of a classifier."""
        hidden = self.hidden(ids)
        out: Tensor = F.linear(hidden, self.embedding.weight) if self.head is None else self.head(hidden.mean(dim=1))
        return out


def reader(task: str, scheme: str, size: Size, seed: int, *, max_len: int | None = None) -> PositionNetwork:
    """Return a new language model or classifier for a task."""
    config = network_config(scheme, size, TASKS[task].vocab_size(), max_len=max_len)
    with _seeded(seed):
        network = PositionNetwork(config, TASKS[task].classes)
        _enlarge_learned(network)
    return network


def translator(scheme: str, size: Size, seed: int) -> EncoderDecoder:
    """Return a new encoder-decoder for the re-ordering task.

    With one decoder layer, its cross-attention is the alignment.
    """
    with _seeded(seed):
        network = EncoderDecoder(network_config(scheme, size, REORDER_VOCABULARY))
        torch.manual_seed(seed)  # schemes have drawn numbers: reseed for the other weights
        network.reset_parameters()
        _enlarge_learned(network)
    return network


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed PyTorch's global generator inside this context and restore its state afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _enlarge_learned(network: nn.Module) -> None:
    """Initialise learned tables at the scale of sinusoids; the usual 0.02 is small relative to tokens of variance 1."""
    for module in network.modules():
        if isinstance(module, Learned):
            nn.init.normal_(module.weight, std=0.5**0.5)


def stretched(network: Network, max_len: int) -> Network:
    """Return a copy with learned tables interpolated to `max_len` positions, or the network itself if it has none."""
    if not any(isinstance(module, Learned) and module.max_len < max_len for module in network.modules()):
        return network
    longer = deepcopy(network)
    for module in longer.modules():
        if isinstance(module, AddedPositions):
            for number, scheme in enumerate(module.schemes):
                if isinstance(scheme, Learned):
                    module.schemes[number] = scheme.interpolated(max_len)
    return longer


def train(network: nn.Module, loss: Callable[[], Tensor], steps: int, *, decay: float = 0.01) -> Iterator[int]:
    """Train by AdamW and yield after each of `steps` updates.

    The rate rises to 5e-3 in a tenth of them and then falls to 0.

    Args:
        loss: draws the next batch and returns its mean loss; the gradients are available when a step is yielded.
    """
    optimizer = torch.optim.AdamW(network.parameters(), betas=(0.9, 0.98), weight_decay=decay)
    network.train()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 5e-3 * min(1.0, 10 * (step + 1) / steps) * (1 - step / steps)
        optimizer.zero_grad()
        torch.autograd.backward(loss())
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        yield step
    network.eval()
