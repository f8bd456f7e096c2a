"""The plan of a run: the state of optimizers byte for byte, activations with and without recomputation, the command."""

import json
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from atento.cli.main import application
from atento.config.network import NetworkConfig
from atento.config.training import TrainingConfig
from atento.networks import build_network
from atento.runs.plan import memory_of_weights
from atento.training.optimizer import OPTIMIZERS
from atento.training.step import Updater
from atento.training.trained import all_weights

NETWORK = NetworkConfig(architecture="decoder", vocab_size=19, d_model=8, d_ff=16, n_heads=2, n_layers=2)
RECIPE = ["micro-world-lm", "data.train.0.count=200", "data.valid.0.count=20", "network.n_layers=2"]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_bytes_of_weights_and_state_are_those_of_a_real_step(name: str) -> None:
    network = build_network(NETWORK)
    config = replace(TrainingConfig(), optimizer=name, ema=0.9)  # type: ignore[arg-type]
    updater = Updater(network, config, "float32")
    for parameter in network.parameters():
        parameter.grad = torch.randn_like(parameter)
    updater.optimizer.step(1e-3)
    weights, optimizer = updater.checkpoint_tensors()
    memory = memory_of_weights(network, config, all_weights(network), "float32")
    state = sum(value.nbytes for value in updater.optimizer_tensors().values())
    assert memory["optimizer"] == state
    assert memory["weights"] == sum(value.nbytes for value in network.parameters()) == memory["moving average"]
    assert memory["copy for a checkpoint"] == sum(value.nbytes for value in [*weights.values(), *optimizer.values()])


def planned(*more: str) -> dict[str, object]:
    done = CliRunner().invoke(application(), ["plan", *RECIPE, "--json", "--threads", "1", *more])
    assert done.exit_code == 0, done.output
    plan: dict[str, object] = json.loads(done.stdout)
    return plan


def test_the_command_says_parameters_memory_and_computation() -> None:
    plan, recomputed = planned(), planned("training.activation_checkpointing=true")
    memory, less = plan["memory"], recomputed["memory"]
    assert isinstance(memory, dict) and isinstance(less, dict)
    assert plan["total"] == sum(memory.values()) and memory["weights"] == 4 * int(str(plan["parameters"]))
    assert 0 < less["activations"] < memory["activations"]
    assert float(str(plan["flops_per_update"])) > 6 * int(str(plan["tokens_per_update"]))
