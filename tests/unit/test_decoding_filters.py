"""Filters of a distribution, each alone and in a row: hand-worked cases, every subset tried, slow plain loops."""

import itertools
import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from atento.decoding import Sample
from atento.decoding.filters import best, min_p, shaped, stages, temperature, top_k, top_p, typical_p

INF = float("inf")
SCORES = st.lists(st.integers(-24, 24).map(lambda x: x / 4), min_size=1, max_size=7)  # equal or well apart


def rows(*probabilities: list[float]) -> Tensor:
    return torch.tensor(probabilities, dtype=torch.float64).log()


def softmax(scores: list[float]) -> list[float]:
    top = max(scores)
    grown = [math.exp(score - top) for score in scores]
    return [one / sum(grown) for one in grown]


def scaled(p: list[float], kept: set[int]) -> list[float]:
    mass = sum(p[i] for i in kept)
    return [share / mass if i in kept else 0.0 for i, share in enumerate(p)]


def until(p: list[float], order: list[int], mass: float) -> set[int]:
    """The first tokens of an order whose mass reaches a bound, rounding aside."""
    for size in range(1, len(order) + 1):
        if sum(p[i] for i in order[:size]) >= mass - 1e-13:
            return set(order[:size])
    return set(order)


def by_hand(scores: list[float], strategy: Sample) -> list[float]:
    """Every filter of a strategy in turn, in lists."""
    p = softmax(scores)
    if strategy.temperature == 0:
        p = [float(i == scores.index(max(scores))) for i in range(len(p))]
    else:
        grown = [share ** (1 / strategy.temperature) for share in p]
        p = [one / sum(grown) for one in grown]
    tokens = range(len(p))
    best_first = sorted(tokens, key=lambda i: (-p[i], i))
    if strategy.top_k:
        p = scaled(p, set(best_first[: strategy.top_k]))
    if strategy.top_p < 1:
        p = scaled(p, until(p, best_first, strategy.top_p))
    if strategy.min_p:
        p = scaled(p, {i for i in tokens if p[i] >= strategy.min_p * max(p) - 1e-14})
    if strategy.typical_p < 1:
        entropy = sum(-share * math.log(share) for share in p if share > 0)
        away = [abs(-math.log(share) - entropy) if share > 0 else INF for share in p]
        p = scaled(p, until(p, sorted(tokens, key=lambda i: (away[i], i)), strategy.typical_p))
    return p


