"""α-entmax, top-k and spans: against plain bisection, loops of the papers and finite differences."""

import math
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from atento.attention.entmax import AdaptiveSpan, Entmax, entmax, soft_span, softmax, softmax_of_top_k, top_k
from atento.attention.masks import causal
from atento.attention.relative_terms import QueryKeyPositions
from failing import fails
from tensors import normal as draw

INF = float("inf")
row = st.lists(st.floats(-6, 6), min_size=1, max_size=6)


def by_bisection(z: list[float], alpha: float) -> list[float]:
    """The definition as it stands, τ halved in Python floats."""
    x = [(alpha - 1) * one for one in z]

    def at(tau: float) -> list[float]:
        return [max(one - tau, 0.0) ** (1 / (alpha - 1)) for one in x]

    low, high = max(x) - 1, max(x)
    for _ in range(200):
        tau = (low + high) / 2
        low, high = (tau, high) if sum(at(tau)) > 1 else (low, tau)
    return [one / sum(at(low)) for one in at(low)]


@settings(max_examples=60)
@given(z=row, alpha=st.sampled_from([1.5, 2.0]) | st.floats(1.05, 6))
def test_a17_any_alpha_equals_plain_bisection(z: list[float], alpha: float) -> None:
    """The nearer to 1, the more a last digit's error is multiplied, by 1 / (α - 1); above 2, p rises straight up."""
    found = entmax(torch.tensor(z, dtype=torch.float64), alpha)
    expected = torch.tensor(by_bisection(z, alpha), dtype=torch.float64)
    atol = 1e-10 if alpha in (1.5, 2) else 1e-9 if alpha < 2 else 1e-3
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)


@settings(max_examples=50)
@given(
    z=st.lists(st.floats(-1e4, 1e4) | st.floats(-1e-6, 1e-6), min_size=1, max_size=40),
    alpha=st.floats(1, 5),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_a17_weights_are_a_distribution_in_the_scores_order(z: list[float], alpha: float, dtype: torch.dtype) -> None:
    scores = torch.tensor(z, dtype=dtype)
    p = entmax(scores, alpha)
    assert bool((p >= 0).all()) and float(p.sum()) == pytest.approx(1, abs=1e-5 if dtype == torch.float32 else 1e-12)
    assert bool((p[scores.argsort()].diff() >= -1e-6).all())
    if dtype == torch.float64:  # in float32 the sum z + 3 is itself rounded, which a steep edge of the support shows
        torch.testing.assert_close(entmax(scores + 3, alpha), p, rtol=0, atol=1e-8)


def test_a17_alpha_one_is_softmax() -> None:
    """As a number bit for bit; as a tensor to 1e-10; near 1 as near as α - 1 is to 0."""
    z = draw(3, 4, 9)
    assert torch.equal(entmax(z, 1.0), torch.softmax(z, -1))
    torch.testing.assert_close(entmax(z, torch.ones(4, 1, dtype=z.dtype)), torch.softmax(z, -1), rtol=0, atol=1e-10)
    torch.testing.assert_close(entmax(z, 1 + 1e-9), torch.softmax(z, -1), rtol=0, atol=1e-8)
    single = entmax(z.float(), torch.tensor(1 + 1e-6))
    torch.testing.assert_close(single, torch.softmax(z.float(), -1), rtol=0, atol=1e-5)
    assert entmax(z.bfloat16(), 1.5).dtype == torch.bfloat16


@pytest.mark.parametrize("alpha", [1.1, 1.5, 2.0])
def test_a17_float32_is_float64_to_its_last_digits(alpha: float) -> None:
    """Long rows of weights that are all small too, where τ's last digit would be too coarse."""
    for scale in (0.01, 1.0, 10.0):
        z = (scale * draw(8, 3000)).float()
        torch.testing.assert_close(entmax(z, alpha).double(), entmax(z.double(), alpha), rtol=1e-3, atol=1e-6)
    for one in (alpha, 20.0):  # where m^-γ is beyond what float32 can say, too
        torch.testing.assert_close(entmax(torch.zeros(65536), one), torch.full((65536,), 1 / 65536), rtol=1e-6, atol=0)


def test_a17_a_dozen_turns_find_every_row_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Newton's steps are few up to α = 2, and a row that is found stays so while others are still sought."""
    z = torch.cat([draw(4000, 64), 5 * draw(300, 64, seed=1), 100 * draw(20, 64, seed=2)])
    exact = [entmax(z, alpha) for alpha in (1.01, 1.5, 2.0)]
    monkeypatch.setattr("atento.attention.entmax._MAX_ITERATIONS", 12)
    for alpha, p in zip((1.01, 1.5, 2.0), exact):
        torch.testing.assert_close(entmax(z, alpha), p, rtol=0, atol=1e-12)
        torch.testing.assert_close(entmax(z[::500], alpha), p[::500], rtol=0, atol=1e-12)


@pytest.mark.parametrize("alpha", [1.0, 1.0 + 1e-7, 1.2, 1.5, 2.0, 2.5])
def test_a17_gradient_of_the_scores(alpha: float) -> None:
    z = draw(2, 3, 6).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: entmax(z, torch.tensor(alpha, dtype=torch.float64)), z)


