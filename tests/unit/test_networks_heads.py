"""Heads by name on every architecture: what they read, what they are called, which vectors a layer gives."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from atento.base.errors import CapabilityError, RecipeError, UsageError
from atento.config.sections.network import NetworkConfig
from atento.config.sections.recurrent import ELMoConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.networks import Network, build_network
from atento.networks.heads import LinearHead
from atento.networks.vocabulary import VocabularyHead, cross_entropy, plain_cross_entropy
from failing import fails

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
        assert isinstance(part, LinearHead)
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
