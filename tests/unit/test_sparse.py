"""Sparse attention: dense limits, masks, what parts and reports say, and blocks that are chosen."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from atento.attention import attend, attention_weights
from atento.attention.block_router import BlockRouter
from atento.attention.entmax import AdaptiveSpan, Entmax
from atento.attention.masks import Mask, bidirectional, blocks, causal, documents, padding, per_head, prefix, window
from atento.attention.prepared_mask import prepare_mask
from atento.attention.relative import ALiBi
from atento.attention.relative_terms import QueryKeyPositions, RelativeTerms
from atento.attention.sparse import SparseAttention, kept_links
from failing import fails
from tensors import Largest
from tensors import normal as draw

B, H, K = 2, 3, 4


def qkv(t: int, s: int, seed: int = 0) -> list[Tensor]:
    return [draw(B, H, n, K, seed=seed + i).requires_grad_() for i, n in enumerate((t, s, s))]


def span(longest: float = 100, initial: float = 50, ramp: float = 3) -> AdaptiveSpan:
    return AdaptiveSpan(H, longest, ramp=ramp, initial=initial).double()


DENSE = {
    "nothing": SparseAttention(),
    "alpha 1": SparseAttention(entmax=Entmax(H, 1.0, learned=False)),
    "all of them": SparseAttention(top_k=9),
    "far spans": SparseAttention(span=span()),
    "all three": SparseAttention(span=span(), top_k=50, entmax=Entmax(H, 1.0, learned=False)),
}
SPARSE = {
    "entmax": SparseAttention(entmax=Entmax(H, 1.7)).double(),
    "top-k": SparseAttention(top_k=2),
    "spans": SparseAttention(span=span(8, 1.5, 2)),
    "all three": SparseAttention(span=span(8, 1.5, 2), top_k=3, entmax=Entmax(H, 1.3)).double(),
}
MASKS = {"none": bidirectional(), "causal": causal(), "window": window(2, 1)}
MASKS["nothing for a row"] = padding(torch.tensor([0, 5]))


def hidden(mask: Mask, length: int = 9) -> tuple[Tensor, Tensor]:
    """Scores with -inf where the mask hides, and what it allows, (B,H,L,L)."""
    allowed = mask.dense(length).expand(B, H, length, length)
    return draw(B, H, length, length).masked_fill(~allowed, -float("inf")).requires_grad_(), allowed


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", DENSE)
def test_a17_dense_limits_equal_the_equation(name: str, mask: str) -> None:
    """Weights and the gradient of the scores, float64 1e-10."""
    scores, _ = hidden(MASKS[mask])
    expected = torch.nan_to_num(torch.softmax(scores.detach(), -1))
    found = DENSE[name].weigh(scores, QueryKeyPositions.arange(9, 9))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    g = draw(B, H, 9, 9, seed=1)
    (found * g).sum().backward()
    by_hand = expected * (g - (expected * g).sum(-1, keepdim=True))
    torch.testing.assert_close(scores.grad, by_hand, rtol=0, atol=1e-10)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", SPARSE)
def test_a17_a19_rows_sum_to_1_hidden_keys_get_0_and_kernels_agree_with_gradients(name: str, mask: str) -> None:
    """A row that sees nothing, by its mask or as its span leaves nothing of it, gives 0."""
    scores, allowed = hidden(MASKS[mask])
    weights = SPARSE[name].weigh(scores, QueryKeyPositions.arange(9, 9))
    assert bool((weights[~allowed] == 0).all()) and bool((weights >= 0).all())
    sums = weights.sum(-1)
    some = allowed.any(-1)
    if name in ("spans", "all three"):  # with R = 2 and z = 1.5 a key is seen up to 3 away
        positions = torch.arange(9)
        some = (allowed & ((positions[:, None] - positions).abs() <= 3)).any(-1)
    torch.testing.assert_close(sums, some.double(), rtol=0, atol=1e-12)
    SPARSE[name].zero_grad()
    (weights * draw(B, H, 9, 9, seed=1)).sum().backward()
    assert scores.grad is not None and bool(scores.grad.isfinite().all())
    assert bool((scores.grad[~allowed] == 0).all())
    for parameter in SPARSE[name].parameters():
        assert parameter.grad is not None and bool(parameter.grad.isfinite().all())
    # Strip by strip as all at once, 1e-10: outputs, and gradients of q, k, v, of α and spans, and of nothing NaN
    q, k, v = qkv(9, 9)
    layer = SPARSE[name]
    relative = RelativeTerms((ALiBi(H).double(),), QueryKeyPositions.arange(9, 9), layer)
    g = draw(B, H, 9, K, seed=9)
    results = []
    for kernel in ("plain", "blocked"):
        out = attend(q, k, v, mask=MASKS[mask], relative=relative, kernel=kernel)
        results.append([out, *torch.autograd.grad((out * g).sum(), [q, k, v, *layer.parameters()])])
    for one, other in zip(*results):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)
        assert bool(one.isfinite().all())


def test_a17_a19_m4_the_mask_of_spans_changes_nothing_but_what_is_computed_and_the_cost_is_their_mean() -> None:
    """Joined to the call's own mask, kernels leave out what no head sees: same outputs and gradients, 1e-10."""
    layer = SparseAttention(span=span(8, 1.5, 2))
    q, k, v = qkv(40, 40)
    relative, g = RelativeTerms((), QueryKeyPositions.arange(40, 40), layer), draw(B, H, 40, K, seed=9)
    near = causal() & layer.span.to_mask()
    assert near.reachable is not None and near.reachable(20, 24, 40, None) == (17, 24)
    results = []
    for mask, kernel in ((causal(), "plain"), (near, "plain"), (near, "blocked")):
        out = attend(q, k, v, mask=mask, relative=relative, kernel=kernel)
        results.append([out, *torch.autograd.grad((out * g).sum(), [q, k, v, layer.span.behind_logit])])
    for one, *others in zip(*results):
        torch.testing.assert_close(others, [one, one], rtol=0, atol=1e-10)
    # (3 + 1) positions behind and ahead in one head, (5 + 7) in the other: mean 8, times the weight
    layer = AdaptiveSpan(2, 10, ramp=1)
    with torch.no_grad():
        layer.behind_logit.copy_(torch.tensor([0.3, 0.5]).logit())
        layer.ahead_logit.copy_(torch.tensor([0.1, 0.7]).logit())
    cost = SparseAttention(span=layer, span_cost=0.5).cost()
    assert cost is not None and float(cost.detach()) == pytest.approx(4)
    cost.backward()
    assert layer.behind_logit.grad is not None and bool((layer.behind_logit.grad > 0).all())
    assert SparseAttention(span=layer).cost() is None and SparseAttention(top_k=1, span_cost=1).cost() is None
    fails(ValueError, "`top_k` must be at least 1: got 0", SparseAttention, top_k=0)