@pytest.mark.parametrize("alpha", [1.0005, 1.2, 1.5, 1.9, 2.0, 2.5])
def test_a17_gradient_of_alpha(alpha: float) -> None:
    """Peters & Martins' closed form against finite differences, on both sides of the point where its series ends."""
    z = 2 * draw(3, 4, 6)
    alphas = torch.full((4, 1), alpha, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a: entmax(z, a), alphas, eps=1e-6, atol=1e-6)


def test_a17_gradient_of_alpha_at_softmax_and_of_each_head() -> None:
    """From the right, as α below 1 is none: (p(1 + h) - p(1)) / h."""
    z, g = draw(5, 6), draw(5, 6, seed=1)
    alpha = torch.ones((), dtype=torch.float64, requires_grad=True)
    (entmax(z, alpha) * g).sum().backward()
    step = ((entmax(z, 1 + 1e-6) - entmax(z, 1.0)) * g).sum() / 1e-6
    assert float(alpha.grad) == pytest.approx(float(step), abs=1e-4) and abs(float(step)) > 0.01
    z, g = draw(2, 3, 4, 5), draw(2, 3, 4, 5, seed=1)
    alpha = torch.tensor([1.0, 1.4, 2.0], dtype=torch.float64).view(3, 1, 1).requires_grad_()
    together = entmax(z, alpha)
    (together * g).sum().backward()
    for head, one in enumerate((1.0, 1.4, 2.0)):
        single = torch.tensor(one, dtype=torch.float64, requires_grad=True)
        p = entmax(z[:, head], single)
        torch.testing.assert_close(p, together[:, head], rtol=0, atol=1e-12)
        (p * g[:, head]).sum().backward()
        assert float(alpha.grad[head]) == pytest.approx(float(single.grad or 0), abs=1e-12)


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2])
def test_entmax_along_any_dimension(dim: int) -> None:
    z = draw(3, 4, 5).requires_grad_()
    expected = entmax(z.movedim(dim, -1), 1.7).movedim(-1, dim)
    found = entmax(z, 1.7, dim=dim)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    g = draw(3, 4, 5, seed=1)
    one, other = (torch.autograd.grad((p * g).sum(), z)[0] for p in (found, expected))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("alpha", [1.0, 1.5, torch.tensor(1.0), torch.tensor(1.5)], ids=repr)
def test_a17_hidden_keys_get_exactly_0_and_rows_of_nothing_give_0(alpha: float | Tensor) -> None:
    """And no gradient, none of them NaN; for α too."""
    scores = draw(4, 5)
    scores[0, 1:3] = -INF
    scores[2] = -INF
    scores.requires_grad_()
    alpha = alpha.clone().requires_grad_() if isinstance(alpha, Tensor) else alpha
    p = entmax(scores, alpha)
    assert bool((p[0, 1:3] == 0).all()) and bool((p[2] == 0).all())
    torch.testing.assert_close(p.sum(-1), torch.tensor([1, 1, 0, 1], dtype=p.dtype), rtol=0, atol=1e-12)
    torch.testing.assert_close(p[0, [0, 3, 4]], entmax(scores[0, [0, 3, 4]], alpha), rtol=0, atol=1e-12)
    (p * draw(4, 5, seed=1)).sum().backward()
    assert scores.grad is not None and bool(scores.grad.isfinite().all())
    assert bool((scores.grad[2] == 0).all()) and bool((scores.grad[0, 1:3] == 0).all())
    if isinstance(alpha, Tensor):
        assert alpha.grad is not None and bool(alpha.grad.isfinite()) and float(alpha.grad) != 0


