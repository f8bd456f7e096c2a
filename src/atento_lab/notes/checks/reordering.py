"""Check of alignments between languages with different word order, by position scheme (docs/notes.md#b14)."""

from dataclasses import replace
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from atento.attention import observe
from atento.config.sections.network import NetworkConfig
from atento.config.sections.position_scheme import PositionConfig
from atento.networks import EncoderDecoder
from atento_lab.notes.checks.tiny import Adam
from atento_lab.notes.drawing import heat, sheet
from atento_lab.notes.finding import AtLeast, AtMost, Finding, compare

WORDS, PHRASES, START = 8, 3, 16  # words per language; phrases of two words; the start id
STEPS, BATCH = 240, 48
SCHEMES: dict[str, PositionConfig] = {
    "none": PositionConfig("none"),
    "sinusoidal": PositionConfig("sinusoidal"),
    "rotary": PositionConfig("rotary"),
    "t5": PositionConfig("t5", n_buckets=8, max_distance=8),
    "shaw": PositionConfig("shaw", max_distance=4),
}
_SWAPPED = torch.arange(2 * PHRASES).view(-1, 2).flip(1).flatten()  # 1 0 3 2 5 4: the noun comes first in the target


def phrases(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return sources (B,6) of three phrases of two words, and their translations, in which the two words are swapped.

    Words repeat, so only the position tells which of two equal words a translation belongs to.
    """
    source = torch.randint(WORDS, (count, 2 * PHRASES), generator=generator)
    return source, source[:, _SWAPPED] + WORDS


@cache
def alignment_error(scheme: str) -> tuple[float, float, Tensor]:
    """Return the alignment error rate after training, the loss per word, and one sentence's cross-attention (6,6).

    A word's link is the source word of highest cross-attention weight, averaged over the heads; with one gold link per
    word the rate is the share of wrong links (Och & Ney 2003).
    """
    generator = torch.Generator().manual_seed(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        base = NetworkConfig(vocab_size=START + 1, d_model=32, d_ff=64, n_heads=2, n_layers=1, dropout=0.0, norm="pre")
        network = EncoderDecoder(replace(base, positions=SCHEMES[scheme]))
        adam = Adam(network.parameters(), 5e-3)
        for _ in range(STEPS):
            source, target = phrases(BATCH, generator)
            inputs = F.pad(target[:, :-1], (1, 0), value=START)
            loss = F.cross_entropy(network(source, inputs).logits.flatten(0, 1), target.flatten())
            torch.autograd.backward(loss)
            adam.step()
    network.eval()
    source, target = phrases(200, generator)
    inputs = F.pad(target[:, :-1], (1, 0), value=START)
    with torch.no_grad(), observe(network) as observed:
        logits = network(source, inputs).logits
    weights = observed["cross", -1].mean(dim=1)  # (B,6,6)
    wrong = (weights.argmax(dim=-1) != _SWAPPED).double().mean()
    return float(wrong), float(F.cross_entropy(logits.flatten(0, 1), target.flatten())), weights[0]


def alignment_by_scheme() -> Finding:
    """B14: noun and adjective swap; with positions models learn the alignment, some schemes faster than others."""
    results = {name: alignment_error(name) for name in SCHEMES}
    errors = {name: error for name, (error, _, _) in results.items()}
    lines = [
        f"{name:<11}{error:>6.1%} wrong links, {loss:.2f} nats per word" for name, (error, loss, _) in results.items()
    ]
    positions = [str(n + 1) for n in range(2 * PHRASES)]
    maps = [heat(weights, name, positions, positions, cell=30) for name, (_, _, weights) in results.items()]
    none = errors.pop("none")  # the others have positions
    return compare(
        {
            "wrong links": {"none": none, "best scheme": min(errors.values())},
            "all below none": max(errors.values()) < none,
        },
        {"wrong links": {"none": AtLeast(0.5), "best scheme": AtMost(0.15)}, "all below none": True},
        remark=f"{STEPS} updates each; `atento bench positions` supports phrases of any length, several seeds and "
        f"intervals",
        drawing="\n".join(lines),
        figure=sheet("Cross-attention of one sentence: one target word per row", [maps[:3], maps[3:]]),
    )
