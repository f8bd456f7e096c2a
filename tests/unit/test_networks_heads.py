"""Heads by name on every architecture, vocabularies too large for one matrix, layers that share their weights."""

import math
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from atento.attention.observe import observe
from atento.base.errors import CapabilityError, RecipeError, UsageError
from atento.base.splitmix import log_uniform
from atento.config.reading.loading import load_recipe
from atento.config.recipe import TokenizerConfig
from atento.config.sections.network import NetworkConfig, changed, network_to_dict
from atento.config.sections.network_parts import OutputConfig
from atento.config.sections.recurrent import ELMoConfig
from atento.config.sections.training import TrainingConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.config.tables.objective import ObjectiveConfig
from atento.data.objectives import batches_for
from atento.data.objectives.preparation import Preparation
from atento.data.records.splits import Split
from atento.models.load import load_model
from atento.models.write import save_model
from atento.networks import Encoder, Network, build_network, parameter_count
from atento.networks.large_vocabulary import AdaptiveSoftmax, sampled_nats
from atento.networks.vocabulary import VocabularyHead, cross_entropy, plain_cross_entropy
from atento.text.tokenizer_training import train_tokenizer
from atento.training.losses import Call, losses
from atento.training.step import Updater
from failing import fails
from tiny_families import tiny_config, tiny_network

SIZES: dict[str, Any] = {"vocab_size": 13, "d_model": 8, "d_ff": 12, "n_heads": 2, "n_layers": 2, "dropout": 0.0}
HEADS = (
    HeadConfig("classification", ("a", "b", "c"), dropout=0.0),
    HeadConfig("regression", dropout=0.0),
    HeadConfig("tagging", ("x", "y"), dropout=0.0),
    HeadConfig("answer", dropout=0.0),
)
IDS = torch.tensor([[4, 9, 7, 10, 5], [6, 8, 11, 0, 0]])
REAL = IDS != 0
ARCHITECTURES = ("encoder", "decoder", "encoder-decoder", "recurrent-seq2seq", "recurrent-lm", "elmo")
LONG = torch.arange(18).view(2, 9)


def made(architecture: str, **changes: Any) -> Network:
    torch.manual_seed(3)
    more: dict[str, Any] = {"elmo": ELMoConfig(characters=None, d_cell=6)} if architecture == "elmo" else {}
    config = NetworkConfig(**SIZES | {"architecture": architecture, "heads": HEADS} | more | changes)
    return build_network(config).double().eval()


def run(network: Network) -> tuple[Any, Tensor]:
    """Its output, and the vectors (B,L,D) of the text that its heads read."""
    output = network(IDS, **{("source_token_mask" if network.config.reads_source else "token_mask"): REAL})
    return output, output.hidden if output.encoded is None else output.encoded


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@torch.no_grad()
def test_each_head_reads_the_vectors_it_should_on_every_architecture(architecture: str) -> None:
    network = made(architecture)
    output, hidden = run(network)
    pooled = {
        "first": hidden[:, 0],
        "last": torch.stack([hidden[0, 4], hidden[1, 2]]),
        "mean": torch.stack([hidden[0].mean(dim=0), hidden[1, :3].mean(dim=0)]),
    }
    usual = {"encoder": "first", "decoder": "last", "recurrent-lm": "last"}.get(architecture, "mean")
    for head in HEADS:
        part = network.heads[head.name]
        wanted = (hidden if head.kind in ("tagging", "answer") else pooled[usual]) @ part.out.weight.T + part.out.bias
        torch.testing.assert_close(network.read(head.name, output, REAL), wanted, rtol=0, atol=1e-12)
    assert [network.heads[head.name].kind for head in HEADS] == ["class", "number", "tag", "span"]
    expected = [] if architecture == "encoder" else ["vocabulary"]
    assert list(network.heads) == [*expected, *(head.name for head in HEADS)]


