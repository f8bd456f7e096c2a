"""Plans: the bytes of a step, of sharded weights and of messages; what training left of learned positions (B3)."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from typer.testing import CliRunner

from atento.base.errors import UsageError
from atento.config.reading.loading import load_recipe
from atento.config.sections.network import NetworkConfig
from atento.config.sections.training import TrainingConfig
from atento.networks import build_network
from atento.runs import run_plan, steps
from atento.runs.run_plan import Plan, memory_of_weights
from atento.runs.sharded import check_sharded
from atento.runs.train import train
from atento.training.optimizer import OPTIMIZERS, Optimizer, all_weights
from atento.training.replica.sharded_weights import ShardedSum, ShardedWeights, gathered_sizes, shards_of
from atento.training.step import Updater
from atento_cli.main import application
from atento_cli.plans.parallel_plan import memory_of_process, sent_by_process
from atento_cli.plans.position_report import position_report
from failing import fails
from runs_of_words import write_texts

NETWORK = NetworkConfig(architecture="decoder", vocab_size=19, d_model=8, d_ff=16, n_heads=2, n_layers=2)
RECIPE = ["micro-world-lm", "data.train.0.count=200", "data.valid.0.count=20", "network.n_layers=2"]
RECIPE += ["training.batch_tokens=512"]


def test_the_bytes_of_weights_and_state_are_those_of_a_real_step_and_said_with_computation() -> None:
    for name in OPTIMIZERS:
        network = build_network(NETWORK)
        config = replace(TrainingConfig(), optimizer=name, ema=0.9)  # type: ignore[arg-type]
        updater = Updater(network, config, "float32")
        for parameter in network.parameters():
            parameter.grad = torch.randn_like(parameter)
        updater.optimizer.step(1e-3)
        weights, optimizer = updater.checkpoint_tensors()
        memory = memory_of_weights(network, config, all_weights(network), "float32")
        assert memory["optimizer"] == sum(value.nbytes for value in updater.optimizer.tensors().values())
        assert memory["weights"] == sum(value.nbytes for value in network.parameters()) == memory["moving average"]
        assert memory["copy for a checkpoint"] == sum(
            value.nbytes for value in [*weights.values(), *optimizer.values()]
        )
    plan, recomputed = planned(), planned("training.activation_checkpointing=true")
    memory, less = plan["memory"], recomputed["memory"]
    assert plan["total"] == sum(memory.values()) and memory["weights"] == 4 * plan["parameters"]
    assert 0 < less["activations"] < memory["activations"]
    assert plan["flops_per_update"] > 6 * plan["tokens_per_update"]
    twice = planned("training.r_drop=5")
    assert twice["flops_per_update"] == 2 * plan["flops_per_update"]
    assert twice["memory"]["activations"] > 1.5 * memory["activations"]


def planned(*more: str) -> dict[str, Any]:
    done = CliRunner().invoke(application(), ["plan", *RECIPE, "--json", "--threads", "1", *more])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.parametrize("depths", [(4, 7), (7, 4), (4, None)])
def test_a_large_network_is_extrapolated_from_the_layers_of_each_stack(
    monkeypatch: pytest.MonkeyPatch, depths: tuple[int, int | None]
) -> None:
    sizes = [f"network.n_layers={depths[0]}", *([] if depths[1] is None else [f"network.n_decoder_layers={depths[1]}"])]
    command = ["plan", "micro-world-en-pt", "data.train.0.count=200", "data.valid.0.count=20", "training.steps=100"]
    found = []
    for most in (1 << 30, 0):  # parameters of a network that is measured as it is
        monkeypatch.setattr(run_plan, "_MEASURED", most)
        done = CliRunner().invoke(application(), [*command, *sizes, "--json", "--threads", "1"])
        assert done.exit_code == 0, done.output
        found.append(json.loads(done.stdout)["memory"]["activations"])
    assert found[1] == pytest.approx(found[0], rel=0.05)


@pytest.mark.parametrize(("steps", "lines"), [(50, 1), (49, 0)])
def test_an_estimate_from_50_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str], steps: int, lines: int) -> None:
    (tmp_path / "text.txt").write_text("o gato dorme\na uva caiu\n", encoding="utf-8")
    network = {"d_model": 8, "d_ff": 8, "n_heads": 2, "n_layers": 1, "max_len": 16}
    recipe = {"task": "language-modeling", "data": {"train": {"file": str(tmp_path / "text.txt")}}, "network": network}
    recipe |= {"tokenizer": {"kind": "character"}}
    train(recipe, {"training.steps": steps}, out=tmp_path / "run")
    estimates = [line for line in capsys.readouterr().err.splitlines() if "estimate: " in line]
    assert len(estimates) == lines and all("MiB of memory" in line for line in estimates)


def test_a_plan_for_several_processes_sends_what_an_all_reduce_in_a_ring_sends() -> None:
    """Counted by a ring of arrays: each process sends n - 1 shares of the sum, then n - 1 shares of the result."""
    one, many = (planned("training.micro_batches=6", "--world", str(n), "--device", "h100") for n in (1, 4))
    elements, sent = many["trained"], 0
    vectors = [np.full(elements, float(rank)) for rank in range(4)]
    shares = [slice(part * elements // 4, (part + 1) * elements // 4) for part in range(4)]
    for turn in range(6):
        messages = []
        for rank in range(4):
            share = shares[(rank - turn) % 4] if turn < 3 else shares[(rank + 4 - turn) % 4]
            messages.append((share, vectors[rank][share].copy()))
            sent += 4 * (share.stop - share.start) if rank == 0 else 0
        for rank, (share, values) in enumerate(messages):
            target = vectors[(rank + 1) % 4]
            target[share] = target[share] + values if turn < 3 else values
    assert all((vector == 6.0).all() for vector in vectors)
    assert many["sent"] == pytest.approx(sent, rel=1e-4) and one["sent"] == 0.0
    memory, alone = many["memory"], one["memory"]
    assert memory["weights"] == alone["weights"] == 4 * many["parameters"]
    sharded = planned("training.micro_batches=6", "training.parallel.shard=4", "--world", "4", "--device", "h100")
    held = sharded["memory"]
    assert many["sharded"] == sharded["sharded"] == sum(held.values())
    assert all(held[name] == -(-memory[name] // 4) for name in ("weights", "gradients", "optimizer"))
    parts = many["parts"]
    assert parts == 6 and many["computation"] == pytest.approx(one["computation"] * 2 / 6)


def test_the_table_of_several_processes_says_what_does_not_fit_and_refuses_as_training_does(tmp_path: Path) -> None:
    words = ["plan", *RECIPE, "--world", "64", "--device", "a100"]
    done = CliRunner().invoke(application(), words)
    assert done.exit_code == 0, done.output
    assert "estimates for each of 64 processes on a100" in done.stdout and "fewer parts than processes" in done.stdout
    assert "times below a millisecond are not to be believed" in done.stdout
    done = CliRunner().invoke(application(), [*words, "training.parallel.shard=3"])
    assert "--world must be a multiple of `training.parallel.shard`, 3: got 64" in str(done.exception)
    done = CliRunner().invoke(application(), ["plan", *RECIPE, "--world", "2", "--device", "h10"])
    assert "got 'h10'; did you mean 'h100'?" in str(done.exception)
    assert refused("--device", "h100").endswith("give their number too, such as --world 8")
    copies = ("training.parallel.replicate=4", "training.parallel.shard=2", "--device", "h100")
    assert "--world must be 8, which `training.parallel` says" in refused(*copies, "--world", "4")
    done = CliRunner().invoke(application(), ["plan", *RECIPE, "training.parallel.shard=2"])
    assert done.exit_code == 0 and "--world 2 plans sharded ones" in done.stderr
    # With the sentence of training, which reads the network to know it
    for world in ((), ("--world", "4", "--device", "h100")):
        words = ("training.scheduled_sampling.share=0.5", "training.parallel.shard=2")
        said = refused(*words, *world)
        recipe = load_recipe(RECIPE[0], [*RECIPE[1:], *words]).recipe
        with torch.device("meta"), pytest.raises(UsageError) as training:
            check_sharded(recipe, build_network(NETWORK), None)
        assert said == str(training.value) and "`training.scheduled_sampling` cannot be used with" in said


def refused(*words: str) -> str:
    done = CliRunner().invoke(application(), ["plan", *RECIPE, *words])
    assert isinstance(done.exception, UsageError), done.output
    return str(done.exception)


def test_two_runs_in_threads_have_the_first_weights_of_their_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch has one generator for all threads: what one run draws must not come out of the draws of another."""
    drawn: dict[int, Any] = {}
    barrier = Barrier(2)

    def build(seed: int) -> torch.nn.Module:
        first = torch.rand(1)
        with suppress(BrokenBarrierError):  # the other run is made to draw in between, if it can
            barrier.wait(0.2)
        drawn[seed] = [*first, *torch.rand(2)]
        return torch.nn.Linear(1, 1)

    def make(seed: int) -> None:
        training = SimpleNamespace(seed=seed)
        setup: Any = SimpleNamespace(
            recipe=SimpleNamespace(training=training), config=seed, initial=None, features=None
        )
        setup.batches, setup.device = SimpleNamespace(updates_per_epoch=1), "cpu"
        steps.make_network(setup)

    monkeypatch.setattr(steps, "build_network", build)
    monkeypatch.setattr(steps, "tune", lambda *_: None)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(make, [1, 2]))
    for seed in (1, 2):
        torch.manual_seed(seed)
        assert drawn[seed] == [*torch.rand(1), *torch.rand(2)]


