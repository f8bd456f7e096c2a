"""Checks of minimum Bayes risk, compared with loops over all pairs (docs/notes.md#h10, #k4)."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from sacrebleu.metrics.bleu import BLEU

from atento.decoding import MBR, Sample, generate
from atento.decoding.mbr import spelled
from atento.decoding.risk import minimum_bayes_risk_choice
from atento.notes.listing_bleu import clipped
from atento.notes.listing_mbr import from_function, minimum_bayes_risk
from atento_lab.notes.checks.toys import ToySeq2Seq, random_chain
from atento_lab.notes.finding import AtLeast, Finding, compare

# From the specification: with NLTK's BLEU, smoothing 1, the listing's order of arguments picks another candidate.
ORDER_EXAMPLE = ["e e d a e e", "b a b c", "c b c b", "e d d a", "d e e e"]
MAX_TOKENS, DRAWS = 8, 16


def smoothed_bleu(reference: Sequence[str], candidate: Sequence[str]) -> float:
    """Return sentence BLEU, 0-1; an order without a match counts a tenth of one (NLTK's smoothing method 1)."""
    counts = [clipped([reference], candidate, order) for order in range(1, 5)]
    if counts[0][0] == 0:
        return 0.0
    is_longer = len(candidate) > len(reference)
    penalty = 1.0 if is_longer else math.exp(1 - len(reference) / len(candidate))
    return penalty * math.exp(sum(math.log((matches or 0.1) / max(1, total)) for matches, total in counts) / 4)


def minimum_risk_by_loops(
    candidates: Sequence[str], weights: Sequence[float], utility: Callable[[str, str], float], self_comparison: bool
) -> tuple[int, float]:
    """Return the index of the candidate of minimum risk, and the risk, by the two loops of the corrected listing."""
    best, minimum = 0, math.inf
    for i, candidate in enumerate(candidates):
        risk = mass = 0.0
        for j, evidence in enumerate(candidates):
            if j != i or self_comparison:
                risk += weights[j] * (1 - utility(candidate, evidence))
                mass += weights[j]
        risk = risk / mass if mass else 1.0
        if risk < minimum - 1e-12:
            best, minimum = i, risk
    return best, minimum


def minimum_risk() -> Finding:
    """H10: the candidate of the least expected loss 1 - BLEU, as by loops over pairs."""
    chain, sources = random_chain(vocab_size=5), torch.arange(12).unsqueeze(1)
    metric = BLEU(effective_order=True)

    def bleu(candidate: str, evidence: str) -> float:
        return float(metric.sentence_score(candidate, [evidence]).score) / 100

    drawn = generate(chain, sources, Sample(n=DRAWS), max_new_tokens=MAX_TOKENS, seed=1)
    value: dict[str, object] = {}
    for weights in ("uniform", "model"):
        for self_comparison in (True, False):
            strategy = MBR("bleu", Sample(n=DRAWS), weights=weights, self_comparison=self_comparison)
            outputs = generate(chain, sources, strategy, max_new_tokens=MAX_TOKENS, seed=1)
            differences = []
            for pool, hypotheses in zip(drawn, outputs):
                if weights == "model":
                    pool = list({tuple(hypothesis.ids): hypothesis for hypothesis in pool}.values())
                # the loops keep the first of equal candidates, so the more probable ones come first
                pool = sorted(pool, key=lambda hypothesis: -hypothesis.log_prob)
                shares = [math.exp(hypothesis.log_prob) if weights == "model" else 1.0 for hypothesis in pool]
                index, risk = minimum_risk_by_loops(
                    [spelled(hypothesis.ids) for hypothesis in pool], shares, bleu, self_comparison
                )
                differences.append(hypotheses[0].ids != pool[index].ids or abs(1 - hypotheses[0].score - risk) > 1e-9)
            value[f"unlike loops: {weights}{'' if self_comparison else ', not itself'}"] = sum(differences)
    expected: dict[str, object] = dict.fromkeys(value, 0)
    swapped, alone = _changed_choices()
    value |= {"of 500 sets change, arguments swapped": swapped, "of 500 sets change, not itself": alone}
    expected |= {"of 500 sets change, arguments swapped": AtLeast(50), "of 500 sets change, not itself": AtLeast(50)}
    return compare(
        value,
        expected,
        remark="the listing passes the candidate to BLEU as the reference, compares each candidate with itself, and "
        "weights all equally (errors 40, 41); it calls BLEU, a utility, a loss (error 42)",
    )


def _changed_choices(sets: int = 500) -> tuple[int, int]:
    """Return how often, in random sets of five strings, the winner changes with swapped arguments, or without
    itself.
    """
    swapped = alone = 0
    for _ in range(sets):
        texts = [" ".join("abcde"[k] for k in torch.randint(5, (int(n),)).tolist()) for n in torch.randint(2, 7, (5,))]
        matrix = np.array([[smoothed_bleu(b.split(), a.split()) for b in texts] for a in texts])
        best = minimum_bayes_risk_choice(texts, None, _constant_utility(matrix)).best
        swapped += best != minimum_bayes_risk_choice(texts, None, _constant_utility(matrix.T)).best
        alone += best != minimum_bayes_risk_choice(texts, None, _constant_utility(matrix), self_comparison=False).best
    return swapped, alone


def _constant_utility(matrix: np.ndarray) -> Callable[[list[str], list[str]], np.ndarray]:
    return lambda candidates, evidence: matrix


def mbr_listing() -> Finding:
    """K4: `minimum_bayes_risk(model, input_sequence, num_candidates)`, and the order of BLEU's two arguments."""
    right, wrong = (
        minimum_bayes_risk_choice(ORDER_EXAMPLE, None, from_function(bleu))
        for bleu in (smoothed_bleu, lambda reference, candidate: smoothed_bleu(candidate, reference))
    )
    picked = minimum_bayes_risk(
        None,
        "",
        5,
        generate_candidates=lambda model, sequence, number: ORDER_EXAMPLE[:number],
        utility=from_function(smoothed_bleu),
    )
    model, sources = ToySeq2Seq(), torch.tensor([[3, 4, 5], [6, 2, 3]])
    together = minimum_bayes_risk(model, sources, 10, seed=[1, 2])
    one_by_one = [minimum_bayes_risk(model, source, 10, seed=[i]) for i, source in enumerate(sources, 1)]
    return compare(
        {
            "picked": ORDER_EXAMPLE.index(picked) + 1,
            "risks of #1 and #2": [1 - float(right.expected[0]), 1 - float(right.expected[1])],
            "batch unlike one by one": sum(a != b for a, b in zip(together, one_by_one)),
        },
        {"picked": 2, "risks of #1 and #2": [0.7447, 0.7366], "batch unlike one by one": 0},
        within=5e-5,
        notes={"picked": wrong.best + 1, "risks of #1 and #2": [1 - float(wrong.expected[0]), None]},
        remark="the candidate is the hypothesis, and the evidence is the reference (error 40)",
    )
