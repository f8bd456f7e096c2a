"""Check of absolute and relative positions where long documents are summarised (docs/notes.md#b12)."""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from atento.config.network import NetworkConfig
from atento.config.positions import PositionConfig
from atento.networks import EncoderDecoder
from atento.notes.checks.tiny import Adam
from atento.notes.finding import AtLeast, AtMost, Finding, compare

WORDS, SECTION = 30, 4  # words of the language; tokens of a section: a heading, its topic, two other words
HEADING, START, END = WORDS, WORDS + 1, WORDS + 2
TRAINED, LENGTHS = (2, 6), (4, 6, 12, 24)  # sections of the documents in training, fewest and most, and in the test
STEPS, BATCH, DOCUMENTS = 600, 24, 64
SCHEMES: dict[str, PositionConfig] = {
    "none": PositionConfig("none"),
    "sinusoidal": PositionConfig("sinusoidal"),
    "rotary": PositionConfig("rotary"),
}


def documents(count: int, sections: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return documents (B,4S) of S sections, and their summaries (B,S+1): the topic of each section, in order, and END.

    Topics of a document differ. The other words are words like the topics, so only the place behind a heading makes a
    word a topic (structure), and only the order of the sections gives the order of the summary.
    """
    topics = torch.rand(count, WORDS, generator=generator).argsort(dim=1)[:, :sections]
    others = torch.randint(WORDS, (count, sections, SECTION - 2), generator=generator)
    headings = torch.full((count, sections, 1), HEADING)
    return torch.cat([headings, topics.unsqueeze(-1), others], dim=-1).flatten(1), F.pad(topics, (0, 1), value=END)


def said(network: EncoderDecoder, source: Tensor, summary: Tensor) -> Tensor:
    """Return the logits (B,S+1,V) of each word of a summary behind the right ones before it."""
    logits: Tensor = network(source, F.pad(summary[:, :-1], (1, 0), value=START)).logits
    return logits


def summariser(scheme: PositionConfig) -> EncoderDecoder:
    """Train an encoder-decoder of one layer each on documents of 2 to 6 sections."""
    generator = torch.Generator().manual_seed(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        sizes = {"d_model": 48, "d_ff": 96, "n_heads": 4, "n_layers": 1, "dropout": 0.0}
        network = EncoderDecoder(NetworkConfig(vocab_size=WORDS + 3, norm="pre", positions=scheme, **sizes))  # type: ignore[arg-type]
        adam = Adam(network.parameters(), 4e-3)
        for _ in range(STEPS):
            sections = int(torch.randint(TRAINED[0], TRAINED[1] + 1, (1,), generator=generator))
            source, summary = documents(BATCH, sections, generator)
            loss = F.cross_entropy(said(network, source, summary).flatten(0, 1), summary.flatten())
            torch.autograd.backward(loss)
            adam.step()
    return network.eval()


def probes(network: EncoderDecoder, sections: int) -> tuple[float, float]:
    """Return two shares of the words of summaries: topics of the document (structure), and the right one (order)."""
    source, summary = documents(DOCUMENTS, sections, torch.Generator().manual_seed(2))
    with torch.no_grad():
        words = said(network, source, summary)[:, :-1].argmax(dim=-1)  # (B,S), without END
    topics = summary[:, :-1]
    structure = (words.unsqueeze(-1) == topics.unsqueeze(1)).any(dim=-1)
    return float(structure.double().mean()), float((words == topics).double().mean())


@cache
def measured(scheme: str) -> dict[int, tuple[float, float]]:
    """Return the probes of a scheme by the number of sections of the documents."""
    network = summariser(SCHEMES[scheme])
    return {sections: probes(network, sections) for sections in LENGTHS}


def summaries_by_scheme() -> Finding:
    """B12: trained on documents of 2 to 6 sections, tested on 4 to 24: absolute and relative positions both find the
    topics and their order at the trained lengths; in documents four times as long neither keeps the order.
    """
    found = {name: measured(name) for name in SCHEMES}
    lines = [f"{'sections':<12}" + "".join(f"{sections:>14}" for sections in LENGTHS)]
    for name, of_length in found.items():
        shares = "".join(f"{structure:>7.0%},{order:>5.0%} " for structure, order in of_length.values())
        lines.append(f"{name:<12}{shares}")
    in_order = {name: {n: order for n, (_, order) in of_length.items()} for name, of_length in found.items()}
    return compare(
        {
            "right words, 4 sections": {name: orders[4] for name, orders in in_order.items()},
            "right words, 24 sections": {name: orders[24] for name, orders in in_order.items() if name != "none"},
            "topics, 4 sections, no positions": found["none"][4][0],
        },
        {
            "right words, 4 sections": {"none": AtMost(0.5), "sinusoidal": AtLeast(0.75), "rotary": AtLeast(0.75)},
            "right words, 24 sections": {"sinusoidal": AtMost(0.5), "rotary": AtMost(0.5)},
            "topics, 4 sections, no positions": AtMost(0.6),
        },
        remark=f"{STEPS} updates each; per cell the share of topics among the words (structure) and of right words "
        "(order), each behind the right words before it. Relative schemes act inside self-attention: cross-attention "
        "finds the next section by its words alone",
        drawing="\n".join(lines),
    )