WIDE = NetworkConfig(architecture="decoder", vocab_size=1024, d_model=256, d_ff=512, n_heads=4, n_layers=3)
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


@pytest.mark.parametrize(("precision", "shards"), [(torch.float32, 64), (torch.bfloat16, 64), (torch.bfloat16, 8)])
def test_the_plan_of_64_processes_is_what_one_has_and_sends(rank: int, precision: torch.dtype, shards: int) -> None:
    network = build_network(WIDE)
    parameters = sum(value.numel() for value in network.parameters())
    config, (outside, largest) = TrainingConfig(async_checkpoints=False), gathered_sizes(network)
    memory = memory_of_weights(network, config, all_weights(network), str(precision).removeprefix("torch."))
    plan = Plan(parameters, parameters, 1, 1.0, 1, WORLD, outside, largest, memory, 1.0, 1.0)
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


LEARNED = """
task: {task}
data: {{train: {train}}}
tokenizer: {{kind: word, vocab_size: 60}}
network: {{preset: {preset}, d_model: 8, d_ff: 16, n_heads: 2, n_layers: 1, max_len: 12, positions: {positions}}}
training: {{epochs: 3, batch_tokens: 40, learning_rate: 0.01, warmup: 1, weight_decay: 0, precision: float32,
  checkpoint_every: 1000, log_every: 1000}}
metrics: []
"""


