"""Activation checkpointing: gradients bit-equal to those without, in less memory; what cannot do it is refused."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from atento.attention import observe
from atento.base.errors import RecipeError
from atento.config.sections.network import NetworkConfig, changed
from atento.config.sections.network_parts import AttentionConfig
from atento.config.sections.position_scheme import PositionConfig
from atento.config.sections.recurrent import CBOWConfig
from atento.config.sections.training import TrainingConfig
from atento.data.batches.batch import Ragged
from atento.data.objectives.sequence_to_sequence import parallel
from atento.networks import build_network
from atento.training.step import Updater

SIZES: dict[str, Any] = {"vocab_size": 31, "d_model": 16, "d_ff": 32, "n_heads": 2, "n_layers": 3, "dropout": 0.2}
NETWORK = NetworkConfig(**SIZES, attention=AttentionConfig(dropout=0.2), positions=PositionConfig("t5"))
CONFIG = TrainingConfig(learning_rate=1e-2, warmup=0, seed=5)


def weights_after(steps: int, precision: str, recompute: bool) -> dict[str, Tensor]:
    torch.manual_seed(0)
    network = build_network(NETWORK)
    updater = Updater(network, replace(CONFIG, activation_checkpointing=recompute), precision)
    g = np.random.default_rng(0)
    rows = [Ragged([g.integers(4, 31, g.integers(1, 9)).tolist() for _ in range(30)]) for _ in range(2)]
    batches = parallel(rows[0], rows[1], budget=60, seed=1, pad_id=0, start_id=2, eos_id=3)
    for step in range(1, steps + 1):
        updater.update(batches.parts(step - 1, 2), step, 1e-2)
    return network.state_dict()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_training_is_bit_equal_with_dropout_and_learned_positions(precision: str) -> None:
    plain, recomputed = weights_after(3, precision, False), weights_after(3, precision, True)
    assert all(torch.equal(value, recomputed[name]) for name, value in plain.items())


def kept_bytes(recompute: bool) -> int:
    """Bytes that the forward pass of a decoder keeps for its backward pass."""
    network = build_network(changed(NETWORK, {"architecture": "decoder"}))
    network.train()
    for module in network.modules():
        if hasattr(module, "recompute"):
            module.recompute = recompute
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        hidden = network(torch.randint(4, 31, (8, 64)), project=False).hidden
    assert hidden.requires_grad
    return sum(sizes.values())


def test_less_is_kept_and_observed_once_and_a_network_without_a_stack_is_refused() -> None:
    assert kept_bytes(True) < 0.3 * kept_bytes(False)
    network = build_network(changed(NETWORK, {"architecture": "decoder"}))
    network.stack.recompute = True  # type: ignore[union-attr]
    with observe(network) as seen:
        network(torch.randint(4, 31, (1, 5)), project=False).hidden.sum().backward()
    assert seen["decoder", 0].shape == (1, 2, 5, 5)
    network = build_network(NetworkConfig(architecture="cbow", vocab_size=19, d_model=8, cbow=CBOWConfig()))
    with pytest.raises(RecipeError, match="activation_checkpointing` needs a Transformer: got architecture 'cbow'"):
        Updater(network, replace(CONFIG, activation_checkpointing=True), "float32")
