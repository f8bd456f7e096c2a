"""Utilities and choices of minimum Bayes risk against sacrebleu, pair by pair, and against `mbrs` (spec row H10)."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from atento.decoding.risk import minimum_bayes_risk_choice
from atento.metrics.mbr_utilities import UTILITIES, bleu_utility, chrf_utility
from benchmarks.mbr import mbrs_metric, noisy_candidates

WORDS = ["o", "a", "gato", "gatos", "não", "está", "R$ 1.234,56", "tapete,", "(hoje)", "“sim”", ".", "é", "A", "&amp;"]
BLANK = ["", " ", "\n", ".", "a", "a b", "<skipped> a-\nb"]


def sentences(seed: int, number: int) -> list[str]:
    draw = random.Random(seed)
    first = [" ".join(draw.choices(WORDS, k=draw.randint(1, 12))) for _ in range(number)]
    near = [" ".join(draw.choice(WORDS) if draw.random() < 0.3 else word for word in one.split()) for one in first]
    return [*first, *near, *BLANK]


def pairwise(metric: Any, candidates: list[str], evidence: list[str]) -> np.ndarray:
    return np.array([[metric.sentence_score(one, [other]).score for other in evidence] for one in candidates]) / 100


@pytest.mark.parametrize(
    ("utility", "metric"),
    [
        (UTILITIES["bleu"], BLEU(effective_order=True)),
        (bleu_utility(lowercase=True, tokenize="intl"), BLEU(effective_order=True, lowercase=True, tokenize="intl")),
        (bleu_utility(max_order=2), BLEU(effective_order=True, max_ngram_order=2)),
        (UTILITIES["chrf"], CHRF()),
        (chrf_utility(char_order=3, beta=1, lowercase=True), CHRF(char_order=3, beta=1, lowercase=True)),
    ],
)
def test_h10_utilities_are_sacrebleus_of_each_pair(utility: Any, metric: Any) -> None:
    """Other texts on either side, some on both, blank ones among them: 1e-9 is asked for, 1e-12 kept."""
    candidates, evidence = sentences(1, 20), [*sentences(2, 15), *sentences(1, 20)[:10]]
    assert np.abs(utility(candidates, evidence) - pairwise(metric, candidates, evidence)).max() < 1e-12
    assert np.abs(utility(candidates, candidates) - pairwise(metric, candidates, candidates)).max() < 1e-12


@pytest.mark.parametrize(("name", "metric"), [("bleu", BLEU(effective_order=True)), ("chrf", CHRF())])
@pytest.mark.parametrize("itself", [True, False])
def test_h10_choice_is_that_of_three_plain_loops(name: str, metric: Any, itself: bool) -> None:
    """Candidates, evidence, and what sacrebleu does inside; uniform and unequal weights."""
    draw = random.Random(3)
    for number in range(8):
        candidates = noisy_candidates(12, seed=number) + (BLANK if number % 2 else [])
        weights = [draw.random() for _ in candidates] if number % 3 else [1.0] * len(candidates)
        risks = []
        for i, candidate in enumerate(candidates):
            risk = mass = 0.0
            for j, other in enumerate(candidates):
                if itself or i != j:
                    risk += weights[j] * (1 - metric.sentence_score(candidate, [other]).score / 100)
                    mass += weights[j]
            risks.append(risk / mass)
        found = minimum_bayes_risk_choice(candidates, None, name, weights=weights, self_comparison=itself)
        assert (1 - found.expected).tolist() == pytest.approx(risks, abs=1e-9)
        assert found.order == sorted(range(len(risks)), key=lambda i: (round(risks[i], 12), i))


mbrs = pytest.importorskip("mbrs", reason="pip install --no-deps mbrs fastchrf")


@pytest.mark.parametrize(("name", "options"), [("bleu", {"num_workers": 2}), ("chrf", {"fastchrf": True})])
def test_h10_mbrs_has_the_same_matrix_and_choice(name: str, options: dict[str, Any]) -> None:
    """Its own expected scores, in float32, with uniform weights and with the model's probabilities."""
    metric = mbrs_metric(name, **options)
    for seed in range(3):
        candidates = noisy_candidates(24, seed=seed)
        log_probs = torch.linspace(-3, -1, 24)
        found = minimum_bayes_risk_choice(candidates, None, name)
        theirs = metric.expected_scores(candidates, candidates)
        assert found.expected == pytest.approx(theirs.numpy() / 100, abs=1e-5)
        assert found.best == int(theirs.argmax())
        weighted = minimum_bayes_risk_choice(candidates, None, name, weights=log_probs.exp().tolist())
        theirs = metric.expected_scores(candidates, candidates, reference_lprobs=log_probs)
        assert weighted.expected == pytest.approx(theirs.numpy() / 100, abs=1e-5)
        assert weighted.best == int(theirs.argmax())


@pytest.mark.parametrize("name", ["bleu", "chrf"])
def test_h10_mbrs_aggregates_to_the_same_values(name: str) -> None:
    """Aggregation of references, weighted and not, candidates and evidence apart."""
    metric = mbrs_metric(name)
    for seed in range(3):
        candidates, evidence = noisy_candidates(20, seed=seed), noisy_candidates(30, seed=seed + 10)
        log_probs = torch.linspace(-3, -1, 30)
        for weights, lprobs in ((None, None), (log_probs.exp().tolist(), log_probs)):
            found = minimum_bayes_risk_choice(candidates, evidence, name, weights=weights, method="aggregated")
            theirs = metric.expected_scores_reference_aggregation(candidates, evidence, reference_lprobs=lprobs)
            assert found.expected == pytest.approx(theirs.numpy() / 100, abs=1e-5)
            assert found.compared == 0 and found.matrix is None