@pytest.mark.parametrize("value", [0.05, 0.5, 1.0, 1.7, 40.0])
def test_h3_both_formulas_are_one(value: float) -> None:
    """logits / T and log p / T, each written out, and the function on either."""
    logits = 10 * torch.randn(50, 40, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    by_logits = (logits / value).softmax(dim=-1)
    log_p = logits.log_softmax(dim=-1)
    raised = (log_p / value - (log_p / value).amax(dim=-1, keepdim=True)).exp()
    by_p = raised / raised.sum(dim=-1, keepdim=True)
    for one in (by_p, temperature(logits, value).exp(), temperature(log_p, value).exp()):
        torch.testing.assert_close(one, by_logits, atol=1e-12, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [5e-324, 1e-50, 1e-12])
def test_h3_a_temperature_near_zero_is_greedy_and_no_nan(value: float, dtype: torch.dtype) -> None:
    scores = torch.tensor([[1.0, 3.0, 2.0], [-INF, -5.0, -INF], [1e4, -1e4, 0.0]], dtype=dtype)
    assert temperature(scores, value).exp().tolist() == [[0, 1, 0], [0, 1, 0], [1, 0, 0]]
    assert temperature(scores, 0.0).exp().tolist() == [[0, 1, 0], [0, 1, 0], [1, 0, 0]]
    scores = torch.tensor([[0.0, 2.0, 2.0]], dtype=dtype)  # at zero the first of equals, near zero they share
    assert temperature(scores, 0.0).exp().tolist() == [[0, 1, 0]]
    assert temperature(scores, value).exp().tolist() == [[0, 0.5, 0.5]]


@settings(max_examples=30)
@given(scores=SCORES, k=st.integers(0, 9))
@example(scores=[1.0, 1.0, 1.0, 0.0], k=2)
def test_h4_exactly_the_k_best_are_kept(scores: list[float], k: int) -> None:
    found = top_k(torch.tensor([scores], dtype=torch.float64), k).exp()[0].tolist()
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    kept = set(order[:k] if k else order)
    assert {i for i, share in enumerate(found) if share > 0} == kept
    assert found == pytest.approx(scaled(softmax(scores), kept), abs=1e-12)


def test_h4_k_of_v_or_more_filters_nothing() -> None:
    scores = torch.randn(4, 9, generator=torch.Generator().manual_seed(2))
    for k in (0, 9, 10, 10_000):
        assert torch.equal(top_k(scores, k), scores.log_softmax(dim=-1))
    assert top_k(torch.tensor([[-INF, 0.0, -INF, -INF]]), 3).exp().tolist() == [[0, 1, 0, 0]]  # what is forbidden stays


@settings(max_examples=30)
@given(scores=SCORES.filter(lambda scores: len(scores) > 1), data=st.data())
def test_h4_the_best_alone_are_those_that_top_k_keeps(scores: list[float], data: st.DataObject) -> None:
    """What filters after top-k leave is the same on k tokens and on the whole vocabulary."""
    x, k = torch.tensor([scores], dtype=torch.float64), data.draw(st.integers(1, len(scores) - 1))
    few, ids = best(x, k)
    assert ids[0].tolist() == (top_k(x, k)[0] > -INF).nonzero().flatten().tolist()
    assert torch.equal(few, x.gather(-1, ids))
    left = torch.full_like(x, -INF).scatter(-1, ids, shaped(few, Sample(0.7, top_p=0.9, min_p=0.05)))
    torch.testing.assert_close(left, shaped(x, Sample(0.7, k, 0.9, 0.05)), rtol=0, atol=1e-12)


@settings(max_examples=30)
@given(scores=SCORES, p=st.floats(1e-6, 1, exclude_min=True))
@example(scores=[0.0, 0.0, 0.0], p=0.5)
@example(scores=[0.0], p=1e-6)
def test_h5_no_smaller_set_reaches_p(scores: list[float], p: float) -> None:
    """All subsets tried; never none, as "every token of at least p" would keep (error 23)."""
    shares = softmax(scores)
    kept = {i for i, share in enumerate(top_p(torch.tensor([scores], dtype=torch.float64), p)[0]) if share > -INF}
    mass = sum(shares[i] for i in kept)
    assert kept and mass >= p - 1e-12
    for size in range(len(kept)):
        assert all(sum(shares[i] for i in some) < p for some in itertools.combinations(range(len(shares)), size))
    same_size = itertools.combinations(range(len(shares)), len(kept))
    assert mass >= max(sum(shares[i] for i in some) for some in same_size) - 1e-12


@pytest.mark.parametrize(("p", "kept"), [(0.4, 1), (0.7, 2), (0.85, 3), (0.95, 4), (1e-12, 1), (0.95001, 5), (1.0, 5)])
def test_h5_a_mass_that_is_just_reached_is_enough(p: float, kept: int) -> None:
    """.4 + .3 makes .7, though the logarithms do not quite."""
    assert int((top_p(rows([0.1, 0.3, 0.4, 0.05, 0.15]), p) > -INF).sum()) == kept


@pytest.mark.parametrize("spread", [0.01, 1.0, 8.0])
@pytest.mark.parametrize("p", [0.1, 0.9, 0.999])
def test_h5_a_large_vocabulary_is_as_if_sorted_whole(spread: float, p: float) -> None:
    """Flat rows, whose nucleus is nearly all, beside peaked ones, of one token."""
    g = torch.Generator().manual_seed(3)
    scores = spread * torch.randn(6, 3000, generator=g, dtype=torch.float64)
    scores[3] *= 20
    ordered, order = scores.softmax(dim=-1).sort(dim=-1, descending=True)
    kept = ordered.cumsum(dim=-1) - ordered < p
    expected = torch.zeros_like(kept).scatter(-1, order, kept)
    assert torch.equal(top_p(scores, p) > -INF, expected)
    assert torch.equal(top_p(scores[2:3], p), top_p(scores, p)[2:3])


def test_min_p_counts_from_the_best_and_typical_may_leave_it_out() -> None:
    p = rows([0.5, 0.25, 0.15, 0.1])
    for least, kept in ((0.0, 4), (0.2, 4), (0.21, 3), (0.3, 3), (0.5, 2), (0.51, 1), (1.0, 1)):
        assert int((min_p(p, least) > -INF).sum()) == kept
    assert min_p(p, 0.3).exp()[0].tolist() == pytest.approx([0.5 / 0.9, 0.25 / 0.9, 0.15 / 0.9, 0.0])
    # entropy 1.397; -log p is .80 of the first token, 1.39 of the second, which comes first
    shares = [0.45, 0.25, 0.1, 0.1, 0.1]
    p = rows(shares)
    entropy = -sum(share * math.log(share) for share in shares)
    assert abs(-math.log(0.25) - entropy) < abs(-math.log(0.45) - entropy) < abs(-math.log(0.1) - entropy)
    for mass, kept in ((0.2, [1]), (0.25, [1]), (0.3, [0, 1]), (0.7, [0, 1]), (0.71, [0, 1, 2])):
        assert (typical_p(p, mass) > -INF)[0].nonzero().flatten().tolist() == kept
    assert torch.equal(typical_p(p, 1.0), p.log_softmax(dim=-1))


@settings(max_examples=30)
@example(scores=[0.0, 0.0, -6.0], strategy=Sample(0.3, top_p=0.5))
@example(scores=[0.0, 0.0, -6.0], strategy=Sample(0.3, top_p=0.5, typical_p=0.7))
@given(
    scores=SCORES,
    strategy=st.builds(
        Sample,
        temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
        top_k=st.integers(0, 8),
        top_p=st.sampled_from([0.05, 0.5, 0.9, 1.0]),
        min_p=st.sampled_from([0.0, 0.1, 0.8]),
        typical_p=st.sampled_from([0.2, 0.7, 1.0]),
    ),
)
def test_h3_h4_h5_the_chain_equals_slow_lists(scores: list[float], strategy: Sample) -> None:
    """Each filter works on what the one before left, scaled to sum to 1."""
    found = shaped(torch.tensor([scores], dtype=torch.float64), strategy).exp()[0].tolist()
    assert sum(found) == pytest.approx(1.0, abs=1e-12)
    if not close_call(scores, strategy):
        assert found == pytest.approx(by_hand(scores, strategy), abs=1e-9)


def close_call(scores: list[float], strategy: Sample) -> bool:
    """Whether rounding decides: two tokens as far from the entropy, or a sum that is `top_p`."""
    sums = itertools.accumulate(sorted(by_hand(scores, Sample(strategy.temperature, strategy.top_k)), reverse=True))
    if strategy.top_p < 1 and any(abs(one - strategy.top_p) < 1e-9 for one in sums):
        return True
    p = by_hand(scores, Sample(strategy.temperature, strategy.top_k, strategy.top_p, strategy.min_p))
    entropy = sum(-share * math.log(share) for share in p if share > 0)
    away = [abs(-math.log(share) - entropy) for share in p if share > 0]
    return strategy.typical_p < 1 and any(0 < abs(a - b) < 1e-9 for a, b in itertools.combinations(away, 2))


def test_the_stages_are_named_in_order_and_those_off_passed_over() -> None:
    scores = torch.randn(2, 12, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    every = Sample(temperature=0.7, top_k=8, top_p=0.9, min_p=0.05, typical_p=0.8)
    found = list(stages(scores, every))
    assert [name for name, _ in found] == [
        "model", "temperature 0.7", "top_k 8", "top_p 0.9", "min_p 0.05", "typical_p 0.8"
    ]  # fmt: skip
    assert torch.equal(found[0][1], scores.log_softmax(dim=-1))
    torch.testing.assert_close(found[-1][1], shaped(scores, every), rtol=0, atol=1e-12)
    left = [(shape > -INF).sum(dim=1) for _, shape in found]
    assert all(bool((after <= before).all()) for before, after in itertools.pairwise(left))
    assert [name for name, _ in stages(scores, Sample())] == ["model"]
    assert [name for name, _ in stages(scores, Sample(top_p=0.5))] == ["model", "top_p 0.5"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_filters_keep_the_type_and_leave_the_scores_alone(dtype: torch.dtype) -> None:
    scores = torch.randn(3, 80, generator=torch.Generator().manual_seed(5)).to(dtype)
    before = scores.clone()
    for shape, value in ((temperature, 0.5), (top_k, 3), (top_p, 0.5), (min_p, 0.2), (typical_p, 0.5)):
        assert shape(scores, value).dtype == dtype and torch.equal(scores, before)  # type: ignore[operator]
