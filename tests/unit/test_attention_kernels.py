"""The attention call: against two loops, the two kernels against each other, gradients, and what is refused."""

import math
import re
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from atento.attention import attend, attention_weights, kernels
from atento.attention.dropout import Randomness
from atento.attention.kernels import KERNELS, choose, choose_for_reading
from atento.attention.masks import Mask, bidirectional, causal, documents, lookahead, padding, predicate, prefix, window
from atento.attention.prepared_mask import AttentionArgs, prepare_mask
from atento.attention.relative import RelativeMatrix
from atento.attention.relative_terms import QueryKeyPositions, RelativeTerms
from failing import fails

B, H, T, S, K, KV = 2, 4, 3, 5, 3, 2
ON_CPU = ["plain", "fused", "blocked"]  # flex has no backward pass there; varlen knows few masks
lengths = st.tuples(st.integers(1, 6), st.integers(0, 4))
head_counts = st.sampled_from([(1, 1), (2, 1), (4, 2), (3, 3)])
DIVIDE = "key and value heads must be equal and divide the query heads: got "


def qkv(dtype: torch.dtype = torch.float64, *, t: int = T, s: int = S, kv_heads: int = H) -> Any:
    g = torch.Generator().manual_seed(0)
    sizes = (B, H, t, K), (B, kv_heads, s, K), (B, kv_heads, s, KV)
    return tuple(torch.randn(size, generator=g, dtype=torch.float64).to(dtype) for size in sizes)


