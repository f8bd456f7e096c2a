"""Attention without padding: packed into one long row, it equals the plain equation, gradients too (A3, A19, E1)."""

from typing import Any

import pytest
import torch
from torch import Tensor

from atento.attention import attend
from atento.attention.cuda_kernels import PackedSequences
from atento.attention.masks import Mask, bidirectional, causal, documents, lookahead, padding, per_head, window
from failing import fails

B, H, L, K = 3, 4, 7, 5
IDS = torch.tensor([[0, 0, 0, 1, 1, 2, -1], [4, 4, 4, 4, 4, 4, 4], [-1, -1, 3, 3, 1, 1, 1]])
MIXED = torch.tensor([[0, 1, 0, 1, 0, 1, -1], [2, 0, 2, 0, 2, 0, 2], [-1, 5, -1, 5, 5, -1, 5]])
REAL = torch.tensor([[True] * 7, [True] * 3 + [False] * 4, [False] * 5 + [True] * 2])
NONE = torch.tensor([[True] * 7, [False] * 7, [True] * 7])
MASKS: dict[str, Mask | Tensor | None] = {
    "none": None,
    "bidirectional": bidirectional(),
    "causal": causal(),
    "documents": documents(IDS),
    "causal documents": causal() & documents(IDS),
    "documents, then causal": documents(IDS) & causal(),
    "mixed documents": documents(MIXED),
    "causal mixed documents": causal() & documents(MIXED),
    "one row of documents": documents(IDS[:1]),
    "nothing but padding": documents(torch.full((B, L), -1)),
    "padding": padding(REAL),
    "padding, by lengths": padding(torch.tensor([7, 2, 5])),
    "a row without keys": padding(NONE),
    "a tensor of keys": REAL[:, None, None, :],
}


def qkv(dtype: torch.dtype = torch.float64, kv_heads: int = H, width: int = K) -> list[Tensor]:
    g = torch.Generator().manual_seed(3)
    sizes = (H, width), (kv_heads, width), (kv_heads, width + 1)
    return [torch.randn(B, h, L, w, generator=g, dtype=torch.float64).to(dtype) for h, w in sizes]


def outcome(inputs: list[Tensor], kernel: str, mask: Mask | Tensor | None) -> list[Tensor]:
    """The output and its gradients, each element of it weighed differently."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    out = attend(*leaves, mask=mask, kernel=kernel)
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype, device=out.device).view(out.shape)
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), leaves)]


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(("dtype", "away"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_it_equals_the_plain_equation_gradients_too(name: str, dtype: torch.dtype, away: float) -> None:
    for kv_heads in (H, 2):
        inputs = qkv(dtype, kv_heads)
        for got, expected in zip(outcome(inputs, "varlen", MASKS[name]), outcome(inputs, "plain", MASKS[name])):
            torch.testing.assert_close(got, expected, rtol=0, atol=away)


def test_keys_of_another_length() -> None:
    q, k, v = qkv()
    for mask in (None, padding(REAL)):
        got, expected = (attend(q[:, :, :4], k, v, mask=mask, kernel=name) for name in ("varlen", "plain"))
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)


KNOWS, TAKES = "variable-length attention supports documents", "variable-length attention takes a mask alone"
REFUSED: list[tuple[dict[str, Any], str]] = [
    *(({"mask": m}, KNOWS) for m in (window(1, 1), lookahead(1), documents(IDS) | causal(), ~documents(IDS))),
    *(({"dropout": 0.5}, TAKES), ({"bias": torch.zeros(1, 1, L, L)}, TAKES)),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_what_it_does_not_know_is_refused(options: dict[str, Any], message: str) -> None:
    fails(ValueError, message, attend, *qkv(), kernel="varlen", **options)


def test_packed_sequences_leave_out_padding() -> None:
    sequences = PackedSequences.from_documents(IDS)
    assert sequences.bounds.tolist() == [0, 3, 5, 6, 13, 16, 18] and sequences.max_len == 7
    assert len(sequences.index) == int((IDS >= 0).sum())
    assert sequences.index.tolist()[-5:] == [18, 19, 20, 16, 17]  # of a row, by the number of the document


@pytest.mark.gpu
@pytest.mark.parametrize("name", MASKS)
def test_pytorchs_kernel_agrees_on_a_gpu(name: str) -> None:
    """In bfloat16, which is all that it knows beside float16, against the plain equation in float32."""
    g = torch.Generator().manual_seed(3)
    inputs = [torch.randn(B, H, L, 64, generator=g).cuda().bfloat16() for _ in range(3)]
    mask = MASKS[name]
    mask = mask.cuda() if isinstance(mask, Tensor) else mask
    plain = outcome([x.float() for x in inputs], "plain", mask)
    for got, expected in zip(outcome(inputs, "varlen", mask), plain):
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
