"""The blocked kernel against the plain equation: every mask, bias, scheme and dropout, gradients, and its memory."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from atento.attention import attend, attention_weights, masks, query_blocks
from atento.attention.algebra import count
from atento.attention.dropout import Randomness, pair_dropout
from atento.attention.prepared_mask import prepare_mask
from atento.attention.relative import ALiBi, Gated, RelativeMatrix, Shaw, T5Bias
from atento.attention.relative_terms import QueryKeyPositions, RelativeTerms
from failing import fails
from tensors import Largest
from tensors import normal as some

B, H, S, K = 2, 2, 37, 4
LENGTHS = [S, 21, 45]  # as many queries as keys, fewer (the last ones of a cache), more (the first see what few may)
CPU = torch.device("cpu")
LONG = [None, masks.causal(), masks.window(64, 64) | masks.global_tokens(2)]
LONG.append(masks.documents(torch.arange(1024).view(1, -1) // 150))


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def chance(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=seeded(seed)) > 0.6


PACKED = torch.tensor([[0] * 9 + [1] * 20 + [-1] * 8, [-1] * 18 + [0] * 3 + [1] * 16])
MASKS: dict[str, masks.Mask | None] = {
    "none": None,
    "bidirectional": masks.bidirectional(),
    "causal": masks.causal(),
    "lookahead": masks.lookahead(3),
    "prefix": masks.prefix(9),
    "prefix by row": masks.prefix(torch.tensor([3, 30])),
    "window": masks.window(4, 2),
    "dilated": masks.dilated(4),
    "dilated near": masks.dilated(3, 7),
    "global tokens": masks.global_tokens([0, 5, 33]),
    "window and global tokens": masks.window(2, 2) | masks.global_tokens([0, 20]),
    "pairs": masks.causal() | masks.allowed_pairs({(0, 30), (12, 36)}),
    "squares": masks.blocks(chance(5, 5), 8),
    "squares by head": masks.blocks(chance(H, 4, 4, seed=1), 10),
    "by head": masks.per_head([masks.window(3, 0), masks.dilated(2)]),
    "by head, padded": masks.per_head([masks.causal(), masks.global_tokens(2)]) & masks.padding(torch.tensor([S, 30])),
    "padding lengths": masks.padding(torch.tensor([20, S])),
    "padding boolean": masks.padding(chance(B, S, seed=2)),
    "a row of padding": masks.padding(torch.tensor([0, S])),
    "documents": masks.documents(PACKED),
    "documents, causal": masks.documents(PACKED) & masks.causal(),
    "documents of all rows": masks.documents(PACKED[:1]) & masks.prefix(torch.tensor([3, 30])),
    "not causal": ~masks.causal(),
    "heads of one's own": masks.predicate(lambda b, h, q, k: (q + k + h) % 3 == 0, heads=H),
}
# a scheme or none, made anew for each kernel
SCHEMES: dict[str, Callable[[], nn.Module]] = {
    "T5": lambda: T5Bias(H, 8, 16),
    "ALiBi": lambda: ALiBi(H),
    "matrix": lambda: RelativeMatrix(H, 6),
    "Shaw": lambda: Shaw(K, 5),
    "Shaw without values": lambda: Shaw(K, 5, values=False),
    "gated": lambda: Gated(Shaw(K, 3), H, (0,), learned=True),
}


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 16 queries, the fewest there are: every case here takes several, the last one ragged."""
    monkeypatch.setattr(query_blocks, "_PART_SCORES", 1)


def made(names: tuple[str, ...], dtype: torch.dtype) -> list[nn.Module]:
    torch.manual_seed(0)
    return [SCHEMES[name]().to(dtype) for name in names]