def test_a17_report_by_hand_and_gradients_of_all_three_together() -> None:
    """Two heads over four tokens: the diagonal alone, and the diagonal, one behind, and query 0 looking at key 3."""
    one = torch.eye(4)
    other = torch.tensor([[0.5, 0, 0, 0.5], [0.3, 0.7, 0, 0], [0, 0.1, 0.9, 0], [0, 0, 0.2, 0.8]])
    report = kept_links(torch.stack([one, other])[None], learned={"alpha": torch.tensor([2.0, 1.25])})
    assert report.share.tolist() == [4 / 16, 8 / 16]
    assert report.distance.tolist() == [0, 6 / 8] and report.ahead.tolist() == [0, 1 / 8]
    assert report.buckets == ("0", "1", "2", "3-4")
    assert report.by_distance.tolist() == [[1, 0, 0, 0], [0.5, 3 / 8, 0, 1 / 8]]
    assert str(report).splitlines() == [
        "head   kept  mean distance  look ahead       0      1     2    3-4  alpha",
        "   0  25.0%            0.0        0.0%  100.0%   0.0%  0.0%   0.0%      2",
        "   1  50.0%            0.8       12.5%   50.0%  37.5%  0.0%  12.5%   1.25",
    ]
    seen = kept_links(one[None, None], allowed=causal().dense(4))
    assert seen.share.tolist() == [4 / 10] and seen.buckets == ("0",)
    # Counts from the places: a cached step, whose one query stands last, or where each row says
    step = kept_links(torch.tensor([[[[0.5, 0, 0.5, 0, 0]]]]))
    assert step.distance.tolist() == [3] and step.buckets == ("0", "1", "2", "3-4")
    rows = QueryKeyPositions(torch.tensor([[7], [0]]), torch.tensor([[0, 7], [0, 2]]), False)
    found = kept_links(torch.tensor([[[[0.5, 0.5]]], [[[0.0, 1.0]]]]), rows)
    assert found.distance.tolist() == [9 / 3] and found.ahead.tolist() == [1 / 3]
    assert kept_links(torch.zeros(1, 1, 2, 2)).by_distance.tolist() == [[0]]
    # Scores, α and spans, where no score is near the k-th: finite differences
    layer = SPARSE["all three"]

    def weights(scores: Tensor, *_: Tensor) -> Tensor:  # what is learned is read where it stands
        return layer.weigh(scores, QueryKeyPositions.arange(5, 5))

    assert torch.autograd.gradcheck(weights, (draw(1, H, 5, 5).requires_grad_(), *layer.parameters()))


