"""Disentangled positions: the formula written out, kernels, gradients, observation, parts, dropout by layer."""

import math
from typing import Any

import pytest
import torch

from atento.attention import attend, observe, query_blocks
from atento.attention.dropout import Randomness
from atento.attention.masks import causal, padding, window
from atento.attention.multihead import MultiHeadAttention, PositionTerms
from atento.attention.relative_disentangled import Disentangled, log_buckets
from atento.attention.relative_terms import QueryKeyPositions, RelativeTerms
from atento.base.errors import RecipeError
from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import ConvolutionConfig
from atento.config.sections.position_scheme import PositionConfig
from atento.inference.fast_state import why_not_fast
from atento.inspection.decompose import decompose
from atento.networks import Decoder, Encoder
from failing import fails
from tensors import normal

B, H, L, D, K = 2, 2, 37, 12, 6


def scheme_and_layer(**options: Any) -> tuple[Disentangled, MultiHeadAttention]:
    """A scheme and an attention layer of one seed, in float64."""
    torch.manual_seed(0)
    scheme = Disentangled(D, **{"max_distance": 20, "n_buckets": 8} | options).double()
    layer = MultiHeadAttention(D, H, scale=(3 * K) ** -0.5).double()
    with torch.no_grad():
        for parameter in (*scheme.parameters(), *layer.parameters()):
            parameter.normal_(std=0.5)
    return scheme, layer


def terms(scheme: Disentangled, length: int = L) -> PositionTerms:
    return PositionTerms((), RelativeTerms((scheme,), QueryKeyPositions.arange(length, length)))


@pytest.mark.parametrize("n_buckets", [0, 8])
@torch.no_grad()
def test_every_score_is_the_sum_of_three_products(n_buckets: int) -> None:
    scheme, layer = scheme_and_layer(n_buckets=n_buckets, norm_eps=1e-7)
    x, half = normal(1, 9, D, seed=1), n_buckets or 20
    parts = decompose(layer, x, position_terms=terms(scheme, 9))
    assert list(parts) == ["content", "content-to-position", "position-to-content"]
    total = torch.stack(list(parts.values())).sum(dim=0)
    positions = scheme.norm(scheme.weight)
    heads = layer.head_weights()
    biases = layer.input.bias.view(3, H, K)
    for h in range(H):
        q, k = (y @ heads[name][h] + biases[n, h] for n, (name, y) in enumerate((("query", x[0]), ("key", x[0]))))
        of_queries, of_keys = positions @ heads["query"][h] + biases[0, h], positions @ heads["key"][h] + biases[1, h]
        for i in range(9):
            for j in range(9):
                bucket = int(log_buckets(torch.tensor(i - j), 8, 20)) if n_buckets else i - j
                row = min(max(bucket + half, 0), 2 * half - 1)
                expected = (q[i] @ k[j] + q[i] @ of_keys[row] + k[j] @ of_queries[row]) / math.sqrt(3 * K)
                torch.testing.assert_close(total[0, h, i, j], expected)


@pytest.mark.parametrize("dropout", [0.0, 0.25])
@pytest.mark.parametrize("mask", [None, causal(), window(4, 2), padding(torch.tensor([20, L]))], ids=repr)
def test_the_blocked_kernel_equals_the_plain_one(mask: Any, dropout: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_blocks, "_PART_SCORES", 1)  # strips of 16 queries
    results = {}
    for kernel in ("plain", "blocked"):
        scheme, layer = scheme_and_layer(norm_eps=1e-7)
        relative = RelativeTerms((scheme,), QueryKeyPositions.arange(L, L)).projected(layer.project_positions)
        q, k, v = (normal(B, H, L, K, seed=n).requires_grad_() for n in range(3))
        out = attend(q, k, v, mask=mask, relative=relative, dropout=dropout, random=Randomness(3), kernel=kernel)
        (out * normal(*out.shape, seed=9)).sum().backward()
        projections = layer.input.weight.grad[: 2 * H * K]
        results[kernel] = [out, q.grad, k.grad, v.grad, scheme.weight.grad, scheme.norm.weight.grad, projections]  # type: ignore[union-attr]
    for plain, ours in zip(results["plain"], results["blocked"]):
        assert plain is not None and ours is not None and bool(plain.any())
        torch.testing.assert_close(ours, plain, rtol=0, atol=1e-10)


