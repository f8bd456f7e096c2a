"""Faults of one process of several, and the bugs that training in several processes is known for."""

import importlib
import json
import os
import signal
import time
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

UPDATE, PARTS = "atento.training.step:Updater.update", "atento.training.step:Updater._part_gradients"
EXCHANGE, WRITE = "atento.training.replica.data_parallel:Processes.exchange", "atento.storage.shards:write_file"


def instead_of(place: str) -> Callable[[Callable[..., Any]], None]:
    """Put a function in a place, `module:name` or `module:class.name`; its first argument is what stood there."""
    module, _, path = place.partition(":")
    *owners, name = path.split(".")
    home = reduce(getattr, owners, importlib.import_module(module))
    real = getattr(home, name)
    return lambda function: setattr(home, name, lambda *given, **options: function(real, *given, **options))


def is_rank(rank: int) -> bool:
    return int(os.environ.get("RANK", "0")) == rank


def loss_not_finite(step: int, rank: int) -> None:
    """The loss of every part of one update is not a number, on one process."""

    @instead_of("atento.training.step:losses")
    def losses(real: Any, network: Any, batch: Any, call: Any) -> Any:
        computed = real(network, batch, call)
        if call.step == step and is_rank(rank):
            computed = {head: (loss * float("nan"), nll) for head, (loss, nll) in computed.items()}
        return computed


def memory_runs_out(step: int, rank: int) -> None:
    """Memory runs out once, on one process."""
    failed = [False]

    @instead_of(PARTS)
    def part_gradients(real: Any, updater: Any, part: Any, call: Any, scales: Any) -> Any:
        if call.step == step and is_rank(rank) and not failed[0]:
            failed[0] = True
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return real(updater, part, call, scales)


def computes_slowly(rank: int) -> None:
    """One process takes 50 ms longer for each part."""

    @instead_of(PARTS)
    def part_gradients(real: Any, *given: Any) -> Any:
        if is_rank(rank):
            time.sleep(0.05)
        return real(*given)


def weights_drift(step: int, rank: int) -> None:
    """One bit of a weight flips on one process; weights are compared every 4 updates."""
    import torch

    from atento.training.replica import data_parallel

    data_parallel.CHECK_EVERY = 4

    @instead_of(UPDATE)
    def update(real: Any, updater: Any, parts: Any, number: int, *rest: Any) -> Any:
        if number == step and is_rank(rank):
            bits = next(iter(updater.parameters.values())).detach().view(-1).view(torch.int32)
            bits[0] ^= 1
        return real(updater, parts, number, *rest)


def signalled(step: int, rank: int, number: int) -> None:
    """One process gets a signal before an update; SIGSTOP is a process that hangs."""

    @instead_of(UPDATE)
    def update(real: Any, updater: Any, parts: Any, at: int, *rest: Any) -> Any:
        if at == step and is_rank(rank):
            os.kill(os.getpid(), number)
        return real(updater, parts, at, *rest)


def mean_of_means() -> None:
    """Each process divides by its own targets, and the means are averaged."""
    targets: dict[str, int] = {}

    @instead_of(UPDATE)
    def update(real: Any, updater: Any, parts: Any, *rest: Any) -> Any:
        parts = list(parts)
        targets["mine"] = sum(part.batch.targets for part in parts)
        return real(updater, parts, *rest)

    @instead_of(EXCHANGE)
    def exchange(real: Any, processes: Any, values: Any) -> Any:
        everyones = real(processes, values)
        if values and isinstance(values[0], tuple | list) and isinstance(values[0][0], dict):
            targets["all"] = sum(count for counts, _ in everyones for count in counts.values())
        return everyones

    @instead_of("atento.training.replica.sums:AllReduceSum.finish")
    def finish(real: Any, gradients: Any) -> None:
        for parameter in gradients.parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(targets["all"] / targets["mine"] / gradients.processes.size)
        real(gradients)


def counts_not_reduced() -> None:
    """The summed gradient is divided by the targets of this process alone."""

    @instead_of(EXCHANGE)
    def exchange(real: Any, processes: Any, values: Any) -> Any:
        everyones = real(processes, values)
        if values and isinstance(values[0], tuple | list) and isinstance(values[0][0], dict):
            ours, own = iter(values), processes._owner
            return [next(ours) if own(n) == processes.rank else ({}, True) for n in range(len(everyones))]
        return everyones


def dropout_by_rank() -> None:
    """Each process counts its own parts, so that dropout depends on who computes a part."""
    place = instead_of("atento.training.replica.data_parallel:Processes.numbers")
    place(lambda real, processes, count: list(range(count)))


def sum_by_rank() -> None:
    """In exact mode: the sums of the processes are added by an all-reduce of running sums."""
    from atento.training.replica.sums import AllReduceSum

    place = instead_of("atento.training.replica.data_parallel:Processes.gradient_sum")
    place(lambda real, processes, weights, parts: AllReduceSum(processes, list(weights.parameters.values())))


def killed_while_saving(step: int, rank: int) -> None:
    """One process is killed when it has written half of its files of a checkpoint."""

    @instead_of(WRITE)
    def write_file(real: Any, fd: int, name: str, chunks: Any) -> Any:
        entry = real(fd, name, chunks)
        if is_rank(rank) and Path(f"/proc/self/fd/{fd}").readlink().name.startswith(f".tmp-{step}-"):
            os.kill(os.getpid(), signal.SIGKILL)
        return entry


def announced_before_written(step: int, rank: int) -> None:
    """One process says that its files of a checkpoint are written when they are not on the disk yet."""

    @instead_of(WRITE)
    def write_file(real: Any, fd: int, name: str, chunks: Any) -> Any:
        entry = real(fd, name, chunks)
        if Path(f"/proc/self/fd/{fd}").readlink().name.startswith(f".tmp-{step}-") and is_rank(rank):
            os.unlink(name, dir_fd=fd)
        return entry


def bytes_recorded(folder: str) -> None:
    """No fault: each process writes down the bytes of its weights, gradients and optimizer state after an update."""

    @instead_of("atento.training.optimizer:Optimizer.step")
    def step(real: Any, optimizer: Any, rate: float) -> None:
        gradients = [value.grad for value in optimizer.parameters.values() if value.grad is not None]
        real(optimizer, rate)
        counted = {
            "weights": sum(value.untyped_storage().nbytes() for value in optimizer.parameters.values()),
            "gradients": sum(gradient.nbytes for gradient in gradients),
            "optimizer": sum(value.nbytes for value in optimizer.tensors().values()),
        }
        (Path(folder) / f"bytes-{os.environ['RANK']}.json").write_text(json.dumps(counted), encoding="utf-8")


def other_version(rank: int) -> None:
    """One process has another version of Python."""
    from atento.training.replica import health

    if is_rank(rank):
        health.platform = type("", (), {"python_version": lambda: "2.7.18", "machine": lambda: "vax"})  # type: ignore[assignment]


_ALL: list[Callable[..., None]] = [loss_not_finite, memory_runs_out, weights_drift, signalled, mean_of_means]
_ALL += [counts_not_reduced, dropout_by_rank, sum_by_rank, computes_slowly, killed_while_saving]
_ALL += [announced_before_written, bytes_recorded, other_version]
FAULTS = {function.__name__: function for function in _ALL}