def run_of(folder: Path, task: str, train_data: str, preset: str, positions: str = "learned") -> Path:
    text = LEARNED.format(task=task, train=train_data, preset=preset, positions=positions)
    (folder / "recipe.yaml").write_text(text, encoding="utf-8")
    train(folder / "recipe.yaml", out=folder / f"{task} {positions}", device="cpu", threads=1)
    return folder / f"{task} {positions}"


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sources of 1 to 8 words, targets of one word less or as long."""
    folder = tmp_path_factory.mktemp("pairs")
    write_texts(folder / "train.en", [n % 8 + 1 for n in range(24)])
    write_texts(folder / "train.pt", [n % 5 + 1 for n in range(24)])
    return run_of(folder, "translation", "{source: train.en, target: train.pt}", "transformer-tiny")


def test_b3_tokens_are_those_of_the_texts_movement_that_of_the_weights_and_the_command_shows_both(pairs: Path) -> None:
    """A source has its words and </s>, a target's input <s> and its words; a position is reached if one is so long."""
    source, target = position_report(pairs)
    assert (source.side, target.side) == ("source", "target")
    assert source.tokens == [3 * sum(n % 8 + 2 > place for n in range(24)) for place in range(12)]
    assert target.tokens == [3 * sum(n % 5 + 2 > place for n in range(24)) for place in range(12)]
    assert source.unreached == 3 and target.unreached == 6
    for table in (source, target):
        assert table.updates[0] == table.step and table.updates == sorted(table.updates, reverse=True)
        assert [u > 0 for u in table.updates] == [t > 0 for t in table.tokens]
        assert all(u <= t for u, t in zip(table.updates, table.tokens))
    (path,) = (pairs / "checkpoints").glob("step-*")
    weights = load_file(path / "model.safetensors")
    for table in (source, target):
        torch.testing.assert_close(torch.tensor(table.norms), weights[f"{table.name}.weight"].norm(dim=1))
        assert [moved > 0 for moved in table.moved] == [count > 0 for count in table.updates]
    result = CliRunner().invoke(application("runs"), ["runs", "positions", str(pairs)])
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("source_inputs.positions.schemes.0 (source), ") and "3 positions were never" in lines[0]
    assert lines[1].split() == ["positions", "updates", "tokens", "norm", "moved", "by"] and len(lines) == 2 * 14
    printed = CliRunner().invoke(application("runs"), ["runs", "positions", str(pairs), "--json"]).stdout
    records = [json.loads(line) for line in printed.splitlines()]
    assert [record["unreached"] for record in records] == [3, 6] and len(records[0]["tokens"]) == 12


def test_b3_texts_and_what_cannot_be_reported(tmp_path: Path) -> None:
    """A language model reads <s> and all words but guesses the end; a masked one reads both marks."""
    for task in ("language-modeling", "masked-language-modeling"):
        write_texts(tmp_path / "book.txt", [1 + n % 6 for n in range(20)])
        preset = "gpt2" if task == "language-modeling" else "bert-tiny"
        (table,) = position_report(run_of(tmp_path, task, "{file: book.txt}", preset))
        marks = 1 if task == "language-modeling" else 2
        assert table.side == "text"
        assert table.tokens == [3 * sum(1 + n % 6 + marks > place for n in range(20)) for place in range(12)]
    fails(UsageError, "is not a run with a checkpoint", position_report, tmp_path)
    write_texts(tmp_path / "book.txt", [3] * 20)
    run = run_of(tmp_path, "language-modeling", "{file: book.txt}", "gpt2", "sinusoidal")
    fails(UsageError, "has no learned positions: its schemes are sinusoidal", position_report, run)
