"""Faults of one process of several, and the bugs that training in several processes is known for."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def loss_not_finite(step: int, rank: int) -> None:
    """The loss of every part of one update is not a number, on one process."""
    from atento.training import step as module

    real = module.losses

    def losses(network: Any, batch: Any, call: Any) -> Any:
        computed = real(network, batch, call)
        if call.step == step and int(os.environ.get("RANK", "0")) == rank:
            computed = {head: (loss * float("nan"), nll) for head, (loss, nll) in computed.items()}
        return computed

    module.losses = losses


def memory_runs_out(step: int, rank: int) -> None:
    """Memory runs out once, on one process."""
    from atento.training.step import Updater

    real, failed = Updater._part_gradients, [False]

    def part_gradients(self: Updater, part: Any, call: Any, scales: Any) -> Any:
        if call.step == step and int(os.environ.get("RANK", "0")) == rank and not failed[0]:
            failed[0] = True
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return real(self, part, call, scales)

    Updater._part_gradients = part_gradients  # type: ignore[method-assign]


def computes_slowly(rank: int) -> None:
    """One process takes 50 ms longer for each part."""
    from atento.training.step import Updater

    real = Updater._part_gradients

    def part_gradients(self: Updater, part: Any, call: Any, scales: Any) -> Any:
        if int(os.environ.get("RANK", "0")) == rank:
            time.sleep(0.05)
        return real(self, part, call, scales)

    Updater._part_gradients = part_gradients  # type: ignore[method-assign]


def weights_drift(step: int, rank: int) -> None:
    """One bit of a weight flips on one process; weights are compared every 4 updates."""
    import torch

    from atento.training.replica import data_parallel
    from atento.training.step import Updater

    real = Updater.update
    data_parallel.CHECK_EVERY = 4

    def update(self: Updater, parts: Any, number: int, *rest: Any) -> Any:
        if number == step and int(os.environ.get("RANK", "0")) == rank:
            bits = next(iter(self.parameters.values())).detach().view(-1).view(torch.int32)
            bits[0] ^= 1
        return real(self, parts, number, *rest)

    Updater.update = update  # type: ignore[method-assign]


def signalled(step: int, rank: int, number: int) -> None:
    """One process gets a signal before an update; SIGSTOP is a process that hangs."""
    from atento.training.step import Updater

    real = Updater.update

    def update(self: Updater, parts: Any, at: int, *rest: Any) -> Any:
        if at == step and int(os.environ.get("RANK", "0")) == rank:
            os.kill(os.getpid(), number)
        return real(self, parts, at, *rest)

    Updater.update = update  # type: ignore[method-assign]


def mean_of_means() -> None:
    """Each process divides by its own targets, and the means are averaged."""
    from atento.training.replica.data_parallel import Processes
    from atento.training.replica.sums import FastSum
    from atento.training.step import Updater

    real_exchange, real_finish, real_update = Processes.exchange, FastSum.finish, Updater.update
    targets: dict[str, int] = {}

    def update(self: Updater, parts: Any, *rest: Any) -> Any:
        parts = list(parts)
        targets["mine"] = sum(part.batch.targets for part in parts)
        return real_update(self, parts, *rest)

    def exchange(self: Processes, values: Any) -> Any:
        everyones = real_exchange(self, values)
        if values and isinstance(values[0], tuple | list) and isinstance(values[0][0], dict):
            targets["all"] = sum(count for counts, _ in everyones for count in counts.values())
        return everyones

    def finish(self: FastSum) -> None:
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(targets["all"] / targets["mine"] / self.processes.size)
        real_finish(self)

    Updater.update, Processes.exchange, FastSum.finish = update, exchange, finish  # type: ignore[method-assign]


def counts_not_reduced() -> None:
    """The summed gradient is divided by the targets of this process alone."""
    from atento.training.replica.data_parallel import Processes

    real = Processes.exchange

    def exchange(self: Processes, values: Any) -> Any:
        everyones = real(self, values)
        if values and isinstance(values[0], tuple | list) and isinstance(values[0][0], dict):
            ours = iter(values)
            return [next(ours) if self._owner(n) == self.rank else ({}, True) for n in range(len(everyones))]
        return everyones

    Processes.exchange = exchange  # type: ignore[method-assign]


def dropout_by_rank() -> None:
    """Each process counts its own parts, so that dropout depends on who computes a part."""
    from atento.training.replica.data_parallel import Processes

    Processes.numbers = lambda self, count: list(range(count))  # type: ignore[method-assign]


def sum_by_rank() -> None:
    """In exact mode: the sums of the processes are added by an all-reduce of running sums."""
    from atento.training.replica.data_parallel import Processes
    from atento.training.replica.sums import FastSum

    Processes.gradient_sum = lambda self, weights, parts: FastSum(  # type: ignore[method-assign]
        self, list(weights.parameters.values())
    )


def killed_while_saving(step: int, rank: int) -> None:
    """One process is killed when it has written half of its files of a checkpoint."""
    from atento.storage import shards

    real = shards.write_file

    def write_file(fd: int, name: str, chunks: Any) -> Any:
        entry = real(fd, name, chunks)
        mine = int(os.environ.get("RANK", "0")) == rank
        if mine and Path(f"/proc/self/fd/{fd}").readlink().name.startswith(f".tmp-{step}-"):
            os.kill(os.getpid(), signal.SIGKILL)
        return entry

    shards.write_file = write_file


def announced_before_written(step: int, rank: int) -> None:
    """One process says that its files of a checkpoint are written when they are not on the disk yet."""
    from atento.storage import shards

    real = shards.write_file

    def write_file(fd: int, name: str, chunks: Any) -> Any:
        entry = real(fd, name, chunks)
        folder = Path(f"/proc/self/fd/{fd}").readlink().name
        if folder.startswith(f".tmp-{step}-") and int(os.environ.get("RANK", "0")) == rank:
            os.unlink(name, dir_fd=fd)
        return entry

    shards.write_file = write_file


def bytes_recorded(folder: str) -> None:
    """No fault: each process writes down the bytes of its weights, gradients and optimizer state after an update."""
    from atento.training.optimizer import Optimizer

    real = Optimizer.step

    def step(self: Optimizer, rate: float) -> None:
        gradients = [value.grad for value in self.parameters.values() if value.grad is not None]
        real(self, rate)
        counted = {
            "weights": sum(value.untyped_storage().nbytes() for value in self.parameters.values()),
            "gradients": sum(gradient.nbytes for gradient in gradients),
            "optimizer": sum(value.nbytes for value in self.tensors().values()),
        }
        path = Path(folder) / f"bytes-{os.environ['RANK']}.json"
        path.write_text(json.dumps(counted), encoding="utf-8")

    Optimizer.step = step  # type: ignore[method-assign]


def other_version(rank: int) -> None:
    """One process has another version of Python."""
    from atento.training.replica import health

    if int(os.environ.get("RANK", "0")) == rank:
        health.platform = type("", (), {"python_version": lambda: "2.7.18", "machine": lambda: "vax"})  # type: ignore[assignment]


FAULTS: dict[str, Callable[..., None]] = {
    function.__name__: function
    for function in (
        loss_not_finite,
        memory_runs_out,
        weights_drift,
        signalled,
        mean_of_means,
        counts_not_reduced,
        dropout_by_rank,
        sum_by_rank,
        computes_slowly,
        killed_while_saving,
        announced_before_written,
        bytes_recorded,
        other_version,
    )
}
