"""Checks of sampling, compared with the exact distribution (docs/notes.md#h2 to #h5, #j6, #k4)."""

import itertools
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from atento.decoding import Greedy, Hypothesis, Sample, generate
from atento.decoding.filters import shaped, temperature, top_k, top_p
from atento.inspection.figures.distribution import NextToken, distribution_svg, distribution_text
from atento.notes.listing_sampling import random_sampling_with_temperature
from atento.notes.listing_search import greedy_decoding
from atento_lab.notes.checks.attention import apart
from atento_lab.notes.checks.decoding import sources
from atento_lab.notes.checks.shared_network import trained
from atento_lab.notes.checks.tiny import some_ids
from atento_lab.notes.checks.toys import EOS, Chain, ToyLanguageModel, random_chain
from atento_lab.notes.finding import AtLeast, AtMost, Finding, compare

LIKELY = AtLeast(1e-6)  # p-value; a correct sampler fails once in a million runs
ALIKE = AtMost(1e-12)
SEEDS = list(range(100, 106))
Outcome = tuple[tuple[int, ...], bool]  # ids, and whether EOS followed


def chi_square(counts: Counter[Outcome], probabilities: dict[Outcome, float]) -> float:
    """Return the p-value of Pearson's χ² test; 0 if an impossible outcome occurred.

    Outcomes with an expected count below 5 are counted together, because single rare outcomes would weigh too much.
    """
    if any(not probabilities.get(outcome) for outcome in counts):
        return 0.0
    total = counts.total()
    usual = sorted((total * p, outcome) for outcome, p in probabilities.items() if total * p >= 5)  # the rarest first
    cells = [(float(counts[outcome]), mean) for mean, outcome in usual]
    remainder = (total - sum(count for count, _ in cells), total - sum(mean for _, mean in cells))
    if remainder[1] >= 5:
        cells.append(remainder)
    elif cells:  # too few for a separate cell: add them to the cell of the smallest expected count
        cells[0] = (cells[0][0] + remainder[0], cells[0][1] + remainder[1])
    statistic = sum((count - mean) ** 2 / mean for count, mean in cells)
    halves = torch.tensor([(len(cells) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(halves[0], halves[1]))  # P(χ² of n - 1 degrees > statistic)


def two_tokens(chain: Chain, source: int, strategy: Sample) -> dict[Outcome, float]:
    """Return every output of at most two tokens with its probability, the product of the filtered distributions."""
    words = range(1, chain.vocab_size)

    def next_token(written: tuple[int, ...]) -> list[float]:
        probabilities: list[float] = shaped(chain.log_probs((source,), written)[None], strategy).exp()[0].tolist()
        return probabilities

    first = next_token(())
    probabilities: dict[Outcome, float] = {((), True): first[EOS]}
    for token in words:
        second = next_token((token,))  # after that token
        probabilities[(token,), True] = first[token] * second[EOS]
        probabilities |= {((token, second_token), False): first[token] * second[second_token] for second_token in words}
    return probabilities


def drawn_outputs(chain: Chain, source: int, strategy: Sample, count: int = 4000) -> Counter[Outcome]:
    """Return how often each output of at most two tokens was drawn."""
    (hypotheses,) = generate(chain, torch.tensor([[source]]), replace(strategy, n=count), max_new_tokens=2)
    return Counter((tuple(hypothesis.ids), hypothesis.finished) for hypothesis in hypotheses)


def output_ids(hypotheses: list[list[Hypothesis]]) -> list[list[list[int]]]:
    """Return the ids of hypotheses."""
    return [[hypothesis.ids for hypothesis in row] for row in hypotheses]


def ancestral_sampling() -> Finding:
    """H2: a row's draws depend only on its own seed."""
    chain, plain = random_chain(vocab_size=4), Sample()
    p_value = chi_square(drawn_outputs(chain, 9, plain), two_tokens(chain, 9, plain))
    together = generate(chain, sources(6), Sample(n=3), max_new_tokens=8, seed=SEEDS)
    alone = [generate(chain, sources(6)[i : i + 1], Sample(n=3), max_new_tokens=8, seed=[SEEDS[i]]) for i in range(6)]
    backwards = generate(chain, sources(6).flip(0), Sample(n=3), max_new_tokens=8, seed=SEEDS[::-1])
    return compare(
        {
            "p-value of χ², outputs of two tokens": p_value,
            "rows changed by company": sum(together[i] != alone[i][0] for i in range(6)),
            "rows changed by order": sum(together[i] != backwards[5 - i] for i in range(6)),
        },
        {"p-value of χ², outputs of two tokens": LIKELY, "rows changed by company": 0, "rows changed by order": 0},
        remark="4000 outputs drawn from a random chain; 13 different outputs are possible",
    )


def temperatures() -> Finding:
    """H3: logits / T and log p / T give the same distribution; 0 is greedy search."""
    logits = torch.randn(64, 50, dtype=torch.float64) * 5
    by_logits = {t: torch.softmax(logits / t, dim=1) for t in (0.1, 0.7, 3.0)}  # (64,50) each
    p = torch.softmax(logits, dim=1)
    by_p = {t: (p.log() / t).exp() / (p.log() / t).exp().sum(dim=1, keepdim=True) for t in by_logits}
    difference = max(
        max(apart(temperature(logits, t).exp(), by_logits[t]), apart(by_logits[t], by_p[t])) for t in by_logits
    )
    chain, example = random_chain(vocab_size=6), torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64).log()
    greedy = output_ids(generate(chain, sources(20), Greedy(), max_new_tokens=6))
    cold = [
        output_ids(generate(chain, sources(20), Sample(temperature=t), max_new_tokens=6)) for t in (0.0, 1e-9, 5e-324)
    ]
    differences = [sum(a != b for a, b in zip(greedy, outputs)) for outputs in cold]
    return compare(
        {
            "T .5 on .5 .3 .2": temperature(example, 0.5).exp()[0],
            "T 2 on .5 .3 .2": temperature(example, 2.0).exp()[0],
            "the two formulas apart": difference,
            "outputs unlike greedy at T = 0, 1e-9, 5e-324": differences,
        },
        {
            "T .5 on .5 .3 .2": [0.657895, 0.236842, 0.105263],
            "T 2 on .5 .3 .2": [0.415446, 0.321803, 0.262751],
            "the two formulas apart": ALIKE,
            "outputs unlike greedy at T = 0, 1e-9, 5e-324": [0, 0, 0],
        },
        remark="the notes say once that temperature sharpens and reduces diversity; this holds only for T < 1 (error "
        "24)",
    )


def top_k_sampling() -> Finding:
    """H4: only the k most probable; with k at least V, any."""
    chain, strategy = random_chain(vocab_size=4), Sample(top_k=2)
    best: dict[tuple[int, ...], set[int]] = {
        ids: set(chain.log_probs((9,), ids).topk(2).indices.tolist()) for ids in ((), (1,), (2,), (3,))
    }
    counts = drawn_outputs(chain, 9, strategy)
    outside = 0
    for (ids, finished), times in counts.items():
        tokens = (*ids, EOS) if finished else ids
        outside += times * any(token not in best[tokens[:i]] for i, token in enumerate(tokens))
    scores = torch.randn(20, 30, dtype=torch.float64)
    unfiltered = [top_k(scores, k) for k in (0, 30, 1000)]
    wide = [output_ids(generate(chain, sources(9), Sample(top_k=k, n=5), max_new_tokens=6, seed=3)) for k in (0, 4, 99)]
    return compare(
        {
            "tokens drawn outside the best 2": outside,
            "p-value of χ²": chi_square(counts, two_tokens(chain, 9, strategy)),
            "k >= V away from the softmax": max(
                apart(log_probs, scores.log_softmax(dim=1)) for log_probs in unfiltered
            ),
            "k >= V draws as plain sampling does": wide[0] == wide[1] == wide[2],
        },
        {
            "tokens drawn outside the best 2": 0,
            "p-value of χ²": LIKELY,
            "k >= V away from the softmax": ALIKE,
            "k >= V draws as plain sampling does": True,
        },
    )


def smallest_set(probabilities: list[float], p: float) -> set[int]:
    """Return the smallest set of tokens whose mass reaches p, and among those the heaviest, by exhaustive search."""
    tokens = range(len(probabilities))
    for size in range(1, len(probabilities) + 1):
        candidates = [
            (sum(probabilities[i] for i in subset), subset) for subset in itertools.combinations(tokens, size)
        ]
        mass, subset = max(candidates)  # the heaviest of this size
        if mass >= p:
            return set(subset)
    return set(tokens)


def nucleus_sampling() -> Finding:
    """H5: scaled to sum to 1; at least one token."""
    example = torch.tensor([[0.4, 0.3, 0.15, 0.1, 0.05]], dtype=torch.float64).log()
    filtered = top_p(example, 0.8).exp()[0]
    scores, different = 1.5 * torch.randn(60, 8, dtype=torch.float64), 0
    for p in (0.05, 0.5, 0.8, 0.95):
        for row, probabilities in zip(top_p(scores, p), scores.softmax(dim=1).tolist()):
            different += set(row.exp().nonzero().flatten().tolist()) != smallest_set(probabilities, p)
    chain, strategy = random_chain(vocab_size=4), Sample(top_p=0.7)
    return compare(
        {
            "tokens kept of .4 .3 .15 .1 .05 at p = .8": int((filtered > 0).sum()),
            "scaled": filtered[:3],
            "unlike the smallest of all sets": different,
            "fewest kept at p = 1e-9": int((top_p(scores, 1e-9) > -math.inf).sum(dim=1).min()),
            "p-value of χ²": chi_square(drawn_outputs(chain, 9, strategy), two_tokens(chain, 9, strategy)),
        },
        {
            "tokens kept of .4 .3 .15 .1 .05 at p = .8": 3,
            "scaled": [0.470588, 0.352941, 0.176471],
            "unlike the smallest of all sets": 0,
            "fewest kept at p = 1e-9": 1,
            "p-value of χ²": LIKELY,
        },
        notes={"tokens kept of .4 .3 .15 .1 .05 at p = .8": int((example.exp() >= 0.8).sum())},
        remark="the notes call p the minimum probability of a token; this rule keeps no token here (error 23)",
    )


BEST, NUCLEUS, PAIRS = 5, 0.8, 20


def flattest_and_most_peaked() -> tuple[list[Tensor], list[str]]:
    """Return the two next-token distributions of highest and lowest entropy over some sentences, and the tokens."""
    shared = trained()
    tokenizer, config = shared.model.tokenizer, shared.model.network.config
    assert tokenizer is not None
    rows = []
    for pair in [*shared.pairs[:PAIRS], *shared.unseen[:PAIRS]]:
        source = torch.tensor([[*tokenizer.encode(pair.source), config.eos_id]])
        target = torch.tensor([[config.start_id, *tokenizer.encode(pair.target)]])
        with torch.no_grad():
            rows.append(shared.model.network(source, target).logits[0].double().softmax(dim=-1))
    p = torch.cat(rows)  # (N,V)
    entropy = torch.special.entr(p).sum(dim=1)  # nats, (N,)
    return [p[entropy.argmax()], p[entropy.argmin()]], tokenizer.tokens(range(p.shape[1]))


def what_k_keeps() -> Finding:
    """J6: the same k keeps too little of a flat distribution, too much of a peaked one."""
    (flat, peaked), names = flattest_and_most_peaked()
    panels: list[NextToken] = []
    value: dict[str, Any] = {}
    expected: dict[str, object] = {}
    for name, p in (("flat", flat), ("peaked", peaked)):
        by_k, by_p = (shape[0] > -math.inf for shape in (top_k(p.log()[None], BEST), top_p(p.log()[None], NUCLEUS)))
        panels += [
            NextToken(f"{name}: top-k, k = {BEST}", p, by_k, names),
            NextToken(f"{name}: nucleus, p = {NUCLEUS:g}", p, by_p, names),
        ]
        value |= {f"{name}: mass of the best {BEST}": float(p[by_k].sum()), f"{name}: nucleus": int(by_p.sum())}
        ordered = sorted(p.tolist(), reverse=True)
        size = next(n for n in range(1, len(ordered) + 1) if sum(ordered[:n]) >= NUCLEUS)
        expected |= {f"{name}: mass of the best {BEST}": sum(ordered[:BEST]), f"{name}: nucleus": size}
    title = f"What k = {BEST} and p = {NUCLEUS:g} keep of two next-token distributions"
    figure = distribution_svg(panels, title=title)
    mass = [value[f"{name}: mass of the best {BEST}"] for name in ("flat", "peaked")]
    value["less is kept of the flat one"] = mass[0] < mass[1]
    value["bars drawn"] = figure.count("<rect") - 1  # without the background
    expected |= {"less is kept of the flat one": True, "bars drawn": 4 * 20}  # four panels
    return compare(
        value,
        expected,
        remark="no k fits both distributions, so a nucleus counts mass, not tokens",
        drawing=distribution_text(panels[::2]),
        figure=figure,
    )


def sampling_listing() -> Finding:
    """K4: `random_sampling_with_temperature(model, input_seq, max_length, temperature)`, called as in the notes."""
    model, prompts = ToyLanguageModel(), some_ids(8, 3, 7)
    cold = random_sampling_with_temperature(model, prompts, 6, temperature=0.0)
    greedy = greedy_decoding(model, prompts, 6)
    samples = random_sampling_with_temperature(model, prompts[:1].expand(1500, -1), 1, 0.7)
    with torch.no_grad():
        p = torch.softmax(model(prompts[:1])[0, -1].double() / 0.7, dim=0).tolist()
    outcomes: dict[Outcome, float] = {
        ((token,) if token != EOS else (), token == EOS): share for token, share in enumerate(p)
    }
    counts = Counter((tuple(ids), not ids) for ids in samples if isinstance(ids, list))  # no token: EOS was drawn
    with torch.no_grad():
        reference = torch.softmax(model(prompts[:1]) / 0.0, dim=-1)
    return compare(
        {
            "p-value of χ², one token at T = .7": chi_square(counts, outcomes),
            "unlike greedy at T = 0": sum(a != b for a, b in zip(cold, greedy)),
            "EOS left in": sum(EOS in ids for ids in [*cold, *samples] if isinstance(ids, list)),
        },
        {"p-value of χ², one token at T = .7": LIKELY, "unlike greedy at T = 0": 0, "EOS left in": 0},
        notes={"probabilities at T = 0": "nan" if bool(reference.isnan().any()) else "numbers"},
        remark="the listing draws from all positions at once, one sentence at a time, and divides by T = 0 (error 38)",
    )
