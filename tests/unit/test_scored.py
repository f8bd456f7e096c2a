"""Scores and contexts of a recurrent decoder: additive, bilinear and dot against loops, under masks, with gradients."""

import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from atento.attention import attend, attention_weights
from atento.attention.additive import AdditiveScore, BilinearScore, DotScore, attend_scored
from atento.attention.masks import Mask, causal, padding
from atento.attention.prepared_mask import prepare_mask
from tensors import normal as random

B, T, S, D = 2, 3, 5, 4
Part = AdditiveScore | BilinearScore | DotScore


@torch.no_grad()
def make(name: str) -> tuple[Part, Tensor, Tensor]:
    """A score whose numbers are random, queries (B,T,Dq) and keys (B,S,Dk); widths differ where they may."""
    wide = D if name == "dot" else D + 2
    made: Part = DotScore()
    if name == "additive":
        made = AdditiveScore(D, wide, 3)
    elif name == "bilinear":
        made = BilinearScore(D, wide)
    for seed, parameter in enumerate(made.double().parameters()):
        parameter.copy_(random(*parameter.shape, seed=seed + 5))
    return made, random(B, T, D), random(B, S, wide, seed=1)


def one_score(part: Part, query: list[float], key: list[float]) -> float:
    """The equation on plain Python floats."""
    if isinstance(part, DotScore):
        return sum(part.scale * s * h for s, h in zip(query, key))
    if isinstance(part, BilinearScore):
        matrix: list[list[float]] = part.key.weight.tolist()
        return sum(query[a] * matrix[a][b] * key[b] for a in range(len(query)) for b in range(len(key)))
    total = 0.0
    for n in range(part.weigh.weight.shape[1]):
        inside = sum(w * s for w, s in zip(part.query.weight[n].tolist(), query)) + part.key.bias.tolist()[n]
        inside += sum(u * h for u, h in zip(part.key.weight[n].tolist(), key))
        total += part.weigh.weight.tolist()[0][n] * math.tanh(inside)
    return total


def test_a5_a10_scores_contexts_and_gradients_equal_loops() -> None:
    """Additive vᵀ tanh(W s + U h + b) (Bahdanau), bilinear sᵀ W h and dot sᵀ h (Luong)."""
    for name in ("additive", "bilinear", "dot"):
        part, queries, keys = make(name)
        scores = part(queries, part.project(keys)).detach()
        assert scores.shape == (B, T, S)
        for r, i, j in product(range(B), range(T), range(S)):
            expected = one_score(part, queries[r, i].tolist(), keys[r, j].tolist())
            assert float(scores[r, i, j]) == pytest.approx(expected, abs=1e-10)
        # As a recurrent decoder asks: a state at a time, each step against the same keys
        ready = part.project(keys)
        before = ready.clone()
        whole = part(queries, ready)
        for t in range(T):
            torch.testing.assert_close(part(queries[:, t : t + 1], ready)[:, 0], whole[:, t], rtol=0, atol=1e-12)
        assert torch.equal(ready, before)
        # Encoder states are keys and values: c_i = Σ_j α_ij h_j over the real ones; what stands in padding is nothing
        context, weights = attend_scored(part(queries, part.project(keys)).detach(), keys, padding(REAL))
        for r, i in product(range(B), range(T)):
            summed = sum(float(weights[r, i, j]) * keys[r, j] for j in range(S) if REAL[r, j])
            torch.testing.assert_close(context[r, i], summed, rtol=0, atol=1e-12)
        noise = keys.masked_fill(~REAL[..., None], 1e6)
        again, _ = attend_scored(part(queries, part.project(noise)), noise, padding(REAL))
        torch.testing.assert_close(again, context, rtol=0, atol=1e-12)
        # Queries, keys as values, and all that is learned; the second source is empty

        def run(
            queries: Tensor, keys: Tensor, *_: Tensor, part: Part = part
        ) -> Tensor:  # the numbers learned are read where they stand
            return attend_scored(part(queries, part.project(keys)), keys, padding(torch.tensor([3, 0])))[0]

        inputs = (queries.requires_grad_(), keys.requires_grad_(), *part.parameters())
        assert torch.autograd.gradcheck(run, inputs)
        grads = torch.autograd.grad(run(*inputs).sum(), inputs[:2])
        assert all(bool((grad[1] == 0).all()) for grad in grads) and bool((grads[1][0, :3] != 0).all())


