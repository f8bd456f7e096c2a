"""What each token of a network reads: sparse attention, its limits, cost and refusals; the mask that a recipe gives."""

from typing import Any

import pytest
import torch
from torch import Tensor

from atento.attention import observe
from atento.attention.masks import bidirectional, causal, lookahead, prefix, window
from atento.base.errors import RecipeError
from atento.config.reading.loading import load_recipe
from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import AttentionConfig, MaskConfig, SparseConfig
from atento.config.sections.position_scheme import PositionConfig
from atento.config.sections.training import TrainingConfig
from atento.data.batches.batch import Ragged
from atento.data.objectives.sequence_to_sequence import parallel
from atento.networks import build_network
from atento.training.losses import Call, losses
from atento.training.step import Updater
from failing import fails

SOURCE, TARGET = map(torch.tensor, ([[5, 6, 7, 8, 9, 4, 10], [9, 4, 3, 8, 0, 0, 0]], [[2, 5, 6, 9], [2, 8, 9, 4]]))
REAL = SOURCE > 0
DENSE = {
    "top-k": SparseConfig(top_k=7),
    "alpha 1": SparseConfig(alpha=1.0),
    "span": SparseConfig(span=10_000),  # begins at half of that
    "blocks": SparseConfig(blocks=4, block_size=2),
}
SPARSE = {
    "top-k": SparseConfig(top_k=2),
    "alpha": SparseConfig(alpha=1.7),
    "learned alpha": SparseConfig(alpha=1.5, learn_alpha=True),
    "span": SparseConfig(span=4, ramp=1),
    "all three": SparseConfig(top_k=3, alpha=1.5, learn_alpha=True, span=6, ramp=2, layers=(1,)),
}


def make(sparse: SparseConfig | None, **changes: Any) -> Any:
    torch.manual_seed(3)
    sizes: dict[str, Any] = {"vocab_size": 13, "d_model": 12, "d_ff": 20, "n_heads": 2, "n_layers": 2, "dropout": 0.0}
    network = build_network(NetworkConfig(**sizes | {"attention": {"sparse": sparse}} | changes)).double().eval()
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, parameter in sorted(network.named_parameters()):
            if "sparse" not in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.5)
    return network


def logits(network: Any) -> Tensor:
    return network(SOURCE, TARGET, source_token_mask=REAL).logits


def test_a17_a19_what_is_seen_is_sparse_sums_to_one_and_ends_with_its_span() -> None:
    """`sparse.look_ahead`: spans of 2 with a ramp of 1 end before the third key; else later keys are not limited."""
    for ahead in (True, False):
        network = make(SparseConfig(span=4, ramp=1, look_ahead=ahead))
        with torch.no_grad(), observe(network) as seen:
            logits(network)
        weights = seen["encoder", 0][0]
        assert not weights.tril(-3).any() and bool(weights.triu(3).any()) != ahead
    for name in DENSE:
        torch.testing.assert_close(logits(make(DENSE[name])), logits(make(None)), rtol=0, atol=1e-10)
    for sparse in (*SPARSE.values(), SparseConfig(blocks=1, block_size=2)):
        network = make(sparse)
        with observe(network) as seen:
            logits(network)
        weights = seen["encoder", 1]
        sums = weights.sum(-1)[REAL[:, None].expand(-1, 2, -1)]  # a query that is padding may see nothing: 0
        torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=1e-5)
        assert bool((weights[1, ..., 4:] == 0).all())  # source padding
        kept = (weights[0] > 0).sum(-1)
        assert int(kept.min()) < 7  # some links of the full sentence are gone
        if sparse.top_k == 2 or sparse.blocks == 1:
            assert int(kept.max()) <= 2
    # Past 512 tokens the spans stand in the mask, so the strips reach only so far; the output is the same
    network = make(SparseConfig(span=40, ramp=8), n_layers=1).float()
    ids = torch.randint(4, 11, (1, 900), generator=torch.Generator().manual_seed(1))
    (mask,) = network.encoder._masks(network.source_inputs.positions(network.embedding(ids)), None, None, None, None)
    assert mask.reachable(400, 464) == (400 - 27, 464 + 27)  # a span of 20 and a ramp of 8, whose last step is 0
    skipped = network.encode(ids)
    dense = network.encode(ids, mask=torch.ones(1, 1, 900, 900, dtype=torch.bool))  # a tensor is left as it is
    torch.testing.assert_close(skipped, dense, rtol=0, atol=1e-5)


