"""The encoder-decoder as a whole: who influences whom, heads, order, norms, padding, outputs, and what is refused."""

import math
from collections import Counter
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atento.attention import attend, dropout, kernels, observe
from atento.attention.dropout import Randomness
from atento.attention.masks import Mask, bidirectional, causal, lookahead, padding, predicate, prefix, window
from atento.attention.multihead import MultiHeadAttention
from atento.base.errors import RecipeError
from atento.config.sections.network import NetworkConfig, changed
from atento.config.sections.position_scheme import PositionConfig
from atento.networks import EncoderDecoder, Output, build_network, parameter_count
from atento.networks.layers import FeedForward, Residual, RMSNorm, TokenEmbedding, make_block
from failing import fails

CONFIG = NetworkConfig(vocab_size=13, d_model=8, d_ff=16, n_heads=2, n_layers=2, dropout=0.0)
SOURCE = torch.tensor([[5, 6, 7, 8, 3], [9, 4, 3, 0, 0]])
REAL = SOURCE > 0
TARGET = torch.tensor([[2, 5, 6, 7], [2, 8, 9, 4]])
SELF_OR_4 = predicate(lambda b, h, q, k: (k == q) | (k == 3), "self or 4")


def make(dtype: torch.dtype = torch.float64, seed: int = 0, **changes: object) -> EncoderDecoder:
    """A small network whose biases and norms are random too, so that nothing hides behind zeros and ones."""
    torch.manual_seed(seed)
    network = build_network(changed(CONFIG, changes)).eval().to(dtype)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() < 2:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return network


def logits(network: EncoderDecoder, *args: object, **options: object) -> Tensor:
    return network(*args, **options).logits.detach()


def influence(network: EncoderDecoder, kind: str, mask: Mask | None = None, length: int = 4) -> Tensor:
    """(L,L): the largest |∂h_i/∂x_j| of a whole stack, one L-token text."""
    g = torch.Generator().manual_seed(1)
    x = torch.randn(1, length, CONFIG.d_model, generator=g, dtype=torch.float64)
    memory = torch.randn(1, 3, CONFIG.d_model, generator=g, dtype=torch.float64) if kind == "decoder" else None
    stack = network.encoder if kind == "encoder" else network.decoder
    jacobian = torch.autograd.functional.jacobian(lambda x: stack(x, mask=mask, memory=memory), x)
    return jacobian[0, :, :, 0].abs().amax(dim=(1, 3))


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a6_a7_c1_tokens_move_what_they_should_and_a_pre_norm_stack_alone_ends_with_a_norm(norm: str) -> None:
    """Lemma 11.1: ∂h_i/∂x_j ≠ 0 for all i, j."""
    assert bool((influence(make(norm=norm), "encoder") > 1e-8).all())
    # ∂h_i/∂x_j = 0 exactly for j > i, and not 0 for j ≤ i
    moved = influence(make(norm=norm), "decoder")
    assert bool((moved.triu(1) == 0).all()) and bool((moved[torch.ones(4, 4).tril().bool()] > 1e-8).all())
    network = make(norm=norm)
    names = {name for name, _ in network.named_parameters()}
    assert ("encoder.norm.weight" in names) == ("decoder.norm.weight" in names) == (norm == "pre")
    with torch.no_grad():  # whatever the stream grew to, what leaves a stack has been normalised last
        for stack in (network.encoder, network.decoder):
            last = stack.norm if stack.norm is not None else stack.blocks[-1].feed_forward_residual.norm
            last.weight.fill_(1.0)
            last.bias.zero_()
    hidden = network(SOURCE, TARGET).hidden
    for out in (hidden, network.encode(SOURCE)):
        torch.testing.assert_close(out.mean(-1), torch.zeros(out.shape[:2]).double(), rtol=0, atol=1e-10)
        torch.testing.assert_close(out.var(-1, unbiased=False), torch.ones(out.shape[:2]).double(), rtol=0, atol=1e-3)


@pytest.mark.parametrize("mask", [lookahead(1), prefix(2), causal(), SELF_OR_4], ids=repr)
@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_a16_the_jacobian_is_the_declared_mask(kind: str, mask: Mask) -> None:
    """One layer: exactly the mask; this is how partial causality is declared."""
    moved = influence(make(n_layers=1), kind, mask)
    assert torch.equal(moved > 1e-10, mask.dense(4)[0, 0]) and bool((moved[~mask.dense(4)[0, 0]] == 0).all())


