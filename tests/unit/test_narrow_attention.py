"""Kernels of one case each beside the equation: bfloat16 training on a CPU, packed sequences (A3, A19, E1)."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from atento.attention import attend, multihead
from atento.attention.cuda_kernels import PackedSequences
from atento.attention.dropout import Randomness, pair_dropout
from atento.attention.kernels import choose
from atento.attention.masks import Mask, bidirectional, causal, documents, lookahead, padding, per_head, window
from atento.attention.prepared_mask import AttentionArgs, prepare_mask
from atento.training.replica.gradient_sum import DeterministicAccumulator
from atento.training.replica.local import GradientAccumulator
from failing import fails

B, H, L, K = 2, 3, 70, 16
MASKS: dict[str, Mask | Tensor | None] = {
    "none": None,
    "causal": causal(),
    "padding": padding(torch.tensor([70, 41])),
    "nothing for a row": padding(torch.tensor([0, 70])),
    "tensor (B,H,T,S)": torch.rand(B, H, L, L, generator=torch.Generator().manual_seed(4)) > 0.6,
}


def inputs(seed: int = 0) -> list[Tensor]:
    """Queries, keys and values as a network has them: views of one product."""
    joined = torch.randn(B, L, 3 * H * K, generator=torch.Generator().manual_seed(seed)).bfloat16()
    return [x.unflatten(-1, (H, K)).transpose(1, 2) for x in joined.split(H * K, dim=-1)]


def with_gradients(values: list[Tensor], kernel: str, **options: object) -> list[Tensor]:
    """The output and its gradients, each element of it weighed differently."""
    leaves = [x.detach().clone().requires_grad_() for x in values]
    out = attend(*leaves, kernel=kernel, **options)  # type: ignore[misc,arg-type]
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(5)).bfloat16()
    upstream = upstream.to(dtype=out.dtype, device=out.device)
    return [out.detach(), *torch.autograd.grad(out, leaves, upstream)]


@pytest.mark.parametrize("dropout", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("name", MASKS)
def test_the_narrow_kernel_is_the_equation_within_the_rounding_of_bfloat16(name: str, dropout: float) -> None:
    """The same pairs fall as in float64, whose gradients by autograd are the measure; relative to their norm."""
    found = with_gradients(inputs(), "narrow", mask=MASKS[name], dropout=dropout, random=Randomness(3))
    exact = [x.double() for x in inputs()]
    expected = with_gradients(exact, "plain", mask=MASKS[name], dropout=dropout, random=Randomness(3))
    before = with_gradients(inputs(), "plain", mask=MASKS[name], dropout=dropout, random=Randomness(3))
    for got, right, plain in zip(found, expected, before):
        assert got.dtype == torch.bfloat16 and bool(got.isfinite().all())
        error, usual = (float((x.double() - right).norm() / right.norm()) for x in (got, plain))
        assert error < 2**-6 and error < 2 * usual  # no worse than autograd in bfloat16 by more than a factor
        assert bool((got[right == 0] == 0).all())


def test_the_pairs_that_fall_are_those_of_any_other_kernel() -> None:
    """Values that are the unit vectors show each weight."""
    q, k, _ = (x.detach().requires_grad_() for x in inputs())
    v = torch.eye(L).bfloat16().expand(B, H, L, L)
    random = Randomness(9, 2)
    weights = attend(q, k, v, dropout=0.5, random=Randomness(9, 2), kernel="narrow")
    assert torch.equal(weights == 0, pair_dropout(weights, 0.5, random.key()) == 0)
    q, k, _ = inputs()
    learned = q.detach().requires_grad_()
    everything, short = prepare_mask(None, L, L, q.device), prepare_mask(None, 8, 8, q.device)
    bias = torch.zeros(1, 1, 1, L)

    def chosen(q: Tensor, k: Tensor, mask: object = everything, bias: Tensor | None = None) -> str:
        return choose(q, k, AttentionArgs(mask, bias, None, None, 0.5, 0.1, None))  # type: ignore[arg-type]

    assert chosen(learned, k) == "narrow"
    assert {chosen(q, k), chosen(learned.float(), k.float()), chosen(learned, k, bias=bias)} == {"plain"}
    assert chosen(learned[..., :8, :], k[..., :8, :], short) == "plain"  # whose softmax is faster in float32
    with torch.no_grad():
        assert chosen(learned, k) == "plain"
    with pytest.raises(ValueError, match="the narrow kernel adds nothing to scores and values; use kernel='plain'"):
        attend(learned, k, k, bias=bias, kernel="narrow")


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    projection = multihead.Projection(1, 1)
    del projection.weight, projection.bias
    projection.weight, projection.bias = weight, bias  # type: ignore[assignment]
    return projection(x)


@pytest.mark.parametrize(("inner", "outer"), [(48, 32), (32, 48), (32, 32)])
@pytest.mark.parametrize("bias", [False, True])
def test_a_linear_maps_gradients(inner: int, outer: int, bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multihead, "has_tiles", lambda: True)
    generator = torch.Generator().manual_seed(1)
    sizes = ((4, 80, inner), (outer, inner), (outer,))[: 3 if bias else 2]
    leaves = [torch.randn(size, generator=generator).bfloat16().requires_grad_() for size in sizes]
    wide = [x.detach().double().requires_grad_() for x in leaves]
    out = linear(*leaves)
    assert "_Linear" in type(out.grad_fn).__name__
    plain = F.linear(wide[0], wide[1], wide[2] if bias else None)
    upstream = torch.randn(out.shape, generator=generator).bfloat16()
    found = [out.detach(), *torch.autograd.grad(out, leaves, upstream)]
    for got, right in zip(found, [plain.detach(), *torch.autograd.grad(plain, wide, upstream.double())]):
        assert got.shape == right.shape and float((got.double() - right).norm() / right.norm()) < 2**-7


def test_a_frozen_weight_or_few_rows_take_the_usual_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multihead, "has_tiles", lambda: True)
    x, weight = torch.ones(300, 8).bfloat16().requires_grad_(), torch.ones(4, 8).bfloat16()
    learned = weight.clone().requires_grad_()
    for one, other in ((x, weight), (x[:5], learned), (x.float(), learned.float())):
        assert "_Linear" not in type(linear(one, other).grad_fn).__name__


def test_transposed_gradients_are_summed_as_others_and_given_to_the_optimizer_in_its_order() -> None:
    for make in (GradientAccumulator, lambda parameters: DeterministicAccumulator(parameters, 2)):
        parameters = [torch.zeros(5, 3)]
        gradients = [torch.randn(5, 3, generator=torch.Generator().manual_seed(n)).bfloat16() for n in range(2)]
        sums = make(parameters)
        for number, gradient in enumerate(gradients):
            sums.add(number, [gradient.t().contiguous().t()])
        sums.finish()
        found = parameters[0].grad
        assert found is not None and found.is_contiguous()
        assert torch.equal(found, gradients[0].float() + gradients[1].float())


ROWS, HEADS, LONG, WIDTH = 3, 4, 7, 5
IDS = torch.tensor([[0, 0, 0, 1, 1, 2, -1], [4, 4, 4, 4, 4, 4, 4], [-1, -1, 3, 3, 1, 1, 1]])
MIXED = torch.tensor([[0, 1, 0, 1, 0, 1, -1], [2, 0, 2, 0, 2, 0, 2], [-1, 5, -1, 5, 5, -1, 5]])
REAL = torch.tensor([[True] * 7, [True] * 3 + [False] * 4, [False] * 5 + [True] * 2])
NONE = torch.tensor([[True] * 7, [False] * 7, [True] * 7])
PACKED: dict[str, Mask | Tensor | None] = {
    "none": None,
    "bidirectional": bidirectional(),
    "causal": causal(),
    "documents": documents(IDS),
    "causal documents": causal() & documents(IDS),
    "documents, then causal": documents(IDS) & causal(),
    "mixed documents": documents(MIXED),
    "causal mixed documents": causal() & documents(MIXED),
    "one row of documents": documents(IDS[:1]),
    "nothing but padding": documents(torch.full((ROWS, LONG), -1)),
    "padding": padding(REAL),
    "padding, by lengths": padding(torch.tensor([7, 2, 5])),
    "a row without keys": padding(NONE),
    "a tensor of keys": REAL[:, None, None, :],
}


def qkv(dtype: torch.dtype = torch.float64, kv_heads: int = HEADS, width: int = WIDTH) -> list[Tensor]:
    g = torch.Generator().manual_seed(3)
    sizes = (HEADS, width), (kv_heads, width), (kv_heads, width + 1)
    return [torch.randn(ROWS, h, LONG, w, generator=g, dtype=torch.float64).to(dtype) for h, w in sizes]


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize(("dtype", "away"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_packed_rows_equal_the_plain_equation_gradients_too(name: str, dtype: torch.dtype, away: float) -> None:
    for kv_heads in (HEADS, 2):
        both = (with_gradients(qkv(dtype, kv_heads), kernel, mask=PACKED[name]) for kernel in ("varlen", "plain"))
        for got, expected in zip(*both):
            torch.testing.assert_close(got, expected, rtol=0, atol=away)


def test_packed_keys_of_another_length() -> None:
    q, k, v = qkv()
    for mask in (None, padding(REAL)):
        got, expected = (attend(q[:, :, :4], k, v, mask=mask, kernel=name) for name in ("varlen", "plain"))
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)


KNOWS, TAKES = "variable-length attention supports documents", "variable-length attention takes a mask alone"
REFUSED: list[tuple[dict[str, Any], str]] = [
    *(({"mask": m}, KNOWS) for m in (window(1, 1), lookahead(1), documents(IDS) | causal(), ~documents(IDS))),
    *(({"dropout": 0.5}, TAKES), ({"bias": torch.zeros(1, 1, LONG, LONG)}, TAKES)),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_what_packing_does_not_know_is_refused(options: dict[str, Any], message: str) -> None:
    fails(ValueError, message, attend, *qkv(), kernel="varlen", **options)


def test_packed_sequences_leave_out_padding() -> None:
    sequences = PackedSequences.from_documents(IDS)
    assert sequences.bounds.tolist() == [0, 3, 5, 6, 13, 16, 18] and sequences.max_len == 7
    assert len(sequences.index) == int((IDS >= 0).sum())
    assert sequences.index.tolist()[-5:] == [18, 19, 20, 16, 17]  # of a row, by the number of the document


@pytest.mark.gpu
@pytest.mark.parametrize("name", PACKED)
def test_pytorchs_kernel_agrees_on_a_gpu(name: str) -> None:
    """In bfloat16, which is all that it knows beside float16, against the plain equation in float32."""
    g = torch.Generator().manual_seed(3)
    inputs = [torch.randn(ROWS, HEADS, LONG, 64, generator=g).cuda().bfloat16() for _ in range(3)]
    mask = PACKED[name]
    mask = mask.cuda() if isinstance(mask, Tensor) else mask
    plain = with_gradients([x.float() for x in inputs], "plain", mask=mask)
    for got, expected in zip(with_gradients(inputs, "varlen", mask=mask), plain):
        torch.testing.assert_close(got.float(), expected, rtol=3e-2, atol=3e-2)


def test_heads_and_dropout_that_cannot_be_are_refused() -> None:
    q, k, v = qkv()
    for heads in (2, 8):
        mask = per_head([causal()] * heads)
        for kernel in ("auto", "plain", "blocked", "fused", "varlen", "flex"):
            fails(ValueError, f"is for {heads} heads: got 4", attend, q, k, v, mask=mask, kernel=kernel)
    for dropout in (-1.0, 2.0, float("nan")):
        fails(ValueError, r"`dropout` must lie in \[0, 1\]", attend, q, k, v, dropout=dropout)
    for lengths in (torch.ones(2, 5, dtype=torch.long), torch.ones(2, dtype=torch.bool), torch.ones(2)):
        fails(TypeError, "`padding` takes lengths", padding, lengths)
