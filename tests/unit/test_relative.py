"""Relative schemes: golden numbers, pair-by-pair references, all kernels with gradients; disentangled positions."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from atento.attention import attend, attention_weights, observe, query_blocks
from atento.attention.dropout import Randomness
from atento.attention.masks import Mask, causal, documents, padding, window
from atento.attention.multihead import MultiHeadAttention, PositionTerms
from atento.attention.positions import Rotary
from atento.attention.relative import ALiBi, Gated, RelativeMatrix, Shaw, T5Bias, alibi_slopes, t5_buckets
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

B, H, K = 2, 3, 4
D, L = H * K, 40
GIVEN = torch.tensor([[0, 1, 2, 3, 9, 10, 11], [5, 5, 6, 0, 1, 2, 30]])  # positions by row, in no order


def qkv(t: int, s: int) -> tuple[Tensor, Tensor, Tensor]:
    return normal(B, H, t, K), normal(B, H, s, K, seed=1), normal(B, H, s, K, seed=2)


@torch.no_grad()
def filled(scheme: Any, seed: int = 5) -> Any:
    """In float64, all that is learned random and of size 1, gates too."""
    for number, parameter in enumerate(scheme.double().parameters()):
        parameter.copy_(normal(*parameter.shape, seed=seed + number))
    return scheme


SCHEMES: dict[str, Callable[[], list[nn.Module]]] = {
    "t5": lambda: [T5Bias(H, 8, 12)],
    "t5 one way": lambda: [T5Bias(H, 8, 12, bidirectional=False)],
    "alibi": lambda: [ALiBi(H)],
    "matrix": lambda: [RelativeMatrix(H, 5)],
    "matrix unscaled": lambda: [RelativeMatrix(H, 5, scaled=False)],
    "shaw": lambda: [Shaw(K, 3)],
    "shaw keys": lambda: [Shaw(K, 3, values=False)],
    "some heads": lambda: [Gated(T5Bias(H, 8, 12), H, (0, 2), True)],
    "shaw gated": lambda: [Gated(Shaw(K, 3), H, None, True)],
    "sum": lambda: [T5Bias(H, 8, 12), ALiBi(H), Gated(RelativeMatrix(H, 5), H, (1,), False)],
    "sum with values": lambda: [Shaw(K, 2), ALiBi(H), Gated(Shaw(K, 30), H, (1, 2), True)],
}


def made(name: str) -> tuple[Any, ...]:
    """The schemes of that name, each with numbers of its own."""
    return tuple(filled(scheme, 10 * n + 5) for n, scheme in enumerate(SCHEMES[name]()))


def pair(scheme: nn.Module, q: Tensor, distance: int, scale: float) -> tuple[Tensor, Tensor]:
    """What one pair gets: q (H,K) -> scores (H,), values (H,K); from the tables and the papers alone."""
    nothing = torch.zeros(H, K, dtype=q.dtype)
    if isinstance(scheme, Gated):
        scores, values = pair(scheme.scheme, q, distance, scale)
        factor = torch.tensor([float(scheme.heads is None or h in scheme.heads) for h in range(H)], dtype=q.dtype)
        factor = factor if scheme.gate is None else factor * scheme.gate
        return scores * factor, values * factor[:, None]
    if isinstance(scheme, ALiBi):
        return -torch.tensor([1 / 16, 1 / 256, 1 / 4], dtype=q.dtype) * abs(distance), nothing
    if isinstance(scheme, T5Bias):
        n, first = scheme.n_buckets, 0
        if scheme.bidirectional:
            n, first = n // 2, n // 2 if distance > 0 else 0
        far = abs(distance) if scheme.bidirectional else max(0, -distance)
        if far >= n // 2:
            far = min(n - 1, n // 2 + int(math.log(far / (n // 2)) / math.log(scheme.max_distance / (n // 2)) * n / 2))
        return scheme.weight[first + far], nothing
    row = max(-scheme.max_distance, min(scheme.max_distance, distance)) + scheme.max_distance
    if isinstance(scheme, RelativeMatrix):
        return scheme.weight[row] * (scale if scheme.scaled else 1), nothing
    values = nothing if scheme.value_table is None else scheme.value_table[row].expand(H, K)
    return scale * q @ scheme.keys[row], values


def explicit(schemes: tuple[nn.Module, ...], q: Tensor, distances: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """bias (B,H,T,S) and value_bias (B,H,T,S,K) of q (B,H,T,K), summed over schemes and pairs one at a time."""
    distances = distances.expand(len(q), *distances.shape[-2:])
    t, s = distances.shape[1:]
    bias, values = torch.zeros(len(q), H, t, s).double(), torch.zeros(len(q), H, t, s, K).double()
    for scheme, r, i, j in product(schemes, range(len(q)), range(t), range(s)):
        score, value = pair(scheme, q[r, :, i], int(distances[r, i, j]), scale)
        bias[r, :, i, j] += score
        values[r, :, i, j] += value
    return bias, values


def inverse_rotation(q: Tensor, positions: Tensor) -> Tensor:
    return Rotary(K).at(positions).inverse()(q)


def positions_of(kind: str) -> QueryKeyPositions:
    """Seven keys, and as many queries or the last three; counted, or given row by row; of turned queries, or not."""
    positions = QueryKeyPositions.arange(3 if "cached" in kind else 7, 7)
    if "given" in kind:
        positions = QueryKeyPositions(GIVEN[:, -3:] if "cached" in kind else GIVEN, GIVEN, False)
    return replace(positions, inverse_rotations=(inverse_rotation,)) if "turned" in kind else positions


@pytest.mark.covering
@torch.no_grad()
@pytest.mark.parametrize("kind", ["counted", "counted, cached", "given", "given, cached", "given, turned"])
@pytest.mark.parametrize("name", SCHEMES)
def test_b4_b5_b6_b7_schemes_and_sums_equal_the_formula_pair_by_pair(name: str, kind: str) -> None:
    """Turned queries meet turned keys, but Shaw's a_ij meets them as they were."""
    schemes, positions = made(name), positions_of(kind)
    assert not name.startswith("matrix") or schemes[0].scaled == (name == "matrix")
    own, k, v = qkv(positions.queries.shape[-1], 7)
    q = Rotary(K)(own, position_ids=positions.queries) if "turned" in kind else own
    atol = 1e-6 if "turned" in kind else 1e-10  # cosines are float32
    for scale in (None, 0.9):
        relative = RelativeTerms(schemes, positions)
        bias, values = explicit(schemes, own, positions.distances, K**-0.5 if scale is None else scale)
        expected = attend(q, k, v, mask=causal(), bias=bias, value_bias=values, scale=scale, kernel="plain")
        assert relative.adds_values == bool(values.any())
        for kernel in ("plain", "blocked") if relative.adds_values else ("plain", "fused", "blocked"):
            out = attend(q, k, v, mask=causal(), relative=relative, scale=scale, kernel=kernel)
            torch.testing.assert_close(out, expected, rtol=0, atol=atol)
        weights = attention_weights(q, k, mask=causal(), bias=bias, scale=scale)
        seen = attention_weights(q, k, mask=causal(), relative=relative, scale=scale)
        torch.testing.assert_close(seen, weights, rtol=0, atol=atol)