def squares(kept: Tensor, size: int, t: int, s: int) -> Tensor:
    """Blocks (B,H,Tb,Sb) as pairs (B,H,T,S)."""
    front = (s - t) % size
    return kept.repeat_interleave(size, -1)[..., :s].repeat_interleave(size, -2)[..., front : front + t, :]


CHOICE_MASKS: dict[str, Callable[[int], Mask | Tensor | None]] = {
    "none": lambda s: None,
    "causal": lambda s: causal(),
    "padding": lambda s: padding(torch.tensor([s - 3, s])),
    "nothing for a row": lambda s: padding(torch.tensor([0, s])),
    "causal and padding": lambda s: causal() & padding(torch.tensor([s, 2])),
    "window": lambda s: window(3, 1),
    "documents": lambda s: documents(torch.arange(s).expand(B, -1) // torch.tensor([[5], [7]])),
    "per head": lambda s: per_head([causal(), window(2, 2), bidirectional()]) & padding(torch.tensor([s, s - 2])),
    "prefix": lambda s: prefix(torch.tensor([3, 6])),
    "tensor": lambda s: torch.rand(B, 1, 1, s, generator=torch.Generator().manual_seed(1)) > 0.3,
}


@pytest.mark.covering
@pytest.mark.parametrize("n", [1, 2, 50])
@pytest.mark.parametrize(("t", "s"), [(16, 16), (13, 13), (5, 14), (1, 9)])
@pytest.mark.parametrize("name", CHOICE_MASKS)
def test_a17_chosen_blocks_equal_dense_attention_within_them(name: str, t: int, s: int, n: int) -> None:
    """Outputs and gradients to 1e-10; with n above the number of blocks that is dense attention itself."""
    mask = CHOICE_MASKS[name](s)
    router = BlockRouter(H, K, size=4, n=n).double()
    q, k, v = qkv(t, s)
    chosen = router.route(q, k, mask)
    assert chosen.blocks.shape[-1] == min(n, -(-s // 4))
    allowed = prepare_mask(mask, t, s, q.device).allowed
    if n < 50:
        within = squares(chosen.block_mask(s), 4, t, s)
        assert torch.equal(chosen.dense(t, s), within)
        allowed = within if allowed is None else within & allowed
    found, expected = router.attend(q, k, v, mask=mask), attend(q, k, v, mask=allowed, kernel="plain")
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    g = draw(*found.shape, seed=9)
    for one, other in zip(*(torch.autograd.grad((out * g).sum(), (q, k, v)) for out in (found, expected))):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


@pytest.mark.parametrize("before", [0, 5])
@pytest.mark.parametrize("masked", [False, True])
def test_a17_the_choice_in_loops(masked: bool, before: int) -> None:
    """The own block, then the best by q̄ W k̄: a mean query and all blocks, or the first query and no block ahead.

    The first `before` keys have no queries, as in a cached step: the first block of queries is then a part of one.
    """
    size, n, length = 4, 2, 15
    router = BlockRouter(H, K, size=size, n=n).double()
    with torch.no_grad():
        router.gate.copy_(draw(H, K, K, seed=5))
    q, k, _ = qkv(length, length)
    found = router.route(q[:, :, before:], k, causal() if masked else None).blocks
    for b in range(B):
        for h in range(H):
            for i in range(before // size, 4):
                own = q[b, h, max(before, 4 * i) : 4 * i + 4]
                asked = own[0] if masked else own.mean(0)
                means = [k[b, h, 4 * j : 4 * j + 4].mean(0) for j in range(4)]
                scores = {j: float((asked @ router.gate[h] @ mean).detach()) for j, mean in enumerate(means)}
                others = sorted((j for j in scores if j != i and not (masked and j > i)), key=lambda j: -scores[j])
                expected = {i, *others[: n - 1]}
                blocks = found[b, h, i - before // size].tolist()
                assert expected <= set(blocks) and len(set(blocks)) == n


def test_a17_the_gates_get_the_gradient_of_a_bias_on_their_blocks() -> None:
    """Straight through: as if a number had been added to all scores of a chosen block, at 0; and W gets it too."""
    for mask in (causal(), bidirectional()):
        router = BlockRouter(H, K, size=4, n=2).double()
        q, k, v = qkv(12, 12)
        g = draw(B, H, 12, K, seed=9)
        chosen = router.route(q, k, mask)
        (router.attend(q, k, v, mask=mask) * g).sum().backward()
        bias = torch.zeros(B, H, 3, 3, dtype=torch.float64, requires_grad=True)
        pairs = bias.repeat_interleave(4, -1).repeat_interleave(4, -2)
        allowed = mask.dense(12) & squares(chosen.block_mask(12), 4, 12, 12)
        (attend(q.detach(), k.detach(), v.detach(), mask=allowed, bias=pairs, kernel="plain") * g).sum().backward()
        (by_gate,) = torch.autograd.grad(chosen.gates, router.gate, bias.grad.gather(-1, chosen.blocks))
        torch.testing.assert_close(router.gate.grad, by_gate, rtol=0, atol=1e-12)
        assert float(by_gate.abs().max()) > 1e-3


def test_a17_w10_a_causal_choice_knows_nothing_of_what_comes_later_and_float16_does_not_overflow() -> None:
    """Later tokens may be anything: outputs before them stay, bit for bit; with padding, padded keys as well."""
    router = BlockRouter(H, K, size=4, n=2).double()
    q, k, v = (x.detach() for x in qkv(24, 24))
    before = router.attend(q, k, v, mask=causal())
    for at in range(1, 24, 3):
        q2, k2, v2 = (torch.cat([x[:, :, :at], 5 * draw(B, H, 24 - at, K, seed=at)], dim=2) for x in (q, k, v))
        assert torch.equal(router.attend(q2, k2, v2, mask=causal())[:, :, :at], before[:, :, :at])
    mask = padding(torch.tensor([10, 24]))
    q2, k2, v2 = (x.clone() for x in (q, k, v))
    for x in (q2, k2, v2):
        x[0, :, 10:] = 7.0
    one, other = (router.attend(*three, mask=mask) for three in ((q, k, v), (q2, k2, v2)))
    assert torch.equal(one[0, :, :10], other[0, :, :10]) and torch.equal(one[1], other[1])
    # Scores past the largest number of float16; with every block chosen it is float64's dense attention, rounded
    router = BlockRouter(H, K, size=4, n=50).double()
    q, k, v = ((x * 400).detach().half() for x in qkv(13, 13))
    found = router.attend(q, k, v, mask=causal())
    expected = attend(q.double(), k.double(), v.double(), mask=causal(), kernel="plain")
    assert found.dtype == torch.float16
    torch.testing.assert_close(found.double(), expected, rtol=2**-10, atol=2**-10)
    # Near the float64 result, gradients of the same type
    for dtype in (torch.float32, torch.bfloat16):
        exact = [x.detach() for x in qkv(16, 16)]
        q, k, v = (x.to(dtype).requires_grad_() for x in exact)
        router = BlockRouter(H, K, size=4, n=9)
        out = router.attend(q, k, v, mask=causal())
        out.float().sum().backward()
        assert out.dtype == dtype and q.grad is not None and q.grad.dtype == dtype
        near = 1e-5 if dtype == torch.float32 else 0.05
        torch.testing.assert_close(out.double(), attend(*exact, mask=causal(), kernel="plain"), rtol=0, atol=near)


def test_a17_one_choice_for_all_rows_is_a_mask_and_what_cannot_be_is_refused() -> None:
    """`block_mask` makes the squares that `blocks` takes, which the blocked kernel skips by."""
    router = BlockRouter(H, K, size=4, n=2).double()
    q, k, v = (x[:1].detach() for x in qkv(16, 16))
    chosen = router.route(q, k, causal())
    mask = blocks(chosen.block_mask(16)[0], 4) & causal()
    found = attend(q, k, v, mask=mask, kernel="blocked")
    torch.testing.assert_close(found, router.attend(q, k, v, mask=causal()), rtol=0, atol=1e-10)
    report = kept_links(attention_weights(q, k, mask=mask), allowed=causal().dense(16))
    assert bool((report.share > 0.3).all()) and bool((report.share < 1).all())
    router = BlockRouter(H, K)
    q, k, v = qkv(5, 4)
    fails(ValueError, "no more queries than keys", router.attend, q, k, v)
    fails(ValueError, "as many key heads", router.attend, k, k[:, :1], v[:, :1])
    fails(ValueError, "`size` and `n` must be at least 1: got 0 and 8", BlockRouter, H, K, size=0)


def test_a19_chosen_blocks_make_nothing_square() -> None:
    """Forward and backward: twice the text, twice the largest tensor at most; the square would be four times it."""
    sizes = []
    for length in (8192, 16384):
        q, k, v = (draw(1, 1, length, 8, seed=i, dtype=torch.float32).requires_grad_() for i in range(3))
        router = BlockRouter(1, 8, size=32, n=2)
        with Largest() as largest:
            router.attend(q, k, v, mask=causal()).sum().backward()
        sizes.append(largest.elements)
        assert largest.elements < length * length / 64
    assert sizes[1] <= 2 * sizes[0]