def loops(q, k, v, allowed=None, bias=None, scale=None) -> tuple[Tensor, Tensor]:
    """Output and weights by loops over plain Python floats; nothing of the code under test."""
    (b, h, t, width), s, group = q.shape, k.shape[2], q.shape[1] // k.shape[1]
    scale = width**-0.5 if scale is None else scale
    out = torch.zeros(b, h, t, v.shape[-1], dtype=torch.float64)
    weights = torch.zeros(b, h, t, s, dtype=torch.float64)
    allowed = torch.ones(b, h, t, s, dtype=torch.bool) if allowed is None else allowed.expand(b, h, t, s)
    bias = torch.zeros(b, h, t, s) if bias is None else bias.expand(b, h, t, s)
    for r, head, i in product(range(b), range(h), range(t)):
        exps = {}
        for j in range(s):
            if allowed[r, head, i, j]:
                pairs = zip(q[r, head, i].tolist(), k[r, head // group, j].tolist())
                exps[j] = math.exp(sum(a * c for a, c in pairs) * scale + float(bias[r, head, i, j]))
        for j, e in exps.items():
            weights[r, head, i, j] = e / sum(exps.values())
            for d in range(v.shape[-1]):
                out[r, head, i, d] += weights[r, head, i, j] * v[r, head // group, j, d]
    return out, weights


MASKS: dict[str, Mask | Tensor | None] = {
    "none": None,
    "bidirectional": bidirectional(),
    "causal": causal(),
    "lookahead": lookahead(1),
    "prefix": prefix(2),
    "prefix per row": prefix(torch.tensor([1, 4])),
    "window": window(1, 1),
    "padding lengths": padding(torch.tensor([2, 5])),
    "padding boolean": padding(torch.arange(S) < torch.tensor([[5], [3]])),
    "documents": documents(torch.tensor([[0, 0, 1, 1, -1], [0, 1, 1, 1, 1]])),
    "per head": predicate(lambda b, h, q, k: (k + h) % 3 != 0, heads=H),
    "joined": causal() & padding(torch.tensor([3, 5])) | prefix(1),
    "not": ~causal(),
    "nothing for a row": padding(torch.tensor([0, 4])),
    "tensor (T,S)": torch.rand(T, S, generator=torch.Generator().manual_seed(3)) > 0.5,
    "tensor (B,1,1,S)": (torch.arange(S) < torch.tensor([[0], [4]]))[:, None, None],
    "tensor (B,H,T,S)": torch.rand(B, H, T, S, generator=torch.Generator().manual_seed(4)) > 0.6,
}


def dense(mask: Mask | Tensor | None, t: int = T, s: int = S) -> Tensor | None:
    return mask.dense(t, s) if isinstance(mask, Mask) else mask


@pytest.mark.parametrize("kernel", [*ON_CPU, "auto"])
@pytest.mark.parametrize("name", MASKS)
def test_a3_output_and_weights_equal_two_loops(name: str, kernel: str) -> None:
    """A3, every kind of mask, float64 1e-10; weights sum to 1, or to 0 where nothing may be attended to."""
    (q, k, v), mask = qkv(), MASKS[name]
    out, weights = loops(q, k, v, dense(mask))
    torch.testing.assert_close(attend(q, k, v, mask=mask, kernel=kernel), out, rtol=0, atol=1e-10)
    seen = attention_weights(q, k, mask=mask)
    torch.testing.assert_close(seen, weights, rtol=0, atol=1e-10)
    sums = seen.sum(-1)
    assert bool((seen >= 0).all()) and bool((((sums - 1).abs() < 1e-12) | (sums == 0)).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", MASKS)
def test_a3_all_kernels_agree_with_gradients(name: str, dtype: torch.dtype) -> None:
    """float32 1e-5, float64 1e-10: outputs, and gradients of q, k, v (fewer heads) and the bias, all of them finite."""
    atol = 1e-5 if dtype == torch.float32 else 1e-10
    bias = torch.randn(1, H, T, S, generator=torch.Generator().manual_seed(9), dtype=dtype)
    results = []
    for kernel in ON_CPU:
        q, k, v, own_bias = leaves = [x.requires_grad_() for x in (*qkv(dtype, kv_heads=2), bias.clone())]
        out = attend(q, k, v, mask=MASKS[name], bias=own_bias, kernel=kernel)
        (out * torch.arange(out.numel(), dtype=dtype).view_as(out).sin()).sum().backward()
        results.append([out.detach(), *(x.grad for x in leaves)])
    for plain, *others in zip(*results):
        assert bool(plain.isfinite().all())
        for other in others:
            torch.testing.assert_close(other, plain, rtol=0, atol=atol)


@pytest.mark.parametrize("kernel", ON_CPU)
@pytest.mark.parametrize("bias_of_infinity", [False, True])
def test_a3_a_row_that_sees_nothing_gives_zero_and_finite_gradients(kernel: str, bias_of_infinity: bool) -> None:
    """The second sentence is all padding, and the first query of the first is forbidden everything."""
    q, k, v = leaves = [x.requires_grad_() for x in qkv()]
    mask = padding(torch.tensor([S, 0])) & predicate(lambda b, h, i, j: i > S - T, "not the first")
    bias = torch.zeros(1, 1, T, S, dtype=q.dtype)
    if bias_of_infinity:
        bias[..., 0, :] = float("-inf")
    out = attend(q, k, v, mask=mask, bias=bias, kernel=kernel)
    out.sum().backward()
    assert bool((out[1] == 0).all()) and bool((out[0, :, 0] == 0).all())
    assert bool((out[0, :, 1:] != 0).all())
    for leaf in leaves:
        assert bool(leaf.grad.isfinite().all()) and bool((leaf.grad[1] == 0).all())
    assert bool((attention_weights(q, k, mask=mask)[1] == 0).all())


@pytest.mark.parametrize("kernel", ON_CPU)
@pytest.mark.parametrize("shape", [(B, H, T, S), (1, H, T, S), (B, 1, T, S), (1, 1, 1, S)])
def test_a_bias_is_added_to_the_scores_after_scaling_beside_any_mask(kernel: str, shape: tuple[int, ...]) -> None:
    for mask, t in ((None, T), (padding(torch.tensor([0, 3])), T), (causal(), S), (causal(), T), (causal(), 1)):
        q, k, v = qkv(t=t)
        size = [t if n == T else n for n in shape]
        bias = torch.randn(size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        out, weights = loops(q, k, v, dense(mask, t), bias)
        got = attend(q, k, v, mask=mask, bias=bias, kernel=kernel)
        torch.testing.assert_close(got, out, rtol=0, atol=1e-10)
        torch.testing.assert_close(attention_weights(q, k, mask=mask, bias=bias), weights, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kernel", ON_CPU)
def test_a4_scale_one_is_the_plain_dot_product(kernel: str) -> None:
    """A4: equals A3 with √d_k removed, that is A3 on queries made √d_k longer."""
    q, k, v = qkv()
    out, weights = loops(q, k, v, scale=1.0)
    torch.testing.assert_close(attend(q, k, v, scale=1.0, kernel=kernel), out, rtol=0, atol=1e-10)
    torch.testing.assert_close(attend(q * K**0.5, k, v, kernel=kernel), out, rtol=0, atol=1e-10)
    torch.testing.assert_close(attention_weights(q, k, scale=1.0), weights, rtol=0, atol=1e-10)


@pytest.mark.parametrize("shape", [(T, S, KV), (1, H, T, S, KV), (B, 1, T, S, KV), (B, H, T, S, KV)])
def test_b5_a_value_bias_is_weighted_and_added(shape: tuple[int, ...]) -> None:
    """Shaw's second term: Σ_j α_ij b_ij, one vector a pair of positions, for each row and head its own if given so."""
    q, k, v = qkv()
    value_bias = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    out, weights = loops(q, k, v)
    full = value_bias.expand(B, H, T, S, KV)
    for r, head, i in product(range(B), range(H), range(T)):
        out[r, head, i] += sum(weights[r, head, i, j] * full[r, head, i, j] for j in range(S))
    torch.testing.assert_close(attend(q, k, v, value_bias=value_bias), out, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kernel", ON_CPU)
@pytest.mark.parametrize("mask", [causal(), lookahead(1), window(2, 0), prefix(2)], ids=repr)
def test_a12_query_i_stands_at_key_s_minus_t_plus_i(kernel: str, mask: Mask) -> None:
    """The last rows of the whole matrix are what the same mask gives for the last queries alone, one step too."""
    q, k, v = qkv(t=S)
    whole = attend(q, k, v, mask=mask, kernel=kernel)
    for t in range(1, S + 1):
        last = attend(q[:, :, -t:], k, v, mask=mask, kernel=kernel)
        torch.testing.assert_close(last, whole[:, :, -t:], rtol=0, atol=1e-10)
    out = attend(q, k[:, :, :2], v[:, :, :2], mask=causal(), kernel=kernel)
    assert bool((out[:, :, :3] == 0).all())  # before the first key
    torch.testing.assert_close(out[:, :, 3], v[:, :, 0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("kernel", [*ON_CPU, "auto"])
@pytest.mark.parametrize("name", ["none", "causal", "joined", "nothing for a row"])
def test_bfloat16_stays_within_its_rounding(kernel: str, name: str) -> None:
    """Eight bits of precision: outputs of size about 1 are right to a few hundredths; 4,096 weights sum to 1."""
    q, k, v = qkv(torch.bfloat16)
    out, _ = loops(q.double(), k.double(), v.double(), dense(MASKS[name]))
    got = attend(q, k, v, mask=MASKS[name], kernel=kernel)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.double(), out, rtol=2**-7, atol=2**-6)
    assert attention_weights(q, k).dtype == torch.float32
    k = torch.zeros(1, 1, 4096, 8, dtype=torch.bfloat16)
    assert float(attention_weights(k[:, :, :1], k).sum()) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("rows", [torch.tensor([2, 0]), slice(1, 3), torch.tensor([1]), torch.tensor([-1])], ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_rows_of_the_weights_are_the_rows_of_all_weights(name: str, rows: Tensor | slice) -> None:
    """Masks whose one row stands for all queries included."""
    q, k, _ = qkv()
    bias = torch.randn(1, H, T, S, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for own in (None, bias, bias[:, :, :1]):
        whole = attention_weights(q, k, mask=MASKS[name], bias=own)
        some = attention_weights(q, k, mask=MASKS[name], bias=own, rows=rows)
        torch.testing.assert_close(some, whole[:, :, rows], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kernel", [*ON_CPU, "auto"])
@pytest.mark.parametrize("scale", [None, 4.0])
def test_a3_w10_float16_scores_do_not_overflow(kernel: str, scale: float | None) -> None:
    """Scores of some 400,000, past the largest number of float16: the result is float64's, rounded to float16."""
    given = [(x * 400).half() for x in qkv(t=S)]
    q, k, v = (x.clone().requires_grad_() for x in given)
    out = attend(q, k, v, mask=causal(), scale=scale, kernel=kernel)
    scores = given[0].double() @ given[1].double().mT * (K**-0.5 if scale is None else scale)
    weights = scores.masked_fill(~causal().dense(S, S), -math.inf).softmax(dim=-1)
    assert out.dtype == torch.float16 and float(scores.abs().max()) > 65_504
    torch.testing.assert_close(out.double(), weights @ given[2].double(), rtol=2**-10, atol=2**-10)
    out.float().sum().backward()
    assert all(x.grad is not None and bool(x.grad.isfinite().all()) for x in (q, k, v))
    found = attention_weights(*given[:2], mask=causal(), scale=scale)
    torch.testing.assert_close(found.double(), weights, rtol=1e-3, atol=1e-3)
    assert bool(attend(*(x * 1e4 for x in qkv(torch.float32)), mask=causal(), kernel=kernel).isfinite().all())


@settings(max_examples=40)
@given(lengths, head_counts, st.integers(1, 5), st.integers(0, 2**20), st.sampled_from(ON_CPU))
def test_a3_any_shape_grouped_heads_any_mask(sizes: Any, heads: Any, width: int, seed: int, kernel: str) -> None:
    g = torch.Generator().manual_seed(seed)
    t, s = sizes[0], sum(sizes)
    q = torch.randn(2, heads[0], t, width, generator=g, dtype=torch.float64)
    k, v = torch.randn(2, 2, heads[1], s, width, generator=g, dtype=torch.float64)
    mask = torch.rand(2, 1, t, s, generator=g) > 0.5
    out, weights = loops(q, k, v, mask)
    torch.testing.assert_close(attend(q, k, v, mask=mask, kernel=kernel), out, rtol=0, atol=1e-10)
    torch.testing.assert_close(attention_weights(q, k, mask=mask), weights, rtol=0, atol=1e-10)


def of_heads(query: int, keys: int, values: int) -> dict[str, Tensor]:
    return {name: torch.zeros(1, heads, 2, 3) for name, heads in zip("qkv", (query, keys, values))}


def test_what_does_not_go_together_is_refused() -> None:
    for change, message in (
        ({"q": np.zeros((1, 2, 3, 4))}, "`q` must be a tensor (B,H,L,K): got ndarray"),
        ({"k": torch.zeros(2, 3, 4)}, "`k` must have four dimensions (B,H,L,K): got (2, 3, 4)"),
        ({"v": torch.zeros(1, 2, 3, 4).double()}, "the same dtype: got torch.float32, torch.float32 and torch.float64"),
        ({"k": torch.zeros(1, 2, 3, 5)}, "queries and keys must have the same width, 1 or more: got 4 and 5"),
        ({"q": torch.zeros(1, 2, 3, 0), "k": torch.zeros(1, 2, 3, 0)}, "the same width, 1 or more: got 0 and 0"),
        ({"v": torch.zeros(1, 2, 5, 4)}, "there must be a value for each key: got 3 keys and 5 values"),
        ({"mask": causal}, "a mask is a value: call the function, as in mask=causal()"),
        ({"mask": torch.zeros(3, 3).double()}, "a mask must be boolean, True = may attend: got torch.float64"),
        ({"kernel": 3}, "unknown kernel 3. Known: "),
        ({"kernel": "fuse"}, "unknown kernel 'fuse'; did you mean 'fused'? Known: auto, blocked, flex, fused, narrow,"),
        ({"v": torch.zeros(2, 2, 3, 4)}, "batch rows of q, k and v must agree, or be 1: got 1, 1 and 2"),
        ({"mask": padding(torch.tensor([1, 2]))}, "the mask padding is for 2 batch rows: got 1"),
        ({"mask": torch.ones(2, 1, 3, 3).bool()}, "`mask` must broadcast to (1, 2, 3, 3), (B,H,T,S): got (2, 1, 3, 3)"),
        ({"bias": torch.zeros(3, 3, 3)}, "`bias` must broadcast to (1, 2, 3, 3), (B,H,T,S): got (3, 3, 3)"),
        ({"scale": float("nan")}, "`scale` must be finite: got nan"),
        *((of_heads(4, 3, 3), DIVIDE + "3, 3 and 4"), (of_heads(4, 2, 4), DIVIDE + "2, 4 and 4")),
        (of_heads(2, 4, 4), DIVIDE + "4, 4 and 2"),
    ):
        with pytest.raises((TypeError, ValueError), match=re.escape(message)):
            attend(**{name: torch.zeros(1, 2, 3, 4) for name in "qkv"} | change)
    fails(TypeError, r"got torch\.int64", attention_weights, *qkv()[:2], mask=torch.ones(T, S, dtype=torch.long))


@pytest.mark.parametrize("kernel", ["auto", "plain", "fused", "blocked"])
def test_one_row_of_queries_may_read_many_rows_of_keys_and_a_scale_of_nothing_weighs_alike(kernel: str) -> None:
    """And a bias may leave out the dimensions that it does not differ in."""
    q, k, v = (torch.randn(n, 2, 30, 4, generator=torch.Generator().manual_seed(n)) for n in (1, 5, 5))
    mask, bias = padding(torch.tensor([3, 9, 30, 1, 7])), torch.linspace(0, 1, 30)
    found = attend(q, k, v, mask=mask, bias=bias, kernel=kernel)
    alone = [attend(q, k[n : n + 1], v[n : n + 1], mask=mask.dense(1, 30)[n : n + 1], bias=bias) for n in range(5)]
    torch.testing.assert_close(found, torch.cat(alone))
    # PyTorch's fused kernel gives NaN where the scale is 0
    q, k, v = (torch.randn(1, 2, 600, 4, generator=torch.Generator().manual_seed(n)) for n in range(3))
    added = RelativeTerms((RelativeMatrix(2),), QueryKeyPositions.arange(600, 600))
    found = attend(q, k, v, scale=0, relative=added, kernel=kernel)
    torch.testing.assert_close(found, v.mean(dim=2, keepdim=True).expand_as(v))
    found = attend(q, k, v, mask=causal(), scale=0, kernel=kernel)
    torch.testing.assert_close(found, v.cumsum(dim=2) / torch.arange(1, 601).view(-1, 1))


def test_the_fused_kernel_refuses_what_it_cannot_do_and_auto_never_asks_it() -> None:
    q, k, v = qkv()
    message = "the fused kernel adds nothing to values, and drops weights on a GPU alone; use kernel='plain'"
    for extra in ({"dropout": 0.5}, {"value_bias": torch.zeros(T, S, KV, dtype=torch.float64)}):
        fails(ValueError, message, attend, q, k, v, kernel="fused", **extra)
        attend(q, k, v, kernel="auto", **extra)
    long = torch.zeros(1, 1, 128, 4)
    everything = prepare_mask(None, 128, 128, torch.device("cpu"))

    def chosen(value_bias: Tensor | None, dropout: float) -> str:
        return choose(long, long, AttentionArgs(everything, None, value_bias, None, 0.5, dropout, None))

    assert chosen(None, 0.0) == "fused"
    assert chosen(None, 0.1) == chosen(torch.zeros(128, 128, 4), 0.0) == "plain"


def test_with_amx_reading_is_fused_but_where_strips_skip_keys_or_no_mask_is(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    near, every = prepare_mask(window(4, 4), 600, 600, cpu), prepare_mask(None, 600, 600, cpu)
    monkeypatch.setattr(kernels, "has_tiles", lambda: True)
    assert [choose_for_reading(length, near, None) for length in (7, 512, 600)] == ["fused", "fused", "auto"]
    assert choose_for_reading(600, every, None) == "fused"
    monkeypatch.setattr(kernels, "has_tiles", lambda: False)
    assert choose_for_reading(7, every, None) == "auto"
    assert prepare_mask(None, T, S, cpu).allowed is prepare_mask(bidirectional(), T, S, cpu).allowed is None
    assert prepare_mask(causal(), 1, S, cpu).allowed is None  # the last query sees every key
    assert prepare_mask(causal(), T, T, cpu).is_causal and not prepare_mask(causal(), T, S, cpu).is_causal
    once = prepare_mask(causal() & padding(torch.tensor([1, 2])), T, S, cpu)
    assert prepare_mask(once, T, S, cpu) is once
    # one row stands for all
    assert prepare_mask(padding(torch.tensor([1, 2])), T, S, cpu).allowed.shape == (2, 1, 1, S)


def test_dropout_acts_on_the_weights_and_keeps_the_mean() -> None:
    """Values of 1: without dropout every output is exactly 1; with it 1 on average, and 0 where all weights fell."""
    q, k, _ = qkv(torch.float32, t=40, s=40)
    v = torch.ones(B, H, 40, 1)
    out = attend(q, k, v, dropout=0.5, random=Randomness(7))
    assert float(out.std()) > 0.05 and float(out.mean()) == pytest.approx(1, abs=0.05)
    assert bool((out == attend(q, k, v, dropout=0.5, random=Randomness(7))).all())
    assert bool((out != attend(q, k, v, dropout=0.5, random=Randomness(8))).any())
    torch.manual_seed(1)  # without `random`, PyTorch's own generator decides
    first = attend(q, k, v, dropout=0.5)
    torch.manual_seed(1)
    assert bool((first == attend(q, k, v, dropout=0.5)).all()) and bool((first != attend(q, k, v, dropout=0.5)).any())


def test_a1_a13_l1_causal_attention_order_and_the_worked_example_of_the_notes() -> None:
    """S4 says invariant; f(PX) = P f(X), and not f(X)."""
    x = torch.randn(1, 1, 6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    moved = attend(x[:, :, order], x[:, :, order], x[:, :, order])
    torch.testing.assert_close(moved, attend(x, x, x)[:, :, order], rtol=0, atol=1e-12)
    assert float((moved - attend(x, x, x)).abs().max()) > 1e-3
    # A1: score x_i·x_j over j ≤ i, itself included; three vectors worked out here with a calculator's steps
    x = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]], dtype=torch.float64)[None, None]
    weights = attention_weights(x, x, mask=causal(), scale=1.0)[0, 0]
    e = math.exp
    second, third = (1, e(4), 0), (e(1), e(2), e(2))
    expected = [[1, 0, 0], [term / (1 + e(4)) for term in second], [term / (e(1) + 2 * e(2)) for term in third]]
    torch.testing.assert_close(weights, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)
    assert [int((row > 0).sum()) for row in weights] == [1, 2, 3]
    # section 3: .264458 .264458 .471083, where the notes have .20 .20 .60
    x = torch.eye(3, dtype=torch.float64)
    weights = attention_weights(x[None, None], (x @ x[[2, 0, 1]].T)[None, None])[0, 0]
    assert sorted(round(w, 6) for w in weights[0].tolist()) == [0.264458, 0.264458, 0.471083]
    assert bool((weights.sum(0) - 1 < 1e-12).all())


@pytest.mark.parametrize("name", MASKS)
def test_flex_attention_equals_plain(name: str) -> None:
    """Forward only, uncompiled: FlexAttention has no backward pass on a CPU."""
    q, k, v = (x.expand(B, H, -1, 16) for x in (one.repeat(1, 1, 1, 16)[..., :16] for one in qkv(torch.float32)))
    bias = torch.randn(1, H, T, S, generator=torch.Generator().manual_seed(9))
    for own in (None, bias):
        expected = attend(q, k, v, mask=MASKS[name], bias=own, kernel="plain")
        got = attend(q, k, v, mask=MASKS[name], bias=own, kernel="flex")
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


def check_dropout(place: str, dtype: torch.dtype = torch.float32) -> None:
    """PyTorch's kernel drops a share p of the weights, by a seed of ours; its gradients are of the weights it kept."""
    keys = torch.zeros(8, 4, 64, 64, dtype=dtype)  # all weights are equal
    leaves = (keys[:, :, :16] + 1, keys, torch.eye(64, dtype=dtype).repeat(8, 4, 1, 1))
    q, k, v = (x.to(place).requires_grad_() for x in leaves)
    padded = (torch.arange(64) < 60).view(1, 1, 1, 64).to(place)
    drawn = [
        attend(q, k, v, mask=padded, dropout=0.25, random=Randomness(1, step, use=use))
        for step, use in ((1, 0), (1, 0), (1, 1), (2, 0))
    ]
    same, *others = ((out == drawn[0]).all().item() for out in drawn[1:])
    assert same and not any(others)
    assert (drawn[0][..., :60] == 0).double().mean().item() == pytest.approx(0.25, abs=0.01)
    assert (drawn[0][..., 60:] == 0).all()
    weights = drawn[0].double().sum(dim=2).detach().cpu()  # of each key, over all queries
    found = torch.autograd.grad(drawn[0].sum(), v)[0][..., 0].double().cpu()
    torch.testing.assert_close(found, weights, rtol=0.02, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dropout_of_attention_on_a_gpu(dtype: torch.dtype) -> None:
    state = torch.cuda.get_rng_state()
    check_dropout("cuda", dtype)
    assert torch.equal(torch.cuda.get_rng_state(), state)


@pytest.mark.gpu
@pytest.mark.parametrize("name", MASKS)
def test_all_kernels_agree_on_a_gpu(name: str) -> None:
    """Outputs and gradients in float32, flex compiled."""
    results = []
    for kernel in [name for name in KERNELS if name != "varlen"]:  # in 16 bits only: test_narrow_attention
        g = torch.Generator().manual_seed(1)
        q, k, v = (torch.randn(B, H, n, 16, generator=g).cuda().requires_grad_() for n in (T, S, S))
        mask = MASKS[name]
        out = attend(q, k, v, mask=mask.cuda() if isinstance(mask, Tensor) else mask, kernel=kernel)
        out.square().sum().backward()
        results.append([out.detach(), *(x.grad for x in (q, k, v))])
    for plain, *others in zip(*results):
        for other in others:
            torch.testing.assert_close(other, plain, rtol=0, atol=1e-3)
