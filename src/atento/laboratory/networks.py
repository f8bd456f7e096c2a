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
from atento.config.network import NetworkConfig
from atento.config.positions import PositionConfig
from atento.laboratory.tasks import REORDER_VOCABULARY, TASKS
from atento.networks import EncoderDecoder
from atento.networks.layers import TokenEmbedding
from atento.networks.stack.positions import AddedPositions, input_positions
from atento.networks.stack.stack import Stack

ABSOLUTE = ("sinusoidal", "learned")
RELATIVE = ("rotary", "shaw", "t5", "alibi", "matrix")
HYBRID = ("sinusoidal+shaw", "gated sinusoidal+shaw")
Network = TypeVar("Network", bound=nn.Module)
SCHEMES = ("none", *ABSOLUTE, *RELATIVE, *HYBRID)


@dataclass(frozen=True)
class Size:
    """How large the laboratory is; `length` L is that of training, texts of up to 8 L are tried.

    `texts` is how many are drawn at each length; `steps` multiplies the steps of every task. Cost is measured at
    `cost_length` tokens, and how memory grows from `long` to twice that (0: not at all).
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
    """What the name stands for, its clipping within what a text of the trained length shows (so that it is trained)."""
    near = length // 2
    return {
        "none": (),
        "sinusoidal": (PositionConfig("sinusoidal"),),
        "learned": (PositionConfig("learned"),),
        "rotary": (PositionConfig("rotary"),),
        "shaw": (PositionConfig("shaw", max_distance=near),),
        "t5": (PositionConfig("t5", n_buckets=16, max_distance=length),),
        "alibi": (PositionConfig("alibi"),),
        "matrix": (PositionConfig("matrix", max_distance=near),),
        "sinusoidal+shaw": (PositionConfig("sinusoidal"), PositionConfig("shaw", max_distance=near)),
        "gated sinusoidal+shaw": (
            PositionConfig("sinusoidal", gate=True),
            PositionConfig("shaw", max_distance=near, gate=True),
        ),
    }[scheme]


def network_config(scheme: str, size: Size, vocab_size: int, *, max_len: int | None = None) -> NetworkConfig:
    """Pre-norm, without dropout; a learned table holds `max_len` positions, the trained length if not given."""
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
    """Embedding, one stack, output: the next token, reading backwards only, or a class of the mean, reading both ways.

    What a scheme learns is drawn last, so that of the same seed everything else begins alike.
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
        """ids (B,L) -> (B,L,D), standing at 0 ... L - 1 or at `position_ids` (B,L)."""
        x = self.positions(self.embedding(ids), position_ids=position_ids)
        out: Tensor = self.stack(x, position_ids=position_ids)
        return out

    def forward(self, ids: Tensor) -> Tensor:
        """ids (B,L) -> logits (B,L,V), or (B,C) of a classifier."""
        hidden = self.hidden(ids)
        out: Tensor = F.linear(hidden, self.embedding.weight) if self.head is None else self.head(hidden.mean(dim=1))
        return out


def reader(task: str, scheme: str, size: Size, seed: int, *, max_len: int | None = None) -> PositionNetwork:
    """A fresh language model or classifier for that task."""
    config = network_config(scheme, size, TASKS[task].vocab_size(), max_len=max_len)
    with _seeded(seed):
        network = PositionNetwork(config, TASKS[task].classes)
        _enlarge_learned(network)
    return network


def translator(scheme: str, size: Size, seed: int) -> EncoderDecoder:
    """A fresh encoder-decoder for the re-ordering task, one decoder layer deep so that its reading is the alignment."""
    with _seeded(seed):
        network = EncoderDecoder(network_config(scheme, size, REORDER_VOCABULARY))
        torch.manual_seed(seed)  # schemes have drawn before: begin again for the rest
        network.reset_parameters()
        _enlarge_learned(network)
    return network


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed PyTorch's global generator inside this context; restore its state after it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _enlarge_learned(network: nn.Module) -> None:
    """Initialise learned tables at the scale of sinusoids; the usual 0.02 is small beside tokens of variance 1."""
    for module in network.modules():
        if isinstance(module, Learned):
            nn.init.normal_(module.weight, std=0.5**0.5)


def stretched(network: Network, max_len: int) -> Network:
    """A copy with learned tables interpolated to `max_len` positions; the network itself if it has none."""
    if not any(isinstance(one, Learned) and one.max_len < max_len for one in network.modules()):
        return network
    longer = deepcopy(network)
    for module in longer.modules():
        if isinstance(module, AddedPositions):
            for number, scheme in enumerate(module.schemes):
                if isinstance(scheme, Learned):
                    module.schemes[number] = scheme.interpolated(max_len)
    return longer


def train(network: nn.Module, loss: Callable[[], Tensor], steps: int, *, decay: float = 0.01) -> Iterator[int]:
    """`steps` updates by AdamW, the rate 5e-3 after a tenth of them and then falling to nothing; yields after each.

    `loss` draws the next batch and returns its mean loss; gradients are still there when a step is yielded.
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