@torch.no_grad()
def test_a_head_may_stand_on_the_half_that_writes_and_features_of_recurrent_networks() -> None:
    network = made("encoder-decoder", heads=(HeadConfig("classification", ("a", "b"), dropout=0.0, side="decoder"),))
    output = network(IDS, IDS[:, :3])
    part = network.heads["classification"]
    torch.testing.assert_close(network.read("classification", output), part(output.hidden[:, -1]), rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="head 'classification' is on the decoder: give the network a target"):
        network.read("classification", network(IDS))
    for architecture in ("recurrent-seq2seq", "recurrent-lm"):
        network = made(architecture)
        assert torch.equal(network.features(IDS, token_mask=REAL), run(network)[1])
        with pytest.raises(CapabilityError, match="a recurrent network gives the vectors of its last layer alone"):
            network.features(IDS, layer=0)
    elmo = made("elmo")
    assert torch.equal(elmo.features(IDS, token_mask=REAL, layer=0), elmo.layers(IDS, token_mask=REAL)[1])  # type: ignore[operator]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["transform", "scale", "plain"])
def test_every_vocabulary_head_trains_in_bounded_memory(kind: str, tied: bool) -> None:
    """read, matrix and bias give the blocked loss; its value and gradients are those of all logits at once."""
    head = (HeadConfig("masked-language-model", activation="silu"),)
    changes: dict[str, Any] = {"heads": head} if kind == "transform" else {"heads": (), "output": {"bias": True}}
    changes["output"] = changes.get("output", {}) | {"tied": tied, "scaled": kind == "scale"}
    network = made("encoder" if kind == "transform" else "decoder", **changes)
    part = network.vocabulary_head
    assert isinstance(part, VocabularyHead) and (part.transform is not None) == (kind == "transform")
    with torch.no_grad():
        for parameter in part.parameters():
            parameter.normal_()
    hidden, labels = network(IDS, project=False).hidden.flatten(0, 1), IDS.flatten()
    loss, _ = cross_entropy(part.read(hidden), part.matrix(network.table), labels, 0.1, part.bias)
    logits = part(hidden, network.table)
    log_probs = F.log_softmax(logits, dim=-1)
    wanted = -0.9 * log_probs.gather(1, labels[:, None]).sum() - 0.1 * log_probs.mean(dim=-1).sum()
    torch.testing.assert_close(loss, wanted, rtol=0, atol=1e-9)
    torch.testing.assert_close(logits, network.project(hidden), rtol=0, atol=0)
    weights = list(network.parameters())
    blocked = torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True)
    plain, _ = plain_cross_entropy(part.read(hidden), part.matrix(network.table), labels, 0.1, part.bias)
    for ours, theirs in zip(blocked, torch.autograd.grad(plain, weights, allow_unused=True)):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


@pytest.mark.parametrize("architecture", ["encoder", "decoder", "encoder-decoder"])
@torch.no_grad()
def test_features_are_what_each_block_hands_on(architecture: str) -> None:
    network = made(architecture, norm="pre")
    stack = network.encoder if architecture == "encoder-decoder" else network.stack
    seen: list[Tensor] = []
    hooks = [block.register_forward_hook(lambda module, inputs, out: seen.append(out)) for block in stack.blocks]  # type: ignore[union-attr]
    _, hidden = run(network)
    for hook in hooks:
        hook.remove()
    assert torch.equal(network.features(IDS, token_mask=REAL, layer=0), seen[0])
    assert torch.equal(network.features(IDS, token_mask=REAL), hidden) and not torch.equal(hidden, seen[1])
    assert torch.equal(network.features(IDS, token_mask=REAL, layer=1), hidden)
    fails(UsageError, "`layer` must lie between -2 and 1: got 2", network.features, IDS, layer=2)


