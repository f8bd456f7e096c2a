"""Check of absolute and relative positions where long documents are summarised (docs/notes.md#b12)."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from atento.base.errors import DataError
from atento.config.sections.network import NetworkConfig
from atento.config.sections.position_scheme import PositionConfig
from atento.networks import EncoderDecoder
from atento.text.words import word_spans
from atento_lab.notes.checks.tiny import Adam
from atento_lab.notes.finding import AtLeast, AtMost, Finding, compare

WORDS, SECTION = 30, 4  # words of the language; tokens of a section: a heading, its topic, two other words
HEADING, START, END = WORDS, WORDS + 1, WORDS + 2
TRAINED, LENGTHS = (2, 6), (4, 6, 12, 24)  # sections of the documents in training, fewest and most, and in the test
STEPS, BATCH, DOCUMENTS = 600, 24, 64
FREQUENT, FEWEST = 4000, 20  # of documents of one's own: words that are known, and how many documents are needed
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
    """Return the logits (B,S+1,V) of each word of a summary behind the right ones before it; -1 is padding."""
    mask = source >= 0
    real = {} if mask.all() else {"source_token_mask": mask}  # documents of one length need no mask
    inputs = F.pad(summary[:, :-1], (1, 0), value=START).clamp(min=0)
    logits: Tensor = network(source.clamp(min=0), inputs, **real).logits
    return logits


def summariser(
    scheme: PositionConfig, draw: Callable[[torch.Generator], tuple[Tensor, Tensor]], vocab_size: int = WORDS + 3
) -> EncoderDecoder:
    """Train an encoder-decoder of one layer each on batches of documents and summaries, as `draw` gives them."""
    generator = torch.Generator().manual_seed(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        config = NetworkConfig(vocab_size=vocab_size, norm="pre", positions=scheme, dropout=0.0)
        network = EncoderDecoder(replace(config, d_model=48, d_ff=96, n_heads=4, n_layers=1))
        adam = Adam(network.parameters(), 4e-3)
        for _ in range(STEPS):
            source, summary = draw(generator)
            logits = said(network, source, summary).flatten(0, 1)
            torch.autograd.backward(F.cross_entropy(logits, summary.flatten(), ignore_index=-1))
            adam.step()
    return network.eval()


def drawn(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return a batch of documents of 2 to 6 sections."""
    return documents(BATCH, int(torch.randint(TRAINED[0], TRAINED[1] + 1, (1,), generator=generator)), generator)


@torch.no_grad()
def probes(network: EncoderDecoder, source: Tensor, summary: Tensor) -> tuple[float, float]:
    """Return two shares of the words of summaries: words of the right one (structure), and the right one (order)."""
    words = said(network, source, summary).argmax(dim=-1)
    of_text = (summary >= 0) & (summary != END)
    structure = (words.unsqueeze(-1) == summary.where(of_text, -1).unsqueeze(1)).any(dim=-1)
    return float(structure[of_text].double().mean()), float((words == summary)[of_text].double().mean())


@cache
def measured(scheme: str) -> dict[int, tuple[float, float]]:
    """Return the probes of a scheme by the number of sections of the documents."""
    network = summariser(SCHEMES[scheme], drawn)
    tests = {n: documents(DOCUMENTS, n, torch.Generator().manual_seed(2)) for n in LENGTHS}
    return {sections: probes(network, *test) for sections, test in tests.items()}


def summaries_by_scheme() -> Finding:
    """B12: trained on 2 to 6 sections, tested on 4 to 24: absolute and relative positions find the topics and their
    order at trained lengths, four times as long neither keeps the order.
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


def own_documents(pairs: Sequence[tuple[str, str]]) -> Callable[[], Finding]:
    """Return the same measurement on documents and summaries of one's own: trained on the shorter half, less one in
    five, and tested on those left out and on longer documents, by length.

    Raises:
        DataError: fewer than 20 documents that are not blank.
    """
    split = [tuple([text[a:b].lower() for a, b in word_spans(text)] for text in pair) for pair in pairs]
    split = sorted((pair for pair in split if all(pair)), key=lambda pair: len(pair[0]))
    if len(split) < FEWEST:
        raise DataError(f"the documents must be at least {FEWEST}, with a summary each: got {len(split)}")
    counts = Counter(word for pair in split for words in pair for word in words)
    ids = {word: WORDS + 3 + number for number, (word, _) in enumerate(counts.most_common(FREQUENT))}
    return partial(
        _of_numbers,
        [tuple([ids.get(word, HEADING) for word in words] for words in pair) for pair in split],
        WORDS + 3 + len(ids),
    )


def _of_numbers(pairs: Sequence[Sequence[list[int]]], vocab_size: int) -> Finding:
    """Train and test on documents and summaries as ids, in the order of the lengths of the documents."""
    limit = len(pairs[len(pairs) // 2][0])  # the median
    short = [pair for pair in pairs if len(pair[0]) <= limit]
    train = [pair for number, pair in enumerate(short) if number % 5]  # the others are tested
    tests = {
        f"up to {limit} words": short[::5],
        f"up to {2 * limit} words": [pair for pair in pairs if limit < len(pair[0]) <= 2 * limit],
        "longer": [pair for pair in pairs if len(pair[0]) > 2 * limit],
    }
    networks = {name: summariser(scheme, partial(_some, train), vocab_size) for name, scheme in SCHEMES.items()}
    found = {
        name: {
            length: dict(zip(("structure", "order"), probes(network, *_padded(of_length))))
            for length, of_length in tests.items()
            if of_length
        }
        for name, network in networks.items()
    }
    return Finding(
        found,
        "your documents, for which nothing is expected",
        True,
        remark=f"{len(train)} documents of at most {limit} words in training, {STEPS} updates each; "
        + ", ".join(f"{len(of_length)} tested {length}" for length, of_length in tests.items()),
    )


def _some(train: Sequence[Sequence[list[int]]], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return a batch of random documents and summaries."""
    return _padded([train[row] for row in torch.randint(len(train), (BATCH,), generator=generator).tolist()])


def _padded(pairs: Sequence[Sequence[list[int]]]) -> tuple[Tensor, Tensor]:
    """Return documents (B,L) and summaries with END (B,S+1), padded with -1."""
    sides = [[document for document, _ in pairs], [[*summary, END] for _, summary in pairs]]
    source, target = (
        pad_sequence([torch.tensor(ids) for ids in side], batch_first=True, padding_value=-1) for side in sides
    )
    return source, target