def test_a9_a18_one_network_reads_either_way_by_its_mask_and_nothing_in_the_padding_changes_it() -> None:
    """A mask given per call equals the family's own bit for bit, as a Mask, a tensor, or a list of one a layer."""
    network = make(torch.float32)
    both = network.encode(SOURCE, source_token_mask=REAL)
    assert torch.equal(network.encode(SOURCE, source_token_mask=REAL, mask=bidirectional()), both)
    one_way = network.encode(SOURCE, source_token_mask=REAL, mask=causal())
    assert not torch.allclose(one_way, both)
    assert torch.equal(network.encode(SOURCE, source_token_mask=REAL, mask=[causal(), causal()]), one_way)
    matrix = torch.ones(5, 5).tril().bool()
    assert torch.equal(network.encode(SOURCE, source_token_mask=REAL, mask=matrix), one_way)
    mixed = network.encode(SOURCE, mask=[causal(), bidirectional()])
    assert not torch.allclose(mixed, network.encode(SOURCE, mask=[bidirectional(), causal()]))
    # A mask of each kind is joined with the padding
    network = make()
    for mask in (causal(), window(1, 1), torch.ones(5, 5).tril().bool()):
        with observe(network) as seen:
            network.encode(SOURCE, mask=mask, source_token_mask=REAL)
        allowed = mask.dense(5) if isinstance(mask, Mask) else mask
        assert torch.equal(seen["encoder", 0] > 0, (allowed & padding(REAL).dense(5)).expand(2, 2, 5, 5))
    # Outputs, and exactly zero gradients at padded source positions
    network = make()
    noise = torch.where(REAL, SOURCE, torch.full_like(SOURCE, 11))
    expected = logits(network, SOURCE, TARGET, source_token_mask=REAL)
    torch.testing.assert_close(logits(network, noise, TARGET, source_token_mask=REAL), expected, rtol=0, atol=0)
    torch.testing.assert_close(expected[1:], logits(network, SOURCE[1:, :3], TARGET[1:]), rtol=0, atol=1e-12)
    encoded = network.encode(SOURCE, source_token_mask=REAL).detach().requires_grad_()
    network(None, TARGET, encoded=encoded, source_token_mask=REAL).logits.sum().backward()
    assert bool((encoded.grad[~REAL] == 0).all()) and bool((encoded.grad[REAL].abs().sum(-1) > 0).all())
    # Target padding does not reach real positions
    real = torch.tensor([[True] * 4, [True, True, False, False]])
    noise = torch.where(real, TARGET, torch.full_like(TARGET, 12))
    noisy, masked = (logits(network, SOURCE, target, target_token_mask=real)[real] for target in (noise, TARGET))
    assert torch.equal(noisy, masked)
    # A source of nothing but padding gives finite numbers and gradients
    network = make(torch.float32)
    real = torch.tensor([[True] * 5, [False] * 5])
    out = network(SOURCE, TARGET, source_token_mask=real).logits
    out.sum().backward()
    assert bool(out.isfinite().all())
    assert all(bool(p.grad.isfinite().all()) for p in network.parameters() if p.grad is not None)
    # Cross-attention: shape (T,S); K and V come of the encoder alone; padding of the source gets exactly 0
    network = make()
    with observe(network) as first:
        network(SOURCE, TARGET, source_token_mask=REAL)
    assert first["cross", 0].shape == (2, 2, 4, 5)
    assert bool((first["cross", 0][1, :, :, 3:] == 0).all()) and bool((first["cross", 1][1, :, :, 3:] == 0).all())
    states = [network(SOURCE, x, source_token_mask=REAL, state=network.begin()).state for x in (TARGET, TARGET.flip(1))]
    for one, other in zip(states[0].blocks, states[1].blocks):
        assert torch.equal(one.cross_attention.keys, other.cross_attention.keys)
        assert torch.equal(one.cross_attention.values, other.cross_attention.values)
        assert not torch.equal(one.self_attention.keys, other.self_attention.keys)


