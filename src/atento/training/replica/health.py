"""What several processes need to train together, measured before a long run: links, clocks, shared folder, versions."""

import fcntl
import os
import platform
import socket
import statistics
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from atento.training.replica.data_parallel import Processes

CLOCKS = 1.0  # seconds that clocks may differ by
_LARGE = 1 << 24  # bytes of the message that measures the speed of a link
_TIMES = 20  # messages that measure its delay
_SEED = 2147483647  # of the random numbers that all machines must draw alike


@dataclass(frozen=True)
class Health:
    """What was measured, for the user."""

    processes: list[dict[str, str]]  # the facts of each process
    # seconds of a short message there and back, and bytes a second, between the first process and each other
    links: list[tuple[float, float]]
    clocks: list[float]  # seconds that the clock of each process is ahead of the first one's
    folder: dict[str, float]  # what could be done in the shared folder -> seconds it took
    differences: list[str]  # what is wrong, a sentence each; none: all is well


def examine(processes: Processes, folder: Path, version: str, device: str) -> Health:
    """Examine the processes; all of them call it.

    Args:
        folder: a folder that all of them should see.
        version: of Atento.
        device: "cpu" or "cuda"; messages are sent between its memories.

    Raises LostProcess: a process does not answer.
    """
    # with a short time limit: a lost process shows at once
    facts = processes.update_channel.gather(facts_of_process(version))
    differences = []
    for name in facts[0]:
        values = [fact[name] for fact in facts]
        if name not in ("host", "process") and len(set(values)) > 1:  # these should differ
            said = ", ".join(f"{value} on process {values.index(value)}" for value in dict.fromkeys(values))
            differences.append(f"{name} differs: {said}")
    links = measure_links(processes, device)
    clocks = measure_clocks(processes)
    if max(clocks) - min(clocks) > CLOCKS:
        differences.append(f"clocks differ by {max(clocks) - min(clocks):.1f} s, more than {CLOCKS:g} s")
    times, faults = examine_folder(processes, folder)
    return Health(facts, links, clocks, times, differences + faults)


def facts_of_process(version: str) -> dict[str, str]:
    """Return what must be equal on all processes, and the name of the machine."""
    generator = torch.Generator().manual_seed(_SEED)  # the same seed: what is drawn must be the same
    draws = torch.randint(1 << 30, (4,), generator=generator).tolist()  # four numbers are enough to see
    return {
        "host": socket.gethostname(),
        "process": str(os.getpid()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "atento": version,
        "processor": platform.machine(),
        "random numbers": " ".join(map(str, draws)),
    }


def measure_links(processes: Processes, device: str) -> list[tuple[float, float]]:
    """Return the delay in seconds, there and back, and the bytes a second between process 0 and each other."""
    place = torch.device(device, torch.cuda.current_device()) if device == "cuda" else torch.device("cpu")
    short, large = (torch.zeros(size, dtype=torch.uint8, device=place) for size in (8, _LARGE))

    def there_and_back(tensor: torch.Tensor, other: int) -> float:
        started = time.perf_counter()
        with processes.answered():
            if processes.main:
                dist.send(tensor, other)
                dist.recv(tensor, other)
            else:
                dist.recv(tensor, 0)
                dist.send(tensor, 0)
        if place.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started

    measured = []
    for other in range(1, processes.size):
        times = [0.0, 1.0]
        if processes.rank in (0, other):
            there_and_back(large, other)  # connects
            delay = statistics.median(there_and_back(short, other) for _ in range(_TIMES))
            seconds = min(there_and_back(large, other) for _ in range(3))  # the fastest of three: nothing else was sent
            times = [delay, seconds]
        delay, seconds = processes.update_channel.gather(times)[0]
        measured.append((delay, 2 * _LARGE / seconds))  # there and back
    return measured


def measure_clocks(processes: Processes) -> list[float]:
    """Return by how many seconds each clock is ahead of process 0's; exact to the delay of a message."""
    best: list[tuple[float, list[float]]] = []
    for _ in range(5):
        started = time.perf_counter()
        clocks = processes.update_channel.gather(time.time())  # sent at about the same time, after the answer before
        best.append((time.perf_counter() - started, clocks))
    _, clocks = processes.update_channel.gather(min(best[1:]))[0]  # the quickest round: clocks were read together
    return [clock - clocks[0] for clock in clocks]  # against the first process


def examine_folder(processes: Processes, folder: Path) -> tuple[dict[str, float], list[str]]:
    """Write, read and lock files in a folder that all processes should see; return seconds, and what is wrong."""
    name = processes.update_channel.gather(f".atento-{uuid.uuid4().hex}")[0]  # the name of process 0, on all
    path = folder / name
    times: dict[str, float] = {}
    faults: list[str] = []

    def step(what: str, work: Callable[[], object], message: str) -> None:
        started = time.perf_counter()
        try:
            fault = None if work() else message
        except OSError as error:
            fault = f"{message} ({error.strerror})"
        seconds = time.perf_counter() - started
        everyones = processes.update_channel.gather([fault, seconds])  # all come here: none waits for another
        if all(said is None for said, _ in everyones):
            times[what] = max(took for _, took in everyones)
        faults.extend(f"process {rank}: {folder}: {one}" for rank, (one, _) in enumerate(everyones) if one is not None)

    ours = path.with_name(f"{name}-{processes.rank}")
    theirs = [path.with_name(f"{name}-{rank}") for rank in range(processes.size)]
    locked: list[int] = []
    try:
        step("write and sync", lambda: _written(ours, f"{name} {processes.rank}"), "a file cannot be written")
        expected = [f"{name} {rank}" for rank in range(processes.size)]
        step(
            "read all",
            lambda: [path.read_text(encoding="ascii") for path in theirs] == expected,
            "files of others are not seen",
        )
        if not faults:  # the same on all processes
            # the others wait for the outcome of process 0
            step("lock", lambda: not processes.main or _lock(theirs[0], locked), "a file cannot be locked")
            step(
                "refuse a second lock",
                lambda: processes.main or not _lock(theirs[0], locked),
                "a file can be locked that process 0 has locked: two runs in one folder would not be noticed",
            )
    finally:
        for fd in locked:
            os.close(fd)
        ours.unlink(missing_ok=True)
    return times, faults


def _written(path: Path, text: str) -> bool:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(fd, text.encode("ascii"))
        os.fsync(fd)
    finally:
        os.close(fd)
    return True


def _lock(path: Path, locked: list[int]) -> bool:
    """Whether this process gets the lock of a file, whose descriptor is added."""
    locked.append(os.open(path, os.O_RDWR))
    try:
        fcntl.flock(locked[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