@pytest.mark.parametrize("positions", [PositionConfig(), PositionConfig("shaw"), PositionConfig("rotary")], ids=str)
@pytest.mark.parametrize("name", SPARSE)
def test_a17_cached_decoding_equals_one_pass(name: str, positions: PositionConfig) -> None:
    network = make(SPARSE[name], positions=positions)
    whole, state = logits(network), network.begin()
    for t in range(TARGET.shape[1]):
        step = network(SOURCE, TARGET[:, t : t + 1], source_token_mask=REAL, state=state).logits
        torch.testing.assert_close(step[:, 0], whole[:, t], rtol=0, atol=1e-9)
    assert float((whole - logits(make(None, positions=positions))).abs().max()) > 1e-3  # it does something


def test_a17_what_is_learned_gets_a_gradient_and_the_cost_shrinks_spans() -> None:
    """The loss counts the mean span: with nothing else to gain, spans shrink; plain training does not move them so."""
    rng = torch.Generator().manual_seed(1)
    ids = [torch.randint(4, 11, (12,), generator=rng).tolist() for _ in range(16)]
    batches = parallel(Ragged(ids), Ragged(ids), budget=256, seed=1, pad_id=0, start_id=2, eos_id=3)

    def trained(cost: float) -> float:
        network = make(SparseConfig(span=8, ramp=2, span_cost=cost)).float()
        updater = Updater(network, TrainingConfig(learning_rate=0.05), "float32")
        for number in range(30):
            updater.update(batches.parts(number), number + 1, 0.05)
        spans = [p for name, p in network.named_parameters() if name.endswith("logit")]
        assert len(spans) == 6 and all(bool((p != 0).all()) for p in spans)  # all began at 0, half of the longest
        return float(torch.cat([8 * torch.sigmoid(p.detach()) for p in spans]).mean())

    assert trained(1.0) < 0.5 * trained(0.0)
    network, plain = make(SparseConfig(span=8, span_cost=0.25)), make(SparseConfig(span=8))
    ids = Ragged([[5, 6, 7]])
    (part,) = parallel(ids, ids, budget=64, seed=1, pad_id=0, start_id=2, eos_id=3).parts(0)
    with_cost, nll = losses(network, part.batch, Call())["vocabulary"]
    without, _ = losses(plain, part.batch, Call())["vocabulary"]
    # begun at half of 8: encoder layers look back and ahead, 8 together, decoder layers back, 4; two of each
    assert float(with_cost - without) == pytest.approx(0.25 * (8 + 8 + 4 + 4) * 4)  # 3 tokens and EOS
    assert float(nll) == pytest.approx(float(without))


def test_settings_that_cannot_be_or_do_not_fit_the_network_are_refused() -> None:
    for arguments, message in (
        ({"top_k": 0}, "`top_k` must be at least 1: got 0"),
        ({"alpha": 2.5}, r"`alpha` must lie in \[1, 2\]: got 2.5"),
        ({"learn_alpha": True}, "`learn_alpha` needs an `alpha` between 1 and 2 to begin at: got None"),
        ({"span_cost": -1.0}, "`span_cost` must not be negative: got -1.0"),
        ({"blocks": 2, "top_k": 3}, "`blocks` excludes `top_k`"),
        ({"layers": (-1,)}, r"`layers` must not be negative: got \(-1,\)"),
    ):
        fails(RecipeError, message, SparseConfig, **arguments)
    with pytest.raises(RecipeError, match=r"`attention.sparse.layers` count from 0 to 1: got \(2,\)"):
        NetworkConfig(n_layers=2, attention=AttentionConfig(sparse=SparseConfig(top_k=1, layers=(2,))))
    message = r"`attention\.sparse\.blocks` adds nothing to scores and drops no weights: got t5 positions"
    with pytest.raises(RecipeError, match=message):
        NetworkConfig(positions=PositionConfig("t5"), attention=AttentionConfig(sparse=SparseConfig(blocks=2)))
    with pytest.raises(RecipeError, match=r"got `attention\.dropout` 0\.1"):
        NetworkConfig(attention=AttentionConfig(dropout=0.1, sparse=SparseConfig(blocks=2)))


