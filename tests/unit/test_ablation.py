"""Heads taken away: the output is as if the head had read nothing, and the loss tells which heads matter (A15)."""

import re
from collections.abc import Callable

import pytest
import torch

import atento
from atento.attention.multihead import MultiHeadAttention
from atento.base.errors import UsageError
from atento.config.sections.network import NetworkConfig
from atento.inspection.ablation import ablate, ablation_effects, attentions
from atento.model import Model
from atento.networks import EncoderDecoder, build_network

SOURCE, TARGET = torch.tensor([[5, 6, 7, 3]]), torch.tensor([[2, 5, 6]])


@pytest.fixture
def network() -> EncoderDecoder:
    torch.manual_seed(0)
    return build_network(NetworkConfig(vocab_size=11, d_model=8, d_ff=16, n_heads=2, n_layers=2, dropout=0.0)).eval()


def test_a15_an_ablated_head_adds_nothing_to_the_output() -> None:
    """Concat(head_0, 0) W^O: what the other head alone contributes."""
    torch.manual_seed(0)
    attention, x = MultiHeadAttention(8, 2), torch.randn(1, 3, 8)
    with ablate(attention, "encoder", 0, 1):
        got, _ = attention(x)
    weights = attention.head_weights()
    biases = zip(("query", "key", "value"), attention.input.bias.view(3, 2, 4)[:, 0])
    q, k, v = (x[0] @ weights[role][0] + bias for role, bias in biases)
    expected = torch.softmax(q @ k.T / 2, dim=-1) @ v @ weights["output"][0] + attention.output.bias
    torch.testing.assert_close(got[0], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("kind", "layer"), [("encoder", 0), ("decoder", -1), ("cross", 1)])
def test_ablation_ends_with_its_block_even_by_an_error(network: EncoderDecoder, kind: str, layer: int) -> None:
    whole = network(SOURCE, TARGET).logits
    with ablate(network, kind, layer, 0):
        without = network(SOURCE, TARGET).logits
    with pytest.raises(RuntimeError, match="inside"), ablate(network, kind, layer, 0):
        raise RuntimeError("inside")
    assert torch.equal(network(SOURCE, TARGET).logits, whole)
    assert not torch.equal(without, whole)


def test_a15_the_head_that_matters_is_found_and_one_that_is_not_there_is_said(network: EncoderDecoder) -> None:
    """One head of the cross-attention is made useless by hand: taking it away costs exactly nothing."""
    assert set(attentions(network)) == {(kind, n) for kind in ("encoder", "decoder", "cross") for n in (0, 1)}
    part = attentions(network)["cross", 1]
    with torch.no_grad():
        part.output.weight[:, 4:] = 0.0  # head 1 reaches nothing

    def loss() -> float:
        logits = network(SOURCE, TARGET).logits
        return float(torch.nn.functional.cross_entropy(logits[0], torch.tensor([5, 6, 3])))

    effects = ablation_effects(network, loss)
    assert len(effects) == 12 and effects["cross", 1, 1] == 0.0
    assert all(effect != 0.0 for where, effect in effects.items() if where != ("cross", 1, 1))
    known = "cross 0, cross 1, decoder 0, decoder 1, encoder 0, encoder 1"
    message = re.escape(f"no head 2 in encoder attention of layer 0; there are: {known}, heads 0 to 1")
    with pytest.raises(UsageError, match=message), ablate(network, "encoder", 0, 2):
        pass
    with pytest.raises(UsageError, match="no head 0 in self attention of layer 0"), ablate(network, "self", 0, 0):
        pass


@pytest.mark.parametrize(
    ("name", "kind", "call"),
    [
        ("micro-world-tense", "encoder", lambda model: model.classify("o gato dormiu .").probability),
        ("micro-world-en-pt", "cross", lambda model: model.score(["the cats sleep ."], ["Os gatos dormem."])[0].total),
        ("micro-world-lm", "decoder", lambda model: model.score(["o gato"], ["dorme ."])[0].total),
    ],
)
def test_a15_a_loaded_model_answers_without_the_head(name: str, kind: str, call: Callable[[Model], float]) -> None:
    """The fast passes have read the weights and call no module: they stand aside while one is hooked."""
    model = atento.load(name)
    before = call(model)
    with ablate(model.network, kind, 0, 0):
        without = call(model)
    assert call(model) == before != pytest.approx(without, rel=1e-5)
    part = attentions(model.network)[kind, 0]
    with torch.no_grad():
        part.output.weight[:, : part.d_head] = 0.0  # what the head has computed reaches nothing
    assert call(model) == pytest.approx(without, rel=1e-5)