def test_what_cannot_be_is_refused() -> None:
    for make, said in (
        *((lambda a=a: entmax(torch.zeros(2, 1), a, dim=0), "`alpha` must be at least 1") for a in (0.9, float("nan"))),
        (lambda: entmax(torch.zeros(2, 1), torch.tensor([1.5, 0.5]), dim=0), "`alpha` must be at least 1"),
        (lambda: entmax(torch.zeros(2, 3), torch.tensor([1.5, 1.5, 1.5])), "must not vary along `dim`"),
        (lambda: Entmax(3, 1.0), "a learned α must begin between 1 and 2"),
        (lambda: Entmax(3, 0.5, learned=False), "α must be at least 1"),
        (lambda: top_k(torch.zeros(1, 5), 0), "`k` must be at least 1: got 0"),
        (lambda: AdaptiveSpan(2, 10, ramp=1, initial=10), "a span must begin between 0 and `max_span`"),
        (lambda: AdaptiveSpan(2, 10, ramp=1, initial=0), "a span must begin between 0 and `max_span`"),
        (lambda: AdaptiveSpan(2, 10, ramp=0, initial=5), "a span must begin between 0 and `max_span`"),
    ):
        fails(ValueError, said, make)


def test_a17_alpha_is_learned_by_head_between_1_and_2_or_fixed() -> None:
    layer, scores = Entmax(2), draw(1, 2, 3, 4)
    assert layer.alpha.tolist() == pytest.approx([1.5, 1.5]) and layer.logit is not None
    with torch.no_grad():
        layer.logit.copy_(torch.tensor([-5.0, 5.0]))
    low, high = layer.alpha.tolist()
    assert 1 < low < 1.1 and 1.9 < high < 2
    for head, alpha in enumerate(layer.alpha.tolist()):
        torch.testing.assert_close(layer(scores)[:, head], entmax(scores[:, head], alpha), rtol=0, atol=1e-6)
    fixed = Entmax(2, 1.0, learned=False)
    assert list(fixed.parameters()) == [] and fixed.alpha.tolist() == [1, 1]
    assert torch.equal(fixed(scores), torch.softmax(scores, -1))


@given(scores=st.lists(st.integers(-3, 3).map(float) | st.just(-INF), min_size=1, max_size=9), k=st.integers(1, 10))
def test_a17_top_k_keeps_the_highest_and_of_equal_ones_the_first(scores: list[float], k: int) -> None:
    """As Python's sort, which is stable, would have it."""
    order = sorted(range(len(scores)), key=lambda i: -scores[i])[:k]
    expected = [score if i in order else -INF for i, score in enumerate(scores)]
    assert top_k(torch.tensor([scores]), k).tolist() == [expected]


def test_a17_top_k_passes_gradient_to_the_kept_alone() -> None:
    scores = torch.tensor([[1.0, 3.0, 3.0, 2.0, 3.0]], requires_grad=True)
    p = softmax(top_k(scores, 2))
    assert p.tolist() == [[0, 0.5, 0.5, 0, 0]]
    (p * torch.tensor([5.0, 1.0, 2.0, 7.0, 9.0])).sum().backward()
    assert scores.grad is not None and scores.grad.tolist() == [[0, -0.25, 0.25, 0, 0]]
    assert top_k(scores, 5) is scores


def by_the_paper(scores: Tensor, behind: list[float], ahead: list[float], ramp: float) -> Tensor:
    """m(d) eˢ / Σ m(d) eˢ in loops (Sukhbaatar et al. 2019, eq. 5 and 6)."""
    weights = torch.zeros_like(scores)
    n_heads, length = scores.shape[1], scores.shape[-1]
    for h, i in product(range(n_heads), range(length)):
        terms = []
        for j in range(length):
            m = min(max((ramp + (behind[h] if j <= i else ahead[h]) - abs(i - j)) / ramp, 0), 1)
            terms.append(m * math.exp(float(scores[0, h, i, j])))
        weights[0, h, i] = torch.tensor(terms, dtype=scores.dtype) / sum(terms)
    return weights