IDS = torch.randint(1, 13, (2, 11), generator=torch.Generator().manual_seed(0))
CASES = {
    "causal": (MaskConfig("causal"), causal()),
    "prefix": (MaskConfig("prefix", length=4), prefix(4)),
    "lookahead": (MaskConfig("lookahead", ahead=2), lookahead(2)),
    "window": (MaskConfig("window", left=2, right=1), window(2, 1)),
    "all before, two after": (MaskConfig("window", right=2), lookahead(2)),
    "layers": (MaskConfig("window", left=1, right=0, layers=(1,)), [bidirectional(), window(1, 0), bidirectional()]),
}


def masked(architecture: str, mask: MaskConfig | None) -> Any:
    return make(None, architecture=architecture, mask=mask, n_layers=3)


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_an_encoder_has_the_mask_of_its_recipe(name: str) -> None:
    config, mask = CASES[name]
    wanted = masked("encoder", None)(IDS, mask=mask).hidden
    torch.testing.assert_close(masked("encoder", config)(IDS).hidden, wanted, rtol=0, atol=1e-12)
    assert float((wanted - masked("encoder", None)(IDS).hidden).abs().max()) > 1e-3
    two = masked("encoder-decoder", config)
    expected = masked("encoder-decoder", None).encode(IDS, mask=mask)
    torch.testing.assert_close(two.encode(IDS), expected, rtol=0, atol=1e-12)
    assert {one.name for one in two.decoder.masks} == {"causal"}


@torch.no_grad()
def test_a_decoder_with_a_window_reads_on_from_its_cache() -> None:
    """Token by token equal to one pass, in which no token sees further back than the windows of all layers reach."""
    network = masked("decoder", MaskConfig("window", left=2, right=5))  # nobody looks ahead all the same
    whole = network(IDS).hidden
    state = network.begin()
    parts = [network(IDS[:, t : t + 1], state=state).hidden for t in range(IDS.shape[1])]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=0, atol=1e-12)
    changed = IDS.clone()
    changed[:, 0] = (changed[:, 0] + 1) % 13
    away = (network(changed).hidden - whole).abs().amax(dim=(0, 2))
    assert (away[:7] > 0).all() and (away[7:] == 0).all()  # three layers of two neighbours


def test_a_mask_in_place_of_its_own_keeps_the_window(tmp_path: Any) -> None:
    """Pair by pair, in its layers alone: of a prefix, a decoder sees as many tokens ahead as behind."""
    for architecture, ahead in (("decoder", 2), ("encoder", 1)):
        network = masked(architecture, MaskConfig("window", left=2, right=1, layers=(1,)))
        masks = [mask.dense(7, 7)[0, 0].tolist() for mask in network.with_own_window(prefix(4))]
        for layer, mask in enumerate(masks):
            for q in range(7):
                seen = [k <= q or k < 4 for k in range(7)]
                if layer == 1:
                    seen = [may and q - 2 <= k <= q + ahead for k, may in enumerate(seen)]
                assert mask[q] == seen, (layer, q)
    with pytest.raises(RecipeError, match="`mask` of a decoder must be causal or window: got 'lookahead'"):
        NetworkConfig("decoder", mask=MaskConfig("lookahead", ahead=1))
    with pytest.raises(RecipeError, match=r"`mask\.layers` count from 0 to 2: got \(3,\)"):
        NetworkConfig("encoder", n_layers=3, mask=MaskConfig("window", left=1, layers=(3,)))
    with pytest.raises(RecipeError, match="`mask` belongs to a Transformer: got architecture 'recurrent-lm'"):
        NetworkConfig("recurrent-lm", mask=MaskConfig("causal"))
    recipe = tmp_path / "my.yaml"
    recipe.write_text("task: translation\ndata: {train: {world: train, count: 9}}\nnetwork:\n  mask: {ahead: 2}\n")
    fails(RecipeError, r"my\.yaml:4:17: `mask\.ahead` has no meaning for a mask of kind window", load_recipe, recipe)
    assert load_recipe(recipe, ["network.mask.kind=lookahead"]).recipe.network.mask == MaskConfig("lookahead", ahead=2)