def test_heads_that_cannot_be_are_refused() -> None:
    with pytest.raises(RecipeError, match="`heads` must have different names: got 'answer' twice"):
        made("encoder", heads=(HEADS[3], HEADS[3]))
    with pytest.raises(RecipeError, match="`heads` must have different names: got 'vocabulary' twice"):
        made("decoder", heads=(replace(HEADS[3], name="vocabulary"),))
    with pytest.raises(RecipeError, match="a masked-language-model head belongs to an encoder: got architecture 'dec"):
        made("decoder", heads=(HeadConfig("masked-language-model"),))
    with pytest.raises(RecipeError, match=r"`heads\.side` is for networks that read a source and write"):
        made("decoder", heads=(replace(HEADS[0], side="decoder"),))
    with pytest.raises(RecipeError, match="a regression head that reads the pooler needs `pooler: true`"):
        made("decoder", heads=(replace(HEADS[1], pooling="pooler"),))
    fails(RecipeError, r"`name` of a head must hold no dot: got 'a\.b'", replace, HEADS[0], name="a.b")
    fails(RecipeError, "`name` of a head cannot be 'items'", made, "encoder", heads=(replace(HEADS[0], name="items"),))
    fails(CapabilityError, "this network has no 'tags' head", made("encoder").read, "tags", None)
    two = made("encoder", heads=(HEADS[0], replace(HEADS[0], name="second")))
    assert list(two.heads) == ["classification", "second"]


def albert(**changes: Any) -> Encoder:
    return tiny_network(tiny_config("albert-base", n_layers=3, **changes)).requires_grad_()


def test_shared_layers_are_one_block_run_again_whose_gradient_is_the_sum() -> None:
    network = albert()
    plain = build_network(changed(network.config, shared_layers=False)).eval()
    weights = network.state_dict()
    block = {name.removeprefix("stack.blocks.0."): w for name, w in weights.items() if "blocks.0." in name}
    copies = {f"stack.blocks.{n}.{name}": weight for n in range(3) for name, weight in block.items()}
    plain.load_state_dict(weights | copies)
    with torch.no_grad():
        torch.testing.assert_close(network(LONG).hidden, plain(LONG).hidden, rtol=0, atol=0)
        for layer in range(3):
            torch.testing.assert_close(network.features(LONG, layer=layer), plain.features(LONG, layer=layer))
    assert parameter_count(plain) - parameter_count(network) == 2 * sum(w.numel() for w in block.values())
    for made in (network, plain):
        made(LONG).hidden.square().sum().backward()
    name = "feed_forward.inner.weight"
    total = sum(plain.get_parameter(f"stack.blocks.{n}.{name}").grad for n in range(3))
    torch.testing.assert_close(network.get_parameter(f"stack.blocks.0.{name}").grad, total, rtol=1e-4, atol=1e-5)


def test_each_layer_is_observed_under_its_number_saved_and_loaded_and_a_head_has_its_own_activation(tmp_path) -> None:
    network = albert()
    with torch.no_grad(), observe(network) as recorded:
        network(LONG)
    assert recorded.n_layers == {"encoder": 3} and not torch.equal(recorded["encoder", 0], recorded["encoder", 2])
    network = albert(heads=(HeadConfig("masked-language-model"),))
    about = {"model_type": "atento", "name": "x", "task": "embedding", "network": network_to_dict(network.config)}
    folder = save_model(tmp_path / "saved", about, network.state_dict(), None)
    again = load_model(folder, "cpu", "float32").network
    with torch.no_grad():
        assert torch.equal(again(LONG).logits, network(LONG).logits)
    for activation, function in ((None, torch.tanh), ("relu", torch.relu)):
        head = HeadConfig("classification", ("a", "b"), pooling="first", hidden=True, activation=activation)
        network = albert(heads=(head,))
        layers = network.heads["classification"]
        with torch.no_grad():
            out = network(LONG)
            torch.testing.assert_close(out.logits, layers.out(function(layers.dense(out.hidden[:, 0]))))
    with pytest.raises(RecipeError, match=r"`embedding\.width` belongs to an encoder: got architecture 'decoder'"):
        NetworkConfig(architecture="decoder", embedding={"width": 8})
    with pytest.raises(RecipeError, match=r"`embedding\.width` must be at least 1: got 0"):
        NetworkConfig(architecture="encoder", embedding={"width": 0})
    with pytest.raises(RecipeError, match=r"span-boundary head .* `d_model`: `embedding\.width` must be null"):
        NetworkConfig(architecture="encoder", embedding={"width": 8}, heads=(HeadConfig("span-boundary"),))
    fails(RecipeError, r"`activation` belongs to a .* head", HeadConfig, "answer", activation="relu")