def test_a17_spans_equal_the_paper_in_loops_and_their_mask_is_what_they_leave() -> None:
    span = AdaptiveSpan(2, 20, ramp=3, initial=4).double()
    with torch.no_grad():
        span.behind_logit.copy_(torch.tensor([-2.0, 0.3]))
        span.ahead_logit.copy_(torch.tensor([-1.0, -6.0]))
    scores = draw(1, 2, 12, 12)
    found = softmax(span(scores, QueryKeyPositions.arange(12, 12)))
    expected = by_the_paper(scores, span.behind.tolist(), span.ahead.tolist(), 3)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert bool((found == 0).any())
    span = AdaptiveSpan(3, 100, initial=50)
    scores = draw(2, 3, 20, 20, dtype=torch.float32)
    assert torch.equal(span(scores, QueryKeyPositions.arange(20, 20)), scores)
    # at whole and broken spans, and with a limit ahead or none; so kernels may skip the rest
    zeros, positions = torch.zeros(1, 2, 16, 16, dtype=torch.float64), QueryKeyPositions.arange(16, 16)
    for initial, ramp, ahead in ((4.0, 2.0, True), (4.3, 2.5, True), (0.01, 1.0, True), (5.0, 3.0, False)):
        span = AdaptiveSpan(2, 10, ramp=ramp, initial=initial, ahead=ahead).double()
        assert torch.equal(span.to_mask().dense(16), torch.softmax(span(zeros, positions), -1) > 0)
        assert span.to_mask().reachable is not None and (span.to_mask() & causal()).max_ahead == 0


def test_a17_gradient_of_the_spans() -> None:
    """m itself, off its corners, and the weights made with it: finite differences."""
    distance = torch.arange(-9, 10)
    behind = torch.tensor([2.3, 5.1], dtype=torch.float64, requires_grad=True)
    ahead = torch.tensor([0.4, 3.7], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda b, a: soft_span(distance, b, a, 2.5), (behind, ahead))
    span = AdaptiveSpan(2, 10, ramp=2.5, initial=3.3).double()
    scores, positions = draw(2, 2, 6, 6).requires_grad_(), QueryKeyPositions.arange(6, 6)

    def weights(scores: Tensor, behind: Tensor, ahead: Tensor) -> Tensor:
        with_these = {"behind_logit": behind, "ahead_logit": ahead}
        return softmax(torch.func.functional_call(span, with_these, (scores, positions)))

    logits = [p.detach().clone().requires_grad_() for p in span.parameters()]
    assert torch.autograd.gradcheck(weights, (scores, *logits))


@pytest.mark.parametrize("scale", [0.05, 1.0, 4.0])
@pytest.mark.parametrize("alpha", [1.1, 1.5, 2.0])
def test_a17_leaving_out_low_scores_changes_nothing(alpha: float, scale: float, monkeypatch: Any) -> None:
    """Long rows, some with many equal scores, some with few that are allowed, one with none; weights and gradients."""
    scores = scale * draw(2, 3, 5, 700)
    scores[0, 1, 2] = float("-inf")
    scores[0, 1, 3, 5:] = float("-inf")
    scores[1, 0, :, ::3] = 0.0
    alphas = torch.tensor([alpha, 1.3, 1.9], dtype=torch.float64).view(3, 1, 1)
    up, found = draw(2, 3, 5, 700), []
    for long in (128, 1000):
        monkeypatch.setattr("atento.attention.entmax._LONG", long)
        leaf, learned = scores.clone().requires_grad_(), alphas.clone().requires_grad_()
        weights = entmax(leaf, learned)
        found.append((weights.detach(), *torch.autograd.grad((weights * up).sum(), (leaf, learned))))
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-12)
    assert float(found[0][0][0, 1, 2].abs().max()) == 0


@pytest.mark.parametrize("equal", [False, True])
def test_a17_softmax_of_the_kept_scores_alone_is_that_of_all(equal: bool) -> None:
    scores = draw(2, 3, 40)
    scores[0, 0, 5:], scores[0, 1] = float("-inf"), float("-inf")
    if equal:
        scores[1] = scores[1].round()
    up, found = draw(2, 3, 40), []
    for function in (softmax_of_top_k, lambda scores, k: softmax(top_k(scores, k))):
        leaf = scores.clone().requires_grad_()
        weights = function(leaf, 7)
        found.append((weights.detach(), torch.autograd.grad((weights * up).sum(), leaf)[0]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-15)
    assert int((found[0][0][1] > 0).sum(-1).max()) == 7