MASKS: dict[str, Mask | Tensor | None] = {
    "none": None,
    "causal": causal(),
    "causal & padding, a row of nothing": causal() & padding(torch.tensor([0, 31])),
    "window": window(7, 3),
    "documents": documents(torch.tensor([[0] * 13 + [1] * 27, [3] * 20 + [4] * 15 + [-1] * 5])),
    "tensor": torch.rand(B, 1, 1, L, generator=torch.Generator().manual_seed(3)) > 0.4,
}


def outcome(kernel: str, schemes: Any, positions: QueryKeyPositions, mask: Any, dtype: torch.dtype) -> list[Tensor]:
    learned = [p for scheme in schemes for p in scheme.to(dtype).parameters()]
    leaves = [x.to(dtype).requires_grad_() for x in qkv(positions.queries.shape[-1], L)]
    out = attend(*leaves, mask=mask, relative=RelativeTerms(schemes, positions), kernel=kernel)
    upstream = torch.arange(out.numel(), dtype=dtype).view_as(out).sin() / 4
    return [out.detach(), *torch.autograd.grad(out, [*leaves, *learned], upstream)]


@pytest.mark.covering
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", SCHEMES)
def test_b7_all_kernels_agree_with_gradients(name: str, mask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """float64 1e-10, float32 1e-5; blocks of 16 queries, so that the blocked kernel has three."""
    monkeypatch.setattr("atento.attention.query_blocks._PART_SCORES", 1)
    ids = torch.stack([torch.arange(L) // 2, torch.arange(L).flip(0)])
    square, cached = QueryKeyPositions.arange(L, L), QueryKeyPositions.arange(24, L)
    given = QueryKeyPositions(ids, ids, False)
    shared = QueryKeyPositions(ids[:1], ids[:1], False)  # one row of positions for all rows of the batch
    turned = replace(given, inverse_rotations=(inverse_rotation,))
    cases = [(one, torch.float64) for one in (square, cached, given, shared, turned)]
    for positions, dtype in [*cases, (square, torch.float32)]:
        plain = outcome("plain", made(name), positions, MASKS[mask], dtype)
        assert all(bool(x.isfinite().all()) for x in plain) and float(plain[0].abs().max()) > 0.1
        others = ["blocked"] if RelativeTerms(made(name), positions).adds_values else ["blocked", "fused"]
        for kernel in others:
            for one, other in zip(outcome(kernel, made(name), positions, MASKS[mask], dtype), plain):
                rtol, atol = (0.0, 1e-10) if dtype == torch.float64 else (1e-5, 1e-5)
                torch.testing.assert_close(one, other, rtol=rtol, atol=atol)


@pytest.mark.parametrize("scheme", [RelativeMatrix(H, 5), T5Bias(H, 8, 16)])
def test_a_scheme_in_the_sum_twice_gets_its_gradient_once(scheme: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Itself, or gated for one head, as two halves of the heads would have it; three blocks of queries."""
    monkeypatch.setattr("atento.attention.query_blocks._PART_SCORES", 1)
    scheme = filled(scheme)
    for other in (scheme, Gated(scheme, H, (1,), learned=False)):
        relative, grads = RelativeTerms((scheme, other), QueryKeyPositions.arange(37, 37)), []  # type: ignore[arg-type]
        assert relative.parameters() == [scheme.weight]
        for kernel in ("plain", "blocked"):
            out = attend(*qkv(37, 37), relative=relative, kernel=kernel)
            grads.append(torch.autograd.grad(out.pow(2).sum(), scheme.weight)[0])
        torch.testing.assert_close(grads[1], grads[0], rtol=0, atol=1e-10)


def test_fused_refuses_a_scheme_that_adds_to_values_and_auto_does_not_ask_it() -> None:
    relative = RelativeTerms(made("shaw"), QueryKeyPositions.arange(90, 90))
    with pytest.raises(ValueError, match="the fused kernel adds nothing to values, and drops weights"):
        attend(*qkv(90, 90), relative=relative, kernel="fused")
    plain = attend(*qkv(90, 90), relative=relative, kernel="plain")
    assert torch.equal(attend(*qkv(90, 90), relative=relative), plain)


@torch.no_grad()
@pytest.mark.parametrize("rows", [torch.tensor([6, 0, 0]), torch.tensor([-1]), slice(1, 4), slice(0, 7, 3)], ids=str)
@pytest.mark.parametrize("kind", ["counted", "given"])
@pytest.mark.parametrize("name", SCHEMES)
def test_rows_of_the_weights_are_the_rows_of_all_weights(name: str, kind: str, rows: Tensor | slice) -> None:
    schemes, positions = made(name), positions_of(kind)
    q, k, _ = qkv(7, 7)
    options: dict[str, Any] = {"mask": causal(), "relative": RelativeTerms(schemes, positions)}
    whole = attention_weights(q, k, **options)
    torch.testing.assert_close(attention_weights(q, k, rows=rows, **options), whole[:, :, rows], rtol=0, atol=1e-12)


def test_t5_golden_buckets_and_alibi_slopes() -> None:
    """Section 3, both directions and one."""
    both = torch.tensor([-200, -128, -64, -20, -8, -1, 0, 1, 7, 8, 20, 64, 127, 128, 200])
    assert t5_buckets(both, 32, 128, True).tolist() == [15, 15, 14, 10, 8, 1, 0, 17, 23, 24, 26, 30, 31, 31, 31]
    one = torch.tensor([-200, -128, -64, -20, -16, -8, -1, 0, 1])
    assert t5_buckets(one, 32, 128, False).tolist() == [31, 31, 26, 17, 16, 8, 1, 0, 0]
    # 8 heads, section 3; 3 heads by the paper's rule: those of 2 heads, then every other one of 4
    assert alibi_slopes(8).tolist() == [2.0**-i for i in range(1, 9)]
    assert alibi_slopes(3).tolist() == [2**-4, 2**-8, 2**-2] and alibi_slopes(1).tolist() == [2**-8]
    assert [len(alibi_slopes(n).unique()) for n in range(1, 40)] == list(range(1, 40))
    # The logarithm would give negative buckets, or none at all
    for n, far, both in ((32, 8, True), (32, 16, False), (8, 1, True), (32, 12, False)):
        exact = n // 4 if both else n // 2
        message = f"`max_distance` must be above {exact}; each distance below that has its own bucket: got {far}"
        fails(ValueError, message, T5Bias, 2, n, far, bidirectional=both)
        T5Bias(2, n, exact + 1, bidirectional=both)
        fails(ValueError, "`n_buckets` must be at least 4: got 3", T5Bias, 2, 3)


@given(n=st.integers(4, 64), beyond=st.integers(1, 200), both=st.booleans())
def test_t5_buckets_grow_with_the_distance_and_use_every_bucket(n: int, beyond: int, both: bool) -> None:
    half = n // 2 if both else n
    exact = half // 2
    far = exact + beyond
    behind = t5_buckets(-torch.arange(2 * far), n, far, both)
    assert behind[:exact].tolist() == list(range(exact)) and bool((behind.diff() >= 0).all())
    assert bool((behind[far:] == half - 1).all())
    ahead = t5_buckets(torch.arange(1, 2 * far), n, far, both)
    assert torch.equal(ahead, behind[1:] + half) if both else bool((ahead == 0).all())


@pytest.mark.parametrize("name", ["t5", "alibi", "matrix", "shaw"])
def test_b7_a_gate_of_1_is_the_scheme_of_0_none_and_heads_not_named_are_as_without(name: str) -> None:
    (scheme,) = made(name)
    gated, positions = Gated(scheme, H, None, True).double(), QueryKeyPositions.arange(6, 6)
    itself, none = attend(*qkv(6, 6), relative=RelativeTerms((scheme,), positions)), attend(*qkv(6, 6))
    assert gated.gate is not None and gated.gate.tolist() == [1, 1, 1]
    scheme.requires_grad_(False)
    assert RelativeTerms((gated,), positions).parameters() == [gated.gate]
    assert torch.equal(attend(*qkv(6, 6), relative=RelativeTerms((gated,), positions)), itself)
    nn.init.zeros_(gated.gate)
    closed = attend(*qkv(6, 6), relative=RelativeTerms((gated,), positions))
    torch.testing.assert_close(closed, none, rtol=0, atol=1e-12)
    assert not torch.allclose(closed, itself)
    out = attend(*qkv(6, 6), relative=RelativeTerms((Gated(scheme, H, (1,), False),), positions))
    assert torch.equal(out[:, 1], itself[:, 1]) and not torch.allclose(out[:, 1], none[:, 1])
    torch.testing.assert_close(out[:, ::2], none[:, ::2], rtol=0, atol=1e-12)


def scheme_and_layer(**options: Any) -> tuple[Disentangled, MultiHeadAttention]:
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
        q, k, v = (x.requires_grad_() for x in qkv(L, L))
        out = attend(q, k, v, mask=mask, relative=relative, dropout=dropout, random=Randomness(3), kernel=kernel)
        (out * normal(*out.shape, seed=9)).sum().backward()
        projections = layer.input.weight.grad[: 2 * H * K]
        results[kernel] = [out, q.grad, k.grad, v.grad, scheme.weight.grad, scheme.norm.weight.grad, projections]  # type: ignore[union-attr]
    for plain, ours in zip(results["plain"], results["blocked"]):
        assert plain is not None and ours is not None and bool(plain.any())
        torch.testing.assert_close(ours, plain, rtol=0, atol=1e-10)


def test_the_fused_kernel_agrees_and_observed_weights_are_those_of_the_layer() -> None:
    scheme, layer = scheme_and_layer()
    q, k, v = qkv(L, L)
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