def run(kernel, mask, t=S, *, dtype=torch.float64, bias=None, schemes=(), positions=None, dropout=0.0):
    """The output, and the gradients of everything that has one, by name."""
    leaves = {name: some(B, H, n, K, seed=seed, dtype=dtype) for seed, (name, n) in enumerate(zip("qkv", (t, S, S)))}
    if bias is not None:
        leaves["bias"] = bias.to(dtype, copy=True)
    for leaf in leaves.values():
        leaf.requires_grad_()
    modules = made(schemes, dtype)
    relative = RelativeTerms(tuple(modules), positions or QueryKeyPositions.arange(t, S)) if modules else None  # type: ignore[arg-type]
    q, k, v, own = (leaves.get(name) for name in ("q", "k", "v", "bias"))
    more: Any = {"dropout": dropout, "random": Randomness(5), "kernel": kernel}
    out = attend(q, k, v, mask=mask, bias=own, relative=relative, **more)
    (out * some(*out.shape, seed=3, dtype=dtype)).sum().backward()
    found = {"out": out.detach()} | {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
    for number, module in enumerate(modules):
        found |= {f"{number}.{n}": p.grad for n, p in module.named_parameters() if p.grad is not None}
    return found


def assert_equal(mask, t=S, *, atol=1e-10, **extra) -> None:
    """Blocked equals plain, in output and in every gradient; nothing is NaN."""
    plain, other = run("plain", mask, t, **extra), run("blocked", mask, t, **extra)
    assert plain.keys() == other.keys() and plain.keys() >= {"out", "q", "k", "v"}
    for name, expected in plain.items():
        assert bool(expected.isfinite().all()), name
        torch.testing.assert_close(other[name], expected, rtol=0, atol=atol, msg=f"{name} differs")


@pytest.mark.covering
@pytest.mark.parametrize("t", LENGTHS)
@pytest.mark.parametrize("name", MASKS)
def test_a19_equals_the_plain_equation_for_every_mask_with_bias_positions_and_dropout(name: str, t: int) -> None:
    """Outputs and gradients, float64 1e-10 and float32 1e-5, block by block."""
    assert_equal(MASKS[name], t)
    assert_equal(MASKS[name], t, atol=1e-5, dtype=torch.float32)
    # all that a block must cut out at its own queries and keys, and the gradients of all that is learned
    assert_equal(MASKS[name], t, bias=some(1, H, t, S, seed=6), schemes=("T5", "Shaw"), dropout=0.25)


@pytest.mark.parametrize("shape", [(S, S), (1, S), (S, 1), (B, 1, 1, S), (B, H, S, S), (1, H, S, S)], ids=str)
def test_a19_equals_the_plain_equation_for_tensors_as_masks(shape: tuple[int, ...]) -> None:
    assert_equal(chance(*shape, seed=4), schemes=("T5",), dropout=0.3)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", ["none", "causal", "window and global tokens", "squares by head", "documents"])
def test_b_each_relative_scheme_by_itself_also_at_places_that_differ_by_row(name: str, scheme: str) -> None:
    """Packed texts count from 0 again, in each row elsewhere."""
    at = torch.stack([torch.arange(S) % 9, (torch.arange(S) * 3) % 20])
    for positions in (None, QueryKeyPositions(at, at, consecutive=False)):
        assert_equal(MASKS[name], schemes=(scheme,), positions=positions)


@pytest.mark.covering(2)
@pytest.mark.parametrize("shape", [(B, H), (1, H), (B, 1), (1, 1), ()], ids=str)
@pytest.mark.parametrize("of_queries", [True, False])
@pytest.mark.parametrize("name", ["none", "causal", "window and global tokens", "squares", "documents"])
def test_a19_a_bias_of_any_shape_and_its_gradient(name: str, of_queries: bool, shape: tuple[int, ...]) -> None:
    """(B|1,H|1,T|1,S), and (T,S) alone: a part that blocks share sums what they give."""
    assert_equal(MASKS[name], bias=some(*shape, S if of_queries else 1, S, seed=7))


@pytest.mark.parametrize("name", MASKS)
def test_a19_a_pair_is_dropped_here_if_it_is_dropped_there(name: str) -> None:
    """Values that are the identity show the dropped weights themselves: the same pairs in both, and as drawn."""
    q, k = some(B, H, S, K), some(B, H, S, K, seed=1)
    v = torch.eye(S, dtype=torch.float64).expand(B, H, S, S)
    kernels, options = ("plain", "blocked"), {"mask": MASKS[name], "dropout": 0.4}
    plain, other = (attend(q, k, v, random=Randomness(9), kernel=kernel, **options) for kernel in kernels)
    weights = attention_weights(q, k, mask=MASKS[name])
    drawn = pair_dropout(weights, 0.4, Randomness(9).key())
    assert torch.equal(plain == 0, other == 0)
    assert torch.equal(other == 0, (weights == 0) | (drawn == 0))
    assert bool(((weights > 0) & (drawn == 0)).any())
    torch.testing.assert_close(other, weights * drawn, rtol=0, atol=1e-12)


def test_a19_dropout_without_randomness_draws_from_pytorch_once() -> None:
    q, k, v = some(B, H, S, K), some(B, H, S, K, seed=1), some(B, H, S, K, seed=2)
    outs = []
    for kernel in ("plain", "blocked", "blocked"):
        torch.manual_seed(1)
        outs.append(attend(q, k, v, dropout=0.4, kernel=kernel))
    torch.testing.assert_close(outs[1], outs[0], rtol=0, atol=1e-12)
    assert torch.equal(outs[1], outs[2])
    assert not torch.equal(outs[1], attend(q, k, v, dropout=0.4, kernel="blocked"))


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a19_rows_that_see_nothing_are_zero_with_finite_gradients(dropout: float) -> None:
    """A whole row of the batch, whole blocks, and single queries within a block; never NaN."""
    lone = masks.predicate(lambda b, h, q, k: q % 5 != 0, "not every fifth") & masks.window(2, 2)
    nothing = masks.predicate(lambda b, h, q, k: k < 0, "nothing")
    packed, padded = masks.documents(PACKED), masks.padding(torch.tensor([0, S])) & lone
    for mask in (lone, packed, padded, nothing, masks.documents(PACKED * 0 - 1)):
        found = run("blocked", mask, bias=some(1, H, S, S), schemes=("T5", "Shaw"), dropout=dropout)
        empty = ~mask.dense(S).expand(B, H, S, S).any(-1)
        assert bool(empty.any()) and all(bool(x.isfinite().all()) for x in found.values())
        for name in ("out", "q"):
            assert bool((found[name][empty] == 0).all())
            assert bool(empty.all()) or bool((found[name][~empty] != 0).any())


@settings(max_examples=40)
@given(
    b=st.integers(1, 3),
    heads=st.sampled_from([(1, 1), (2, 1), (4, 2)]),
    t=st.integers(0, 50),
    s=st.integers(1, 50),
    seed=st.integers(0, 2**20),
)
def test_a19_any_shape_grouped_heads_and_any_mask(b: int, heads: tuple[int, int], t: int, s: int, seed: int) -> None:
    q, k, v = some(b, heads[0], t, 3, seed=seed), some(b, heads[1], s, 3, seed=seed + 1), some(b, heads[1], s, 2)
    mask = torch.rand(b, 1, t, s, generator=seeded(seed)) > 0.5
    ids = torch.randint(-1, 3, (b, s), generator=seeded(seed)).sort().values
    for one in (mask, masks.documents(ids), masks.window(3, 1)):
        kernels, options = ("plain", "blocked"), {"mask": one, "dropout": 0.3}
        plain, other = (attend(q, k, v, random=Randomness(seed), kernel=kernel, **options) for kernel in kernels)
        torch.testing.assert_close(other, plain, rtol=0, atol=1e-10)


def test_a19_what_asks_for_no_gradient_gets_none() -> None:
    """A frozen scheme, a constant bias, queries alone."""
    q, k, v = some(B, H, S, K).requires_grad_(), some(B, H, S, K, seed=1), some(B, H, S, K, seed=2)
    (module,) = made(("T5",), torch.float64)
    relative = RelativeTerms((module.requires_grad_(False),), QueryKeyPositions.arange(S, S))  # type: ignore[arg-type]
    bias, grads = some(1, H, S, S), list[Tensor]()
    for kernel in ("plain", "blocked"):
        out = attend(q, k, v, mask=masks.causal(), bias=bias, relative=relative, kernel=kernel)
        grads += torch.autograd.grad(out.sin().sum(), q)
    torch.testing.assert_close(grads[1], grads[0], rtol=0, atol=1e-10)
    assert k.grad is v.grad is bias.grad is None and all(p.grad is None for p in module.parameters())
    with torch.no_grad():
        assert not attend(q, k, v, mask=masks.causal(), kernel="blocked").requires_grad


def test_a19_sums_over_many_blocks_are_right_in_sixteen_bits_and_no_square_is_made() -> None:
    """8,192 queries look evenly at 8 keys: each value's gradient is 1,024; bfloat16 counts by 2 no further than 512."""
    q, k = torch.zeros(1, 1, 8192, 2, dtype=torch.bfloat16), torch.zeros(1, 1, 8, 2, dtype=torch.bfloat16)
    v, bias = torch.ones_like(k).requires_grad_(), torch.zeros(1, 1, 1, 8, dtype=torch.bfloat16)
    attend(q, k, v, bias=bias, kernel="blocked").sum().backward()
    assert v.grad is not None and v.grad.dtype == torch.bfloat16 and v.grad.unique().tolist() == [1024]
    for mask in (masks.causal(), masks.documents(PACKED), MASKS["squares"], MASKS["by head, padded"]):
        prepared = prepare_mask(mask, S, S, CPU)
        found = run("blocked", prepared, bias=some(1, H, S, S), schemes=("T5",), dropout=0.1)
        assert not {"allowed", "bias", "empty"} & vars(prepared).keys()
        for name, expected in run("plain", prepared, bias=some(1, H, S, S), schemes=("T5",), dropout=0.1).items():
            torch.testing.assert_close(found[name], expected, rtol=0, atol=1e-10)
        assert {"allowed", "bias", "empty"} <= vars(prepared).keys()


def blocks_of(mask: masks.Mask | None, n: int, batch: int = 1, n_heads: int = 1) -> list[query_blocks.QueryBlock]:
    call = query_blocks.QueryBlockCall(prepare_mask(mask, n, n, CPU), None, 1.0, 0.0, 0, (n, n))
    return list(query_blocks.query_blocks(call, batch, n_heads))


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("size", [1, 1 << 10, 1 << 14])
def test_a19_blocks_cover_what_sees_something_once(name: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_blocks, "_PART_SCORES", size)
    mask = MASKS[name]
    found = blocks_of(mask, S, B, H)
    assert all(count(block.keys) > 0 for block in found)
    sees = torch.ones(B, S).bool() if mask is None else mask.dense(S).expand(B, H, S, S).any(-1).any(1)
    for row in range(B):
        own = [block.queries for block in found if block.row in (None, row)]
        assert all(one.stop <= two.start for one, two in pairwise(own))
        covered = {query for queries in own for query in range(queries.start, queries.stop)}
        assert {query for query in range(S) if sees[row, query]} <= covered


def test_a19_work_grows_with_what_the_mask_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores made for 4,096 positions: half for causal, little for a window or packed texts; blocks stay small."""
    monkeypatch.setattr(query_blocks, "_PART_SCORES", 1 << 16)
    n, kept = 4096, masks.blocks(torch.eye(64).bool(), 64)
    packed = masks.documents(torch.arange(n).view(1, -1) // 128)
    narrow = dict.fromkeys((masks.window(64, 64), packed, kept, masks.window(9, 9) | masks.global_tokens(1)), 0.2)
    for mask, share in ({None: 1.0, masks.causal(): 0.52} | narrow).items():
        scores = [(block.queries.stop - block.queries.start) * count(block.keys) for block in blocks_of(mask, n)]
        assert sum(scores) <= share * n * n and max(scores) <= 4 << 16, mask


@pytest.mark.parametrize("mask", LONG, ids=repr)
def test_a19_b10_no_square_is_ever_made(mask: masks.Mask | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """At 1,024 positions, with all that is added, forward and backward: less than a byte a pair of one head."""
    n, size = 1024, 1 << 14
    monkeypatch.setattr(query_blocks, "_PART_SCORES", size)
    largest = {}
    for kernel in ("blocked", "plain"):
        q, k, v = (some(1, H, n, K, seed=seed, dtype=torch.float32).requires_grad_() for seed in range(3))
        relative = RelativeTerms(tuple(made(("T5", "Shaw"), torch.float32)), QueryKeyPositions.arange(n, n))  # type: ignore[arg-type]
        with Largest() as seen:
            out = attend(q, k, v, mask=mask, relative=relative, dropout=0.1, random=Randomness(1), kernel=kernel)
            out.sum().backward()
        assert q.grad is not None and bool((q.grad != 0).any())
        largest[kernel] = seen.bytes
    block = max(4 * size, 16 * H * n)  # scores
    assert largest["blocked"] <= 8 * block < n * n  # an integer of 8 bytes is the widest thing kept of a pair
    assert largest["plain"] >= 4 * H * n * n


def test_a19_a_value_bias_is_refused() -> None:
    q = some(1, 1, 3, 2)
    fails(ValueError, "does not support `value_bias`", attend, q, q, q, value_bias=some(3, 3, 2), kernel="blocked")
