"""The plan of sharded weights beside the bytes of 64 processes, counted under PyTorch's fake process group."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from atento.config.sections.network import NetworkConfig
from atento.config.sections.training import TrainingConfig
from atento.networks import build_network
from atento.networks.interface import Network
from atento.runs.run_plan import Plan, memory_of_weights
from atento.training.optimizer import Optimizer, all_weights
from atento.training.replica.sharded_weights import ShardedSum, ShardedWeights, gathered_sizes, shards_of
from atento_cli.plans.parallel_plan import memory_of_process, sent_by_process

NETWORK = NetworkConfig(architecture="decoder", vocab_size=1024, d_model=256, d_ff=512, n_heads=4, n_layers=3)
WORLD = 64


class Sent(TorchDispatchMode):
    """Counts the bytes that a process sends in the collective operations of a pass, in rings."""

    def __init__(self, copies: int) -> None:
        super().__init__()
        self.copies, self.bytes = copies, 0.0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "c10d._allgather_base_" in str(function):  # all shards but one are passed on to the neighbour
            self.bytes += args[0].nbytes - args[1].nbytes
        elif "c10d._reduce_scatter_base_" in str(function):
            self.bytes += args[1].nbytes - args[0].nbytes
        elif "c10d.allreduce_" in str(function):
            ((tensor,), *_) = args
            self.bytes += 2 * tensor.nbytes * (self.copies - 1) / self.copies
        return function(*args, **(kwargs or {}))


@pytest.fixture(params=[0, 63])
def rank(request: pytest.FixtureRequest) -> Iterator[int]:
    """A process of 64, whose messages go nowhere."""
    dist.init_process_group("fake", store=FakeStore(), rank=request.param, world_size=WORLD)
    yield request.param
    dist.destroy_process_group()


def planned(network: Network, precision: str) -> Plan:
    """The plan of one process."""
    parameters = sum(value.numel() for value in network.parameters())
    config, (outside, largest) = TrainingConfig(async_checkpoints=False), gathered_sizes(network)
    memory = memory_of_weights(network, config, all_weights(network), precision)
    return Plan(parameters, parameters, 1, 1.0, 1, WORLD, outside, largest, memory, 1.0, 1.0)


@pytest.mark.parametrize(("precision", "shards"), [(torch.float32, 64), (torch.bfloat16, 64), (torch.bfloat16, 8)])
def test_the_plan_of_64_processes_is_what_one_has_and_sends(rank: int, precision: torch.dtype, shards: int) -> None:
    network = build_network(NETWORK)
    plan = planned(network, "float32" if precision == torch.float32 else "bfloat16")
    sharded = ShardedWeights(network, precision, shards_of("cpu", shards, dist.new_group, nullcontext))
    optimizer = Optimizer(network, TrainingConfig(), all_weights(network), sharded.parameters)
    gradients = ShardedSum(sharded)
    with Sent(WORLD // shards) as sent:
        sharded.gradients(sharded.network(ids=torch.zeros(1, 8, dtype=torch.long)).logits.float().sum())
    gradients.finish()
    counted = {
        "weights": sum(value.nbytes for value in sharded.parameters.values()),
        "gradients": sum(value.grad.nbytes for value in sharded.parameters.values() if value.grad is not None),
    }
    optimizer.step(1e-3)
    counted["optimizer"] = sum(value.nbytes for value in optimizer.tensors().values())
    memory = memory_of_process(plan, WORLD, shards)
    for name, size in counted.items():
        assert size == pytest.approx(memory[name], rel=0.05), name
    assert sent.bytes == pytest.approx(sum(sent_by_process(plan, WORLD, shards)), rel=0.05)
    assert sum(value.untyped_storage().nbytes() for value in network.parameters()) == 0
