"""Check of alignments between languages of different word order, by position scheme (docs/notes.md#b14)."""

from dataclasses import replace
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from atento.attention import observe
from atento.config.network import NetworkConfig
from atento.config.positions import PositionConfig
from atento.networks import EncoderDecoder
from atento.notes.checks.tiny import Adam
from atento.notes.drawing import heat, sheet
from atento.notes.finding import AtLeast, AtMost, Finding, compare

WORDS, PHRASES, START = 8, 3, 16  # of each language; of two words each; the id that begins an output
STEPS, BATCH = 240, 48
SCHEMES: dict[str, PositionConfig] = {
    "none": PositionConfig("none"),
    "sinusoidal": PositionConfig("sinusoidal"),
    "rotary": PositionConfig("rotary"),
    "t5": PositionConfig("t5", n_buckets=8, max_distance=8),
    "shaw": PositionConfig("shaw", max_distance=4),
}
_SWAPPED = torch.arange(2 * PHRASES).view(-1, 2).flip(1).flatten()  # 1 0 3 2 5 4: the noun comes first there


def phrases(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sources (B,6) of three phrases of two words, and their translations, in which the two change places.

    Words repeat, so that only its place tells which of two equal words a translation stands for.
    """
    source = torch.randint(WORDS, (count, 2 * PHRASES), generator=generator)
    return source, source[:, _SWAPPED] + WORDS


@cache
def alignment_error(scheme: str) -> tuple[float, float, Tensor]:
    """After the same updates: the alignment error rate, the loss a word, and one sentence's cross-attention (6,6).

    A word's link is the source word that its row of the cross-attention, the mean of the heads, weighs most; with one
    gold link a word the rate is the share of wrong ones (Och & Ney 2003).
    """
    generator = torch.Generator().manual_seed(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        base = NetworkConfig(vocab_size=START + 1, d_model=32, d_ff=64, n_heads=2, n_layers=1, dropout=0.0, norm="pre")
        network = EncoderDecoder(replace(base, positions=SCHEMES[scheme]))
        adam = Adam(network.parameters(), 5e-3)
        for _ in range(STEPS):
            source, target = phrases(BATCH, generator)
            given = F.pad(target[:, :-1], (1, 0), value=START)
            loss = F.cross_entropy(network(source, given).logits.flatten(0, 1), target.flatten())
            torch.autograd.backward(loss)
            adam.step()
    network.eval()
    source, target = phrases(200, generator)
    given = F.pad(target[:, :-1], (1, 0), value=START)
    with torch.no_grad(), observe(network) as seen:
        logits = network(source, given).logits
    weights = seen["cross", -1].mean(dim=1)  # (B,6,6)
    wrong = (weights.argmax(dim=-1) != _SWAPPED).double().mean()
    return float(wrong), float(F.cross_entropy(logits.flatten(0, 1), target.flatten())), weights[0]


def alignment_by_scheme() -> Finding:
    """B14: noun and adjective change places; who stands for whom is found with positions, by some schemes sooner."""
    found = {name: alignment_error(name) for name in SCHEMES}
    errors = {name: error for name, (error, _, _) in found.items()}
    lines = [f"{name:<11}{error:>6.1%} wrong links, {loss:.2f} nats a word" for name, (error, loss, _) in found.items()]
    places = [str(n + 1) for n in range(2 * PHRASES)]
    maps = [heat(weights, name, places, places, cell=30) for name, (_, _, weights) in found.items()]
    none = errors.pop("none")
    return compare(
        {
            "wrong links": {"none": none, "best scheme": min(errors.values())},
            "all below none": max(errors.values()) < none,
        },
        {"wrong links": {"none": AtLeast(0.5), "best scheme": AtMost(0.15)}, "all below none": True},
        remark=f"{STEPS} updates each; `atento bench positions` has phrases of any length, seeds and intervals",
        drawing="\n".join(lines),
        figure=sheet("Cross-attention of one sentence: written words by row", [maps[:3], maps[3:]]),
    )