BY_WORDS = NetworkConfig(
    "elmo",
    **SIZES | {"vocab_size": 30, "n_layers": 1},
    elmo=ELMoConfig(characters=None, d_cell=12),
    output=OutputConfig(adaptive=(5, 14)),
)


def test_the_adaptive_softmax_is_that_of_torch() -> None:
    torch.manual_seed(1)
    ours = AdaptiveSoftmax(40, 64, (6, 11, 25)).double()
    theirs = torch.nn.AdaptiveLogSoftmaxWithLoss(64, 40, [6, 11, 25]).double()
    with torch.no_grad():
        theirs.head.weight.copy_(ours.first.weight)
        for tail, cluster in zip(theirs.tail, ours.clusters):
            for layer, matrix in zip(tail.parameters(), cluster.parameters(), strict=True):
                layer.copy_(matrix)
    vectors = torch.randn(200, 64, dtype=torch.float64, requires_grad=True)
    targets = torch.cat([torch.arange(40), torch.randint(0, 40, (160,))])
    torch.testing.assert_close(ours(vectors), theirs.log_prob(vectors))
    torch.testing.assert_close(ours(vectors).exp().sum(dim=-1), torch.ones(200, dtype=torch.float64))
    total, expected = ours.nats(vectors, targets), -theirs(vectors, targets).output.sum()
    torch.testing.assert_close(total, expected)
    gradients = [torch.autograd.grad(n, [vectors, *one.parameters()]) for n, one in ((total, ours), (expected, theirs))]
    for own, other in zip(*gradients, strict=True):
        torch.testing.assert_close(own, other)
    some = targets < 11  # a cluster without a target is not computed, and gives no loss
    expected = -theirs(vectors[some], targets[some]).output.sum()
    torch.testing.assert_close(ours.nats(vectors[some], targets[some]), expected)


def test_the_sampled_softmax_gives_one_over_p_on_average_of_log_uniform_words() -> None:
    """Over all 5**3 draws of three words out of five, each with its probability."""
    torch.manual_seed(2)
    vectors, matrix, bias = (torch.randn(*shape, dtype=torch.float64) for shape in ((4, 3), (5, 3), (5,)))
    targets = torch.tensor([0, 2, 4, 4])
    share = [math.log((k + 2) / (k + 1)) / math.log(6) for k in range(5)]
    assert sum(share) == pytest.approx(1.0)
    mean = torch.zeros(4, dtype=torch.float64)
    for drawn in product(range(5), repeat=3):
        probability = math.prod(share[k] for k in drawn)
        for row in range(4):
            nats = sampled_nats(vectors[row, None], targets[row, None], matrix, bias, torch.tensor(drawn))
            mean[row] += probability * float(nats.exp())
    p = torch.softmax(F.linear(vectors, matrix, bias), dim=-1)[torch.arange(4), targets]
    torch.testing.assert_close(mean, 1 / p)
    many = torch.from_numpy(log_uniform(200_000, 5, 1))
    full = F.cross_entropy(F.linear(vectors, matrix, bias), targets, reduction="sum")
    assert float(sampled_nats(vectors, targets, matrix, bias, many)) == pytest.approx(float(full), rel=0.01)
    drawn = np.bincount(log_uniform(50_000, 40, 3, 1), minlength=40)
    expected = 50_000 * np.array([math.log((k + 2) / (k + 1)) / math.log(41) for k in range(40)])
    assert len(drawn) == 40 and ((drawn - expected) ** 2 / expected).sum() < 39 + 5 * math.sqrt(2 * 39)
    first, again, other = (log_uniform(100, 40, 3, seed).tolist() for seed in (1, 1, 2))
    assert first == again != other


