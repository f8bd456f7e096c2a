"""The steps of a head end in the weights and outputs of the network itself, and follow from one another."""

from typing import Any

import pytest
import torch

from atento.attention import observe
from atento.base.errors import UsageError
from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import AttentionConfig, MaskConfig, SparseConfig
from atento.config.sections.position_scheme import PositionConfig
from atento.inspection.ablation import attentions
from atento.inspection.head_steps import HeadSteps, head_steps
from atento.networks import build_network
from failing import fails

DECODER, ENCODER = {"architecture": "decoder"}, {"architecture": "encoder"}
NETWORKS: dict[str, dict[str, Any]] = {
    "sinusoidal, cross": {"architecture": "encoder-decoder"},
    "rotary, shared keys": DECODER
    | {"positions": PositionConfig("rotary"), "attention": AttentionConfig(n_kv_heads=2, norm=True)},
    "T5's buckets": ENCODER | {"positions": PositionConfig("t5")},
    "Shaw and entmax": DECODER
    | {"positions": PositionConfig("shaw"), "attention": AttentionConfig(sparse=SparseConfig(alpha=1.5))},
    "DeBERTa": ENCODER | {"positions": PositionConfig("disentangled", max_distance=16, n_buckets=8)},
    "ALiBi in a window": ENCODER
    | {"positions": PositionConfig("alibi"), "mask": MaskConfig("window", left=2, right=1)},
    "shared layers": ENCODER | {"shared_layers": True},
}


def made(**parts: Any) -> tuple[Any, tuple[torch.Tensor, ...]]:
    torch.manual_seed(1)
    sizes: dict[str, Any] = {"vocab_size": 20, "d_model": 16, "d_ff": 32, "n_heads": 4, "n_layers": 2}
    network = build_network(NetworkConfig(**(sizes | parts))).eval()
    ids = torch.randint(4, 20, (1, 7))
    return network, (ids, ids[:, :5]) if parts["architecture"] == "encoder-decoder" else (ids,)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_steps_end_in_what_the_network_computes(name: str) -> None:
    network, inputs = made(**NETWORKS[name])
    with observe(network) as seen:
        network(*inputs)
    for kind, depth in seen.n_layers.items():
        for layer in range(depth):
            outputs: list[torch.Tensor] = []
            shared = attentions(network).get((kind, layer)) or attentions(network)[kind, depth - 1]
            hook = shared.output.register_forward_pre_hook(lambda _, given, to=outputs: to.append(given[0]))
            steps = head_steps(network, kind, layer, lambda: network(*inputs))
            hook.remove()
            assert torch.allclose(steps.weights, seen[kind, layer][0], atol=1e-6)
            expected = outputs[layer if len(outputs) > 1 else 0][0]
            assert torch.allclose(steps.mixed.transpose(0, 1).flatten(1), expected, atol=1e-5)
            check_steps(steps)


def check_steps(steps: HeadSteps) -> None:
    """Each step follows from those before it."""
    q = steps.queries if steps.rotated_queries is None else steps.rotated_queries
    k = steps.keys if steps.rotated_keys is None else steps.rotated_keys
    assert torch.allclose(steps.content, torch.einsum("htk,hsk->hts", q, k) * steps.scale, atol=1e-5)
    scores = steps.content if steps.position is None else steps.content + steps.position
    assert steps.weights[~steps.allowed].abs().max() == 0 if not steps.allowed.all() else True
    if steps.normaliser == "softmax":
        closed = scores.masked_fill(~steps.allowed, float("-inf"))
        assert torch.allclose(torch.softmax(closed, dim=-1), steps.weights, atol=1e-6)
    mixed = torch.einsum("hts,hsk->htk", steps.weights, steps.values)
    mixed = mixed if steps.from_positions is None else mixed + steps.from_positions
    assert torch.allclose(mixed, steps.mixed, atol=1e-5)


def test_what_is_not_there_is_named() -> None:
    network, inputs = made(architecture="encoder")
    with pytest.raises(UsageError, match="no encoder attention of layer 2 was passed; there are: encoder 0, encoder 1"):
        head_steps(network, "encoder", 2, lambda: network(*inputs))
    for kind, run in (("cross", lambda: network(*inputs)), ("encoder", lambda: None)):
        fails(UsageError, f"no {kind} attention of layer 0 was passed", head_steps, network, kind, 0, run)
