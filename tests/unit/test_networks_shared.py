"""Layers that share their weights, embeddings narrower than the layers, and heads with a dense layer of their own."""

import pytest
import torch

from atento.attention.observe import observe
from atento.base.errors import RecipeError
from atento.config.presets import preset
from atento.config.sections.network import NetworkConfig, changed, network_to_dict
from atento.config.tables.head_kinds import HeadConfig
from atento.models.load import load_model
from atento.models.write import save_model
from atento.networks import Encoder, build_network, parameter_count
from failing import fails

SIZES = {"vocab_size": 37, "d_model": 16, "d_ff": 24, "n_heads": 4, "n_layers": 3, "max_len": 20, "dropout": 0.0}
IDS = torch.arange(18).view(2, 9)


def albert(**changes: object) -> Encoder:
    """A small ALBERT with random weights."""
    torch.manual_seed(0)
    network = build_network(changed(preset("albert-base"), SIZES, {"embedding": {"width": 8}}, changes)).eval()
    assert isinstance(network, Encoder)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return network


def test_shared_layers_are_one_block_run_again_whose_gradient_is_the_sum() -> None:
    network = albert()
    plain = build_network(changed(network.config, shared_layers=False)).eval()
    weights = network.state_dict()
    block = {name.removeprefix("stack.blocks.0."): w for name, w in weights.items() if "blocks.0." in name}
    copies = {f"stack.blocks.{n}.{name}": weight for n in range(3) for name, weight in block.items()}
    plain.load_state_dict(weights | copies)
    with torch.no_grad():
        torch.testing.assert_close(network(IDS).hidden, plain(IDS).hidden, rtol=0, atol=0)
        for layer in range(3):
            torch.testing.assert_close(network.features(IDS, layer=layer), plain.features(IDS, layer=layer))
    assert parameter_count(plain) - parameter_count(network) == 2 * sum(w.numel() for w in block.values())
    for made in (network, plain):
        made(IDS).hidden.square().sum().backward()
    name = "feed_forward.inner.weight"
    total = sum(plain.get_parameter(f"stack.blocks.{n}.{name}").grad for n in range(3))
    torch.testing.assert_close(network.get_parameter(f"stack.blocks.0.{name}").grad, total, rtol=1e-4, atol=1e-5)


def test_each_layer_is_observed_under_its_number_saved_and_loaded_and_a_head_has_its_own_activation(tmp_path) -> None:
    network = albert()
    with torch.no_grad(), observe(network) as recorded:
        network(IDS)
    assert recorded.n_layers == {"encoder": 3} and not torch.equal(recorded["encoder", 0], recorded["encoder", 2])
    network = albert(heads=(HeadConfig("masked-language-model"),))
    about = {"model_type": "atento", "name": "x", "task": "embedding", "network": network_to_dict(network.config)}
    folder = save_model(tmp_path / "saved", about, network.state_dict(), None)
    again = load_model(folder, "cpu", "float32").network
    with torch.no_grad():
        assert torch.equal(again(IDS).logits, network(IDS).logits)
    for activation, function in ((None, torch.tanh), ("relu", torch.relu)):
        head = HeadConfig("classification", ("a", "b"), pooling="first", hidden=True, activation=activation)
        network = albert(heads=(head,))
        layers = network.heads["classification"]
        with torch.no_grad():
            out = network(IDS)
            torch.testing.assert_close(out.logits, layers.out(function(layers.dense(out.hidden[:, 0]))))
    with pytest.raises(RecipeError, match=r"`embedding\.width` belongs to an encoder: got architecture 'decoder'"):
        NetworkConfig(architecture="decoder", embedding={"width": 8})
    with pytest.raises(RecipeError, match=r"`embedding\.width` must be at least 1: got 0"):
        NetworkConfig(architecture="encoder", embedding={"width": 0})
    with pytest.raises(RecipeError, match=r"span-boundary head .* `d_model`: `embedding\.width` must be null"):
        NetworkConfig(architecture="encoder", embedding={"width": 8}, heads=(HeadConfig("span-boundary"),))
    fails(RecipeError, r"`activation` belongs to a .* head", HeadConfig, "answer", activation="relu")
