"""Multi-head attention against torch.nn.MultiheadAttention, weights copied: outputs, weights and gradients."""

import pytest
import torch
from torch import Tensor, nn

from atento.attention import attention_weights, observe
from atento.attention.masks import Mask, causal, lookahead, padding, window
from atento.attention.multihead import MultiHeadAttention

D, H, B, T, S = 12, 3, 2, 4, 6


def pair(bias: bool = True) -> tuple[MultiHeadAttention, nn.MultiheadAttention]:
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(D, H, bias=bias, batch_first=True).double().eval()
    ours = MultiHeadAttention(D, H, bias=bias).double().eval()
    with torch.no_grad():
        ours.input.weight.copy_(theirs.in_proj_weight)
        ours.output.weight.copy_(theirs.out_proj.weight)
        if bias:
            theirs.in_proj_bias.normal_()
            theirs.out_proj.bias.normal_()
            ours.input.bias.copy_(theirs.in_proj_bias)
            ours.output.bias.copy_(theirs.out_proj.bias)
    return ours, theirs


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("mask", [None, causal(), lookahead(1), window(1, 1)], ids=repr)
def test_a8_self_attention(mask: Mask | None, bias: bool) -> None:
    ours, theirs = pair(bias)
    x = torch.randn(B, T, D, dtype=torch.float64, requires_grad=True)
    theirs_mask = None if mask is None else ~mask.dense(T)[0, 0]  # theirs: True = may not attend
    expected, weights = theirs(x, x, x, attn_mask=theirs_mask, average_attn_weights=False)
    with observe(ours) as seen:
        out, _ = ours(x, mask=mask)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(seen["encoder", 0].double(), weights.detach(), rtol=0, atol=1e-6)
    upstream = torch.randn_like(out)
    wanted = torch.autograd.grad(expected, [x, theirs.in_proj_weight, theirs.out_proj.weight], upstream)
    for one, other in zip(torch.autograd.grad(out, [x, ours.input.weight, ours.output.weight], upstream), wanted):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


@pytest.mark.parametrize("made_before", [False, True])
def test_a9_cross_attention_with_source_padding(made_before: bool) -> None:
    """The memory itself, or its keys and values made once: the same."""
    ours, theirs = pair()
    x, memory = torch.randn(B, T, D, dtype=torch.float64), torch.randn(B, S, D, dtype=torch.float64)
    real = torch.arange(S) < torch.tensor([[6], [2]])
    expected, _ = theirs(x, memory, memory, key_padding_mask=~real)
    out, read = ours(x, ours.key_values(memory) if made_before else memory, mask=padding(real))
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-10)
    assert read.keys.shape == (B, H, S, D // H)


def test_h12_a_state_of_keys_and_values_equals_one_pass() -> None:
    ours, theirs = pair()
    x = torch.randn(B, T, D, dtype=torch.float64)
    expected, _ = theirs(x, x, x, attn_mask=~causal().dense(T)[0, 0])
    state = None
    for t in range(T):
        out, state = ours(x[:, t : t + 1], mask=causal(), state=state)
        torch.testing.assert_close(out[:, 0], expected[:, t], rtol=0, atol=1e-10)


@pytest.mark.parametrize("grouped", [1, 2])
def test_a3_scaled_dot_product_attention_of_pytorch(grouped: int) -> None:
    """A3 names eager, SDPA and float64 references; this is SDPA, weights by feeding it the identity as values."""
    from atento.attention import attend

    g = torch.Generator().manual_seed(1)
    q = torch.randn(B, 4, T, 8, generator=g)
    k, v = (torch.randn(B, 4 // grouped, S, 8, generator=g) for _ in range(2))
    mask = torch.rand(B, 1, T, S, generator=g) > 0.3
    mask[..., 0] = True

    def sdpa(values: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, values, attn_mask=mask, enable_gqa=True)

    for kernel in ("plain", "fused"):
        torch.testing.assert_close(attend(q, k, v, mask=mask, kernel=kernel), sdpa(v), rtol=0, atol=1e-5)
    identity = torch.eye(S).expand(B, 4 // grouped, S, S)
    torch.testing.assert_close(attention_weights(q, k, mask=mask), sdpa(identity), rtol=0, atol=1e-6)