def expected_of(scores: Tensor, values: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor]:
    """Context and weights by loops; `allowed` (B,T,S)."""
    weights, context = torch.zeros_like(scores), torch.zeros(*scores.shape[:2], values.shape[-1], dtype=scores.dtype)
    for r, i in product(range(scores.shape[0]), range(scores.shape[1])):
        exps = {j: math.exp(float(scores[r, i, j])) for j in range(scores.shape[2]) if allowed[r, i, j]}
        for j, e in exps.items():
            weights[r, i, j] = e / sum(exps.values())
            context[r, i] += weights[r, i, j] * values[r, j]
    return context, weights


REAL = torch.arange(S) < torch.tensor([[5], [2]])
SOME = torch.tensor([[1, 0, 1, 1, 0], [0, 0, 0, 0, 0], [0, 1, 0, 0, 1]]).bool()
LENGTHS = torch.tensor([0, 3])
MASKS: dict[str, tuple[Mask | Tensor | None, Tensor]] = {  # what is given, and the (B,T,S) it means
    "none": (None, torch.ones(B, T, S).bool()),
    "(B,1,S)": (REAL[:, None], REAL[:, None].expand(B, T, S)),
    "(B,T,S), a row of nothing": (torch.stack([SOME, ~SOME]), torch.stack([SOME, ~SOME])),
    "(T,S)": (SOME, SOME.expand(B, T, S)),
    "padding": (padding(REAL), REAL[:, None].expand(B, T, S)),
    "lengths, an empty source": (padding(LENGTHS), (torch.arange(S) < LENGTHS.view(B, 1, 1)).expand(B, T, S)),
    "causal & padding": (causal() & padding(REAL), (causal() & padding(REAL)).dense(T, S)[:, 0]),
}


def test_a5_a10_context_and_weights_equal_loops_and_bilinear_dot_and_attention_each_other() -> None:
    """Masked positions get exactly 0, and a row that may attend to nothing is 0."""
    for name in MASKS:
        given_mask, allowed = MASKS[name]
        scores, values = random(B, T, S) * 3, random(B, S, D, seed=1)
        context, weights = attend_scored(scores, values, given_mask)
        expected = expected_of(scores, values, allowed)
        torch.testing.assert_close(context, expected[0], rtol=0, atol=1e-12)
        torch.testing.assert_close(weights, expected[1], rtol=0, atol=1e-12)
        assert bool((weights[~allowed] == 0).all()) and bool((context[~allowed.any(-1)] == 0).all())
        torch.testing.assert_close(weights.sum(-1), allowed.any(-1).double(), rtol=0, atol=1e-12)
        prepared = prepare_mask(allowed[:, None] if isinstance(given_mask, Tensor) else given_mask, T, S, scores.device)
        assert torch.equal(attend_scored(scores, values, prepared)[1], weights)  # a mask made ready once for all steps
    _, queries, keys = make("dot")
    part = BilinearScore(D, D).double()
    nn.init.eye_(part.key.weight)
    dot = DotScore()
    torch.testing.assert_close(part(queries, part.project(keys)), dot(queries, dot.project(keys)), rtol=0, atol=1e-12)
    values = random(B, S, 3, seed=2)
    scaled = DotScore(scale=D**-0.5)
    context, weights = attend_scored(scaled(queries, scaled.project(keys)), values)
    one_head = [x.unsqueeze(1) for x in (queries, keys, values)]
    torch.testing.assert_close(context, attend(*one_head)[:, 0], rtol=0, atol=1e-12)
    torch.testing.assert_close(weights, attention_weights(*one_head[:2])[:, 0], rtol=0, atol=1e-12)
    with pytest.raises(TypeError, match=r"a mask must be boolean, True = may attend: got torch\.float64"):
        attend_scored(random(B, T, S), random(B, S, D), torch.zeros(B, 1, S, dtype=torch.float64))


@settings(max_examples=40)
@given(b=st.integers(1, 3), t=st.integers(1, 4), s=st.integers(1, 6), seed=st.integers(0, 2**20), rows=st.booleans())
def test_a5_any_shape_and_any_mask(b: int, t: int, s: int, seed: int, rows: bool) -> None:
    """A mask of one row for all queries, or a row each; scores so large that a bare exp would overflow."""
    allowed = torch.rand(b, t if rows else 1, s, generator=torch.Generator().manual_seed(seed)) > 0.4
    scores, values = random(b, t, s, seed=seed), random(b, s, 2, seed=seed + 1)
    context, weights = attend_scored(scores, values, allowed)
    expected = expected_of(scores, values, allowed.expand(b, t, s))
    torch.testing.assert_close(context, expected[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(weights, expected[1], rtol=0, atol=1e-12)
    large, _ = attend_scored(scores * 1e5, values, allowed)
    assert bool(large.isfinite().all())
