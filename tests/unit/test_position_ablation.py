"""Position schemes taken away one at a time (B7): the rest is the network that never had the scheme."""

import pytest
import torch

from atento.base.errors import UsageError
from atento.config.sections.network import NetworkConfig
from atento.config.sections.position_scheme import PositionConfig
from atento.inspection.ablation import position_effects, scheme_names, without_scheme
from atento.networks import build_network

IDS = torch.tensor([[5, 6, 7, 8, 9, 4]])
SIZES = {"vocab_size": 11, "d_model": 12, "d_ff": 20, "n_heads": 3, "n_layers": 2, "dropout": 0.0, "max_len": 16}


def make(architecture, positions, **changes):
    torch.manual_seed(1)
    config = NetworkConfig(architecture=architecture, positions=positions, **SIZES | changes)
    network = build_network(config).double().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(0.2, 0.6)
    return network


def logits(network):
    inputs = (IDS, IDS.flip(1)) if network.config.architecture == "encoder-decoder" else (IDS,)
    return network(*inputs).logits.detach()


@pytest.mark.parametrize("architecture", ["encoder-decoder", "decoder"])
@pytest.mark.parametrize("kind", ["sinusoidal", "learned", "rotary", "shaw", "t5", "alibi", "matrix", "disentangled"])
def test_b7_a_network_of_one_scheme_is_one_of_none(architecture, kind):
    changes = {"attention": {"scale": 0.2}} if kind == "disentangled" else {}  # its own scale is another
    network, none = (make(architecture, PositionConfig(one), d_model=24, **changes) for one in (kind, "none"))
    none.load_state_dict({name: network.state_dict()[name] for name in none.state_dict()})
    before = logits(network)
    with without_scheme(network, kind):
        torch.testing.assert_close(logits(network), logits(none), rtol=0, atol=1e-12)
    assert torch.equal(logits(network), before) and not torch.allclose(before, logits(none), rtol=0, atol=1e-6)


def test_b7_each_of_a_sum_by_itself_back_after_an_error() -> None:
    """Two of one kind, one in a single layer, one added in a layer: the others stay as they are."""
    schemes = (PositionConfig("sinusoidal"), PositionConfig("shaw", max_distance=2, layers=(1,)), PositionConfig("t5"))
    schemes += (PositionConfig("t5", heads=(0,)), PositionConfig("learned", layers=(0,)))
    network = make("decoder", schemes)
    assert scheme_names(network.config) == ["sinusoidal", "shaw", "t5 1", "t5 2", "learned"]
    effects = position_effects(network, lambda: float(logits(network).square().sum()))
    assert list(effects) == scheme_names(network.config) and all(abs(effect) > 1e-6 for effect in effects.values())
    with without_scheme(network, "t5 2"):
        assert [len(layer) for layer in network.stack.positions.relative] == [1, 2]
    with without_scheme(network, "shaw"), without_scheme(network, "learned"):
        inside = logits(network)
    assert [len(layer) for layer in network.stack.positions.relative] == [2, 3]
    with without_scheme(network, "learned"), without_scheme(network, "shaw"):
        assert torch.equal(logits(network), inside)
    network = make("decoder", (PositionConfig("alibi"), PositionConfig("sinusoidal")))
    before = logits(network)
    with pytest.raises(ZeroDivisionError), without_scheme(network, "alibi"):
        raise ZeroDivisionError
    assert torch.equal(logits(network), before)
    said = r"no position scheme 'shaw' in this network.*alibi, sinusoidal"
    with pytest.raises(UsageError, match=said), without_scheme(network, "shaw"):
        pass
    bare = make("decoder", PositionConfig("none"))
    assert position_effects(bare, lambda: 1.0) == {}
    with pytest.raises(UsageError, match=r"no position scheme 'shaw' in this network$"), without_scheme(bare, "shaw"):
        pass