def test_a2_a8_multi_head_equals_separate_heads_and_weights_convert_both_ways() -> None:
    """Also with norms of queries and keys, and where the text is read as the source of cross-attention."""
    for normed in (False, True):
        torch.manual_seed(0)
        norms = [RMSNorm(5, eps=1e-6) if normed else None for _ in range(2)]
        part = MultiHeadAttention(12, 4, n_kv_heads=2, d_head=5, query_norm=norms[0], key_norm=norms[1]).double()
        for norm in filter(None, norms):
            nn.init.uniform_(norm.weight, 0.5, 2.0)
        x = torch.randn(2, 3, 12, dtype=torch.float64)
        weights = part.head_weights()
        shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
        assert shapes == {"query": (4, 12, 5), "key": (2, 12, 5), "value": (2, 12, 5), "output": (4, 5, 12)}
        biases = [row.view(-1, 5) for row in part.input.bias.split([20, 10, 10])]
        total = part.output.bias.expand(2, 3, 12)
        for head in range(4):
            q = x @ weights["query"][head] + biases[0][head]
            k, v = (x @ weights[name][head // 2] + biases[at][head // 2] for at, name in ((1, "key"), (2, "value")))
            if normed:
                q, k = (F.rms_norm(side, (5,), norm.weight, 1e-6) for side, norm in zip((q, k), norms))
            total = total + attend(q[:, None], k[:, None], v[:, None], mask=causal())[:, 0] @ weights["output"][head]
        for found in (part(x, mask=causal()), part(x, x, mask=causal())):
            torch.testing.assert_close(found[0], total, rtol=0, atol=1e-10)
    torch.manual_seed(0)
    one, two = (MultiHeadAttention(12, 4, n_kv_heads=2, d_head=5, bias=False) for _ in range(2))
    two.load_head_weights(one.head_weights())
    for name, weight in one.state_dict().items():
        assert torch.equal(two.state_dict()[name], weight)
    x = torch.randn(1, 3, 12)
    assert torch.equal(one(x)[0], two(x)[0])


def test_a12_c7_c8_h6_whole_equals_token_by_token_row_by_row_and_from_what_is_encoded() -> None:
    """Matrix form against one forward pass for each prefix."""
    network = make()
    whole = logits(network, SOURCE, TARGET, source_token_mask=REAL)
    for t in range(1, 5):
        step = logits(network, SOURCE, TARGET[:, :t], source_token_mask=REAL)[:, -1]
        torch.testing.assert_close(step, whole[:, t - 1], rtol=0, atol=1e-12)
    # C8: `encoded` may be given instead of a source
    out = network(SOURCE, TARGET, source_token_mask=REAL)
    again = network(None, TARGET, encoded=out.encoded, source_token_mask=REAL)
    assert torch.equal(out.logits, again.logits) and again.encoded is out.encoded
    # H6: a row alone, in a batch, or in another order: the same numbers
    together = logits(network, SOURCE, TARGET, source_token_mask=REAL)
    order = torch.tensor([1, 0])
    swapped = logits(network, SOURCE[order], TARGET[order], source_token_mask=REAL[order])
    torch.testing.assert_close(swapped[order], together, rtol=0, atol=1e-12)
    for row in range(2):
        alone = logits(network, SOURCE[row : row + 1, : int(REAL[row].sum())], TARGET[row : row + 1])
        torch.testing.assert_close(alone[0], together[row], rtol=0, atol=1e-12)
    # C7: changing target t moves logits from t on, never before: logits t-1 predict it
    before = logits(network, SOURCE, TARGET)
    for t in range(4):
        changed = TARGET.clone()
        changed[:, t] = 11
        after = logits(network, SOURCE, changed)
        assert torch.equal(after[:, :t], before[:, :t]) and not torch.allclose(after[:, t:], before[:, t:])


def test_c1_c7_layer_norm_by_hand_where_it_stands_and_the_order_of_the_layers() -> None:
    """Population σ and ε; post-norm norm(x + f(x)), pre-norm x + f(norm(x))."""
    x = torch.tensor([[1.0, 2.0, 3.0, 6.0]], dtype=torch.float64)
    f = torch.tensor([[0.5, -1.0, 0.0, 2.0]], dtype=torch.float64)
    layer = nn.LayerNorm(4, eps=1e-3).double()
    gamma, beta = torch.tensor([1.0, 2.0, -1.0, 0.5]).double(), torch.tensor([0.0, 1.0, 0.0, -1.0]).double()
    layer.load_state_dict({"weight": gamma, "bias": beta})
    post, pre = (Residual(layer, norm_placement=placement, dropout=0.0) for placement in ("post", "pre"))

    def norm(v: Tensor) -> Tensor:
        values = v[0].tolist()
        mean = sum(values) / 4
        variance = sum((value - mean) ** 2 for value in values) / 4
        scaled = torch.tensor([[(value - mean) / math.sqrt(variance + 1e-3) for value in values]], dtype=torch.float64)
        return scaled * gamma + beta

    assert torch.equal(post.before(x), x)
    torch.testing.assert_close(post.after(x, f, None), norm(x + f), rtol=0, atol=1e-12)
    torch.testing.assert_close(pre.before(x), norm(x), rtol=0, atol=1e-12)
    assert torch.equal(pre.after(x, f, None), x + f)
    # The S3 order, by removing each part's output and seeing which later parts read the change
    torch.manual_seed(0)
    block = make_block(replace(CONFIG, norm="pre"), kind="decoder", layer=0, reads_source=True).double()
    calls: list[str] = []
    for name in ("self_attention", "cross_attention", "feed_forward"):
        getattr(block, name).register_forward_hook(lambda *_, name=name: calls.append(name))
    x, memory = torch.randn(1, 3, 8).double(), torch.randn(1, 4, 8).double()
    out = block(x, mask=causal(), memory=memory)
    assert calls == ["self_attention", "cross_attention", "feed_forward"]
    one, two, three = block.self_attention_residual, block.cross_attention_residual, block.feed_forward_residual
    x = x + block.self_attention(one.norm(x), mask=causal())[0]
    x = x + block.cross_attention(two.norm(x), memory)[0]
    x = x + block.feed_forward(three.norm(x))
    torch.testing.assert_close(out, x, rtol=0, atol=1e-12)
    encoder_block = make_block(CONFIG, kind="encoder", layer=0)
    assert encoder_block.cross_attention is None and encoder_block.cross_attention_residual is None


def test_c2_c3_c4_c5_feed_forward_embedding_and_output_by_their_formulas() -> None:
    """max(0, x W1 + b1) W2 + b2, or x·Φ(x) in the middle; each position alike."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    for activation in ("relu", "gelu"):
        part = FeedForward(4, 6, activation=activation).double()
        inner = x @ part.inner.weight.T + part.inner.bias
        phi = 0.5 * (1 + torch.erf(inner / math.sqrt(2)))
        bent = inner.clamp(min=0) if activation == "relu" else inner * phi
        torch.testing.assert_close(part(x), bent @ part.outer.weight.T + part.outer.bias, rtol=0, atol=1e-12)
        torch.testing.assert_close(part(x)[:, 1:2], part(x[:, 1:2]), rtol=0, atol=1e-12)
    table = TokenEmbedding(5, 9)
    torch.nn.init.normal_(table.weight)
    torch.testing.assert_close(table(torch.tensor([[3]]))[0, 0], table.weight[3] * 3)
    unscaled = TokenEmbedding(5, 9, scale=False)
    torch.nn.init.normal_(unscaled.weight)
    assert torch.equal(unscaled(torch.tensor([[3]]))[0, 0], unscaled.weight[3])
    bare, placed = make(positions=PositionConfig("none")), make()
    assert len(bare.source_inputs.positions.schemes) == 0
    x, same = placed.embedding(SOURCE), bare.embedding(SOURCE)
    torch.testing.assert_close(placed.source_inputs(x), placed.source_inputs.positions(x))
    assert torch.equal(bare.source_inputs(same), same)
    for tied in (True, False):
        network = make(output={"tied": tied}, n_decoder_layers=3)
        assert (len(network.encoder.blocks), len(network.decoder.blocks)) == (2, 3)
        out = network(SOURCE, TARGET)
        assert out.hidden.shape == (2, 4, 8) and out.encoded.shape == (2, 5, 8)
        assert isinstance(out, Output) and out.logits is not None and out.logits.shape == (2, 4, 13)
        torch.testing.assert_close(out.logits.softmax(-1).sum(-1), torch.ones(2, 4).double())
        torch.testing.assert_close(out.logits, out.hidden @ network.projection.T)
        assert (network.projection is network.embedding.weight) == tied
        tables = ("embedding.weight", "heads.vocabulary.output.weight")
        rest = sum(p.numel() for n, p in network.named_parameters() if n not in tables)
        assert parameter_count(network) == rest + (1 if tied else 2) * 13 * 8
        assert network(SOURCE, TARGET, project=False).logits is None


def test_dropout_depends_on_the_randomness_given_only_while_training_with_the_rate_of_its_place(monkeypatch) -> None:
    network = make(torch.float32, dropout=0.3, attention={"dropout": 0.2}, feed_forward={"dropout": 0.2})
    sure = logits(network, SOURCE, TARGET)
    assert torch.equal(logits(network, SOURCE, TARGET, random=Randomness(1)), sure)
    network.train()
    places = ((1,), (1,), (2,), (1, 1), (1, 0, 1))
    first, again, *others = (logits(network, SOURCE, TARGET, random=Randomness(*place)) for place in places)
    assert torch.equal(first, again) and not any(torch.equal(first, other) for other in (*others, sure))
    # Inputs and residual connections, feed-forward networks, attention weights: each place of two layers a side
    rates: list[tuple[str, float]] = []

    def noted(name: str, module: ModuleType) -> None:
        right = getattr(module, name)

        def mask(like: object, p: float, *rest: Any) -> Tensor:
            rates.append((name, p))
            return right(like, p, *rest)

        monkeypatch.setattr(module, name, mask)

    noted("dropout_mask", dropout)
    noted("pair_dropout", kernels)
    network = make(torch.float32, dropout=0.25, attention={"dropout": 0.125}, feed_forward={"dropout": 0.5}).train()
    logits(network, SOURCE, TARGET, random=Randomness(1))
    counts = {("dropout_mask", 0.25): 2 + 2 * 2 + 2 * 3, ("dropout_mask", 0.5): 2 + 2}
    assert Counter(rates) == counts | {("pair_dropout", 0.125): 2 + 2 * 2}


@torch.no_grad()
def test_initial_weights_follow_their_shapes() -> None:
    """Xavier bound √(6/(in+out)) for each square matrix, those stacked in attention too; embeddings 1/√D; biases 0."""
    torch.manual_seed(0)
    network = build_network(replace(CONFIG, vocab_size=500, d_model=64, d_ff=256, n_heads=4))
    attention, feed = network.encoder.blocks[0].self_attention, network.encoder.blocks[0].feed_forward
    for weight, bound in ((attention.input.weight, (6 / 128) ** 0.5), (feed.inner.weight, (6 / 320) ** 0.5)):
        assert float(weight.detach().abs().max()) <= bound
        assert float(weight.detach().std()) == pytest.approx(bound / 3**0.5, rel=0.05)
    assert float(network.embedding.weight.std()) == pytest.approx(1 / 8, rel=0.05)
    assert bool((attention.input.bias == 0).all()) and bool((feed.outer.bias == 0).all())
    normal = build_network(replace(CONFIG, d_model=64, d_ff=256, initializer="normal"))
    assert float(normal.encoder.blocks[0].feed_forward.inner.weight.std()) == pytest.approx(0.02, rel=0.05)


def test_what_cannot_be_is_refused() -> None:
    network = make()
    fails(ValueError, "`n_kv_heads` must divide `n_heads`: got 3 and 4", MultiHeadAttention, 8, 4, n_kv_heads=3)
    fails(ValueError, "give `source_ids`, or `encoded`, or a `state` that has seen the source", network, None, TARGET)
    with pytest.raises(ValueError, match="a list of masks gives one a layer: got 3 for 2 layers"):
        network.encode(SOURCE, mask=[causal()] * 3)
    fails(ValueError, "`vocab_size` must be at least 1: got 0", EncoderDecoder, replace(CONFIG, vocab_size=0))
    with pytest.raises(RecipeError, match=r"`architecture` cannot be 'encoders'; did you mean 'encoder'\? Known: "):
        replace(CONFIG, architecture="encoders")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the mask padding was made for 5 keys: got 4"):
        network.encode(SOURCE[:, :4], source_token_mask=REAL)
    for padded in (False, True):
        with pytest.raises(TypeError, match=r"a mask must be boolean, True = may attend: got torch\.float32"):
            make().encode(SOURCE, mask=torch.zeros(5, 5), source_token_mask=REAL if padded else None)