def test_the_fused_kernel_agrees_and_observed_weights_are_those_of_the_layer() -> None:
    scheme, layer = scheme_and_layer()
    q, k, v = (normal(B, H, L, K, seed=n) for n in range(3))
    with torch.no_grad():
        relative = RelativeTerms((scheme,), QueryKeyPositions.arange(L, L)).projected(layer.project_positions)
        outs = [attend(q, k, v, relative=relative, kernel=kernel) for kernel in ("plain", "fused")]
    torch.testing.assert_close(outs[0], outs[1], rtol=0, atol=1e-12)
    network = encoder(dropout=0.0).eval()
    ids = torch.tensor([[3, 4, 5, 6, 7, 8]])
    with observe(network, rows=[4, 1]) as rows, torch.no_grad():
        network(ids)
    with observe(network) as seen, torch.no_grad():
        network(ids)
    block = network.stack.blocks[0]
    x = network.inputs(network.embedding(ids))
    position_terms = network.stack.positions.terms(QueryKeyPositions.arange(6, 6), x.dtype)[0]
    scores = torch.stack(list(decompose(block.self_attention, x, position_terms=position_terms).values())).sum(dim=0)
    torch.testing.assert_close(seen["encoder", 0], torch.softmax(scores, dim=-1))
    torch.testing.assert_close(rows["encoder", 0], seen["encoder", 0][:, :, [4, 1]])


def encoder(**changes: Any) -> Encoder:
    torch.manual_seed(0)
    positions = PositionConfig("disentangled", n_buckets=4, max_distance=6, norm=True)
    sizes: dict[str, Any] = {"vocab_size": 11, "d_model": 12, "d_ff": 16, "n_heads": 2, "n_layers": 2}
    return Encoder(NetworkConfig("encoder", **sizes | {"positions": positions} | changes))


def test_dropout_falls_anew_in_each_layer_layers_share_one_table_and_the_scale_counts_three() -> None:
    scheme, layer = scheme_and_layer(dropout=0.5)
    relative = RelativeTerms((scheme.train(),), QueryKeyPositions.arange(4, 4))
    random = Randomness(5)
    first, second = (relative.projected(layer.project_positions, random).parameters()[0] for _ in range(2))
    again = relative.projected(layer.project_positions, Randomness(5)).parameters()[0]
    assert torch.equal(first, again) and not torch.equal(first, second)
    scheme.eval()
    calm = [relative.projected(layer.project_positions, random).parameters()[0] for _ in range(2)]
    assert torch.equal(calm[0], calm[1])
    network = encoder()
    assert len(network.stack.positions.schemes) == 1
    assert [block.self_attention.scale for block in network.stack.blocks] == [(3 * 6) ** -0.5] * 2
    assert network.config.attention.scale is None
    sizes = {"vocab_size": 11, "d_model": 12, "d_ff": 16, "n_heads": 2, "n_layers": 1}
    decoder = Decoder(NetworkConfig("decoder", **sizes, positions=PositionConfig("disentangled")))  # type: ignore[arg-type]
    assert why_not_fast(decoder) == "disentangled positions"


@torch.no_grad()
def test_the_convolution_reads_neighbours_and_no_padding() -> None:
    network = encoder(dropout=0.0, convolution=ConvolutionConfig(3, "gelu")).eval()
    ids, real = torch.tensor([[3, 4, 5, 6, 0, 0]]), torch.tensor([[True] * 4 + [False] * 2])
    torch.testing.assert_close(network(ids, token_mask=real).hidden[:, :4], network(ids[:, :4]).hidden)
    x = network.inputs(network.embedding(ids[:, :4]))
    part = network.stack.convolution
    weight, bias = part.conv.weight, part.conv.bias
    sums = [sum(weight[:, :, 1 + d] @ x[0, i + d] for d in (-1, 0, 1) if 0 <= i + d < 4) + bias for i in range(4)]
    expected = part.norm(torch.nn.functional.gelu(torch.stack(sums)))
    torch.testing.assert_close(part(x, torch.zeros_like(x), None)[0], expected)


def test_what_does_not_fit_is_refused() -> None:
    fails(ValueError, r"`n_buckets` must be 0, or from 4 to `max_distance`, 8: got 9", Disentangled, 4, 8, 9)
    fails(RecipeError, r"`convolution.width` must be odd and at least 1: got 4", ConvolutionConfig, 4)
    fails(RecipeError, "`convolution.groups` .* got 5 and 12", encoder, convolution=ConvolutionConfig(groups=5))
    with pytest.raises(RecipeError, match="`convolution` belongs to an encoder: got architecture 'decoder'"):
        NetworkConfig(architecture="decoder", convolution=ConvolutionConfig())
