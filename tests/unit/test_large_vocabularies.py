"""Adaptive and sampled softmax: against torch.nn and by enumeration; ELMo is trained and scored with both."""

import math
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from atento.base.errors import CapabilityError, RecipeError
from atento.base.splitmix import log_uniform
from atento.config.reading.loading import load_recipe
from atento.config.recipe import TokenizerConfig
from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import OutputConfig
from atento.config.sections.recurrent import ELMoConfig
from atento.config.sections.training import TrainingConfig
from atento.config.tables.objective import ObjectiveConfig
from atento.data.objectives import batches_for
from atento.data.objectives.preparation import Preparation
from atento.data.records.splits import Split
from atento.networks import build_network
from atento.networks.large_vocabulary import AdaptiveSoftmax, sampled_nats
from atento.networks.recurrent.elmo import ELMo
from atento.text.tokenizer_training import train_tokenizer
from atento.training.losses import Call, losses
from atento.training.step import Updater
from failing import fails

SIZES: Any = {"vocab_size": 30, "d_model": 8, "n_heads": 1, "n_layers": 1, "dropout": 0.0}
WORDS = ELMoConfig(characters=None, d_cell=12)
CONFIG = NetworkConfig(architecture="elmo", elmo=WORDS, output=OutputConfig(adaptive=(5, 14)), **SIZES)


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
    network = replace(CONFIG, vocab_size=tokenizer.vocab_size, output=output)
    return Preparation(recipe, network, tokenizer, Split({"text": texts}, ""), held_out=held_out)


@pytest.mark.parametrize("adaptive", [(), (8, 30)])
def test_elmo_learns_with_either_and_its_validation_is_over_all_words(adaptive: tuple[int, ...]) -> None:
    """Each word decides its neighbours, so that both directions can become nearly certain."""
    options = ObjectiveConfig("bidirectional", sampled=None if adaptive else 20)
    preparation = prepared(OutputConfig(adaptive=adaptive))
    torch.manual_seed(1)
    network = build_network(preparation.network)
    assert isinstance(network, ELMo)
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
        build_network(replace(CONFIG, output=OutputConfig(adaptive=(30,))))
    fails(RecipeError, r"`sampled` has no effect on the objective causal", ObjectiveConfig, "causal", sampled=5)
    fails(RecipeError, r"`sampled` must not be negative: got -1", ObjectiveConfig, "bidirectional", sampled=-1)
    with pytest.raises(RecipeError, match=r"`objective.sampled` has no effect with `network.output.adaptive`"):
        batches_for(prepared(OutputConfig(adaptive=(8,))), (ObjectiveConfig("bidirectional", sampled=5),))
    with pytest.raises(CapabilityError, match="an adaptive softmax has several output matrices"):
        _ = build_network(CONFIG).projection