def prepared(output: OutputConfig, held_out: bool = False) -> Preparation:
    words = [f"w{number:02}" for number in range(60)]
    starts = np.random.default_rng(1).integers(0, 50, 300)
    texts = [" ".join(words[start : start + 8]) for start in starts]
    tokenizer = train_tokenizer(TokenizerConfig("word", vocab_size=100), texts)
    recipe = load_recipe({"task": "bidirectional-language-modeling", "data": {"train": {"world": "train"}}}).recipe
    recipe = replace(recipe, training=replace(recipe.training, batch_tokens=512))
    network = replace(BY_WORDS, vocab_size=tokenizer.vocab_size, output=output)
    return Preparation(recipe, network, tokenizer, Split({"text": texts}, ""), held_out=held_out)


@pytest.mark.parametrize("adaptive", [(), (8, 30)])
def test_elmo_learns_with_either_and_its_validation_is_over_all_words(adaptive: tuple[int, ...]) -> None:
    """Each word decides its neighbours, so that both directions can become nearly certain."""
    options = ObjectiveConfig("bidirectional", sampled=None if adaptive else 20)
    preparation = prepared(OutputConfig(adaptive=adaptive))
    torch.manual_seed(1)
    network = build_network(preparation.network)
    (valid,) = batches_for(replace(preparation, held_out=True), (options,)).in_order(10**6)
    assert "sampled" not in valid.extras

    def exact() -> float:
        """The mean loss by the probabilities of all words."""
        ahead, behind = network.directions(valid.inputs["ids"], token_mask=valid.inputs["token_mask"])[-1]
        labels = valid.labels["bidirectional"]
        pairs = [(ahead[labels[..., 0] >= 0], labels[..., 0]), (behind[labels[..., 1] >= 0], labels[..., 1])]
        nats = [F.cross_entropy(network.project(states), of[of >= 0], reduction="sum") for states, of in pairs]
        return float(sum(nats)) / valid.targets

    with torch.no_grad():
        loss, _ = losses(network, valid, Call())["bidirectional"]
        assert float(loss) / valid.targets == pytest.approx(exact(), rel=1e-5)
    before = exact()
    batches = batches_for(preparation, (options,))
    updater = Updater(network, TrainingConfig(), "float32")
    for step in range(120):
        updater.update(batches.parts(step), step + 1, 2e-2)
    assert exact() < 0.4 * before


def test_what_does_not_go_together_is_named() -> None:
    fails(RecipeError, r"`output.adaptive` must rise, from above 0: got \[5, 5\]", OutputConfig, adaptive=(5, 5))
    with pytest.raises(RecipeError, match=r"`output.adaptive` belongs to architecture elmo: got 'decoder'"):
        NetworkConfig(architecture="decoder", output=OutputConfig(adaptive=(5,)))
    with pytest.raises(RecipeError, match=r"`output.adaptive` must be below the 30 words.* got \[30\]"):
        build_network(replace(BY_WORDS, output=OutputConfig(adaptive=(30,))))
    fails(RecipeError, r"`sampled` has no effect on the objective causal", ObjectiveConfig, "causal", sampled=5)
    fails(RecipeError, r"`sampled` must not be negative: got -1", ObjectiveConfig, "bidirectional", sampled=-1)
    with pytest.raises(RecipeError, match=r"`objective.sampled` has no effect with `network.output.adaptive`"):
        batches_for(prepared(OutputConfig(adaptive=(8,))), (ObjectiveConfig("bidirectional", sampled=5),))
    with pytest.raises(CapabilityError, match="an adaptive softmax has several output matrices"):
        _ = build_network(BY_WORDS).projection
