"""Real processes that die while they save, and two in one folder: nothing lost, nothing half seen (R1, R2, R8)."""

import contextlib
import fcntl
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from atento.base.errors import CheckpointError
from atento.storage.checkpoint import clean, load_checkpoint, newest, prune, save_checkpoint
from children import DONE, ended, in_child
from conftest import MEMORY, in_small_process

DEADLY = [(os, name) for name in ("mkdir", "open", "write", "fsync", "close", "rename", "unlink", "rmdir", "scandir")]
DEADLY.append((fcntl, "flock"))
KILLED, KILLED_AT_WRITE = 9, 10


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(dir=MEMORY))
    yield path
    shutil.rmtree(path)


def save(folder: Path, step: int, size: int = 50, fill: float | None = None) -> Path:
    """A checkpoint whose every number is the step (or `fill`), so that a mixture of two would show."""
    value = float(step) if fill is None else fill
    tensors = {"w": torch.full((size,), value), "b": torch.full((3,), value, dtype=torch.float64)}
    return save_checkpoint(folder, step, config={}, weights=tensors, optimizer=tensors, state={"value": value})


def whole(path: Path) -> float:
    """The one value a checkpoint holds."""
    back = load_checkpoint(path)
    tensors = [*back.weights.values(), *back.optimizer.values()]
    values = {value for tensor in tensors for value in tensor.unique().tolist()}
    assert values == {back.state["value"]}
    return values.pop()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def dying_at(call: int, half: bool, work: Callable[[], object]) -> int:
    """Run `work` in a child that is gone for good at its system call number `call`; a write may get half way first."""

    def doomed() -> None:
        made = [0]

        def wrap(name: str, real: Callable) -> Callable:
            def deadly(*args, **kwargs):
                made[0] += 1
                if made[0] > call:
                    if half and name == "write":
                        real(args[0], args[1][: len(args[1]) // 2])
                    os._exit(KILLED_AT_WRITE if name == "write" else KILLED)
                return real(*args, **kwargs)

            return deadly

        for module, name in DEADLY:
            setattr(module, name, wrap(name, getattr(module, name)))
        work()

    return ended(in_child(doomed))


Work = Callable[[Path], object]


def every_death(folder: Path, prepare: Work, work: Work, check: Work, every: int = 1) -> int:
    """Let `work` die at each of its system calls in turn, or at each `every`-th, look at what is left, count."""
    template, deaths = folder / "template", 0
    template.mkdir()
    prepare(template)
    trial = folder / "trial"
    for call in range(0, 1000, every):
        for half in (False, True):
            shutil.copytree(template, trial)
            status = dying_at(call, half, lambda: work(trial))
            assert status in (KILLED, KILLED_AT_WRITE, DONE)
            check(trial)
            shutil.rmtree(trial)
            deaths += status != DONE
            if status != KILLED_AT_WRITE:
                break
        if status == DONE:
            return deaths
    raise AssertionError("the work never ends")


def old_or_new(*allowed: float | None) -> Callable[[Path], None]:
    """After a death: one of these values can be loaded, at once and after the next start, which cleans up."""

    def check(trial: Path) -> None:
        found = newest(trial)
        value = None if found is None else whole(found)
        assert value in allowed
        clean(trial)
        found = newest(trial)
        assert (None if found is None else whole(found)) == value
        assert all(name.startswith("step-") and not name.endswith((".old", ".bad")) for name in names(trial))
        assert whole(save(trial, 9)) == 9.0  # and the run goes on

    return check


# Each death forks this process and reads what is left: the gate dies at every fifth system call.
EVERY = pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])


def save_one(trial: Path) -> Path:
    return save(trial, 1)


def to_clean(trial: Path) -> None:
    old = save_one(trial).rename(trial / "step-00000001.old")  # a replacement cut between its renames
    shutil.copytree(old, trial / f".tmp-2-{'0' * 32}")
    shutil.copytree(old, trial / f".trash-step-00000000-{'0' * 32}")


# What may die, what is there before, what can be loaded afterwards, and how many deaths it has at least.
SAVES: dict[str, tuple[Work, Work, tuple[float | None, ...], int]] = {
    "the first save": (save_one, lambda trial: None, (None, 1.0), 40),
    "a later save": (lambda trial: save(trial, 2), save_one, (1.0, 2.0), 40),
    "replacing the only checkpoint": (lambda trial: save(trial, 1, fill=7.0), save_one, (1.0, 7.0), 50),
    "saving with retention": (lambda trial: (save(trial, 2), prune(trial, 1)), save_one, (1.0, 2.0), 60),
    "cleaning up": (clean, to_clean, (1.0,), 15),
}


@EVERY
@pytest.mark.parametrize("number", range(len(SAVES)), ids=list(SAVES))
@in_small_process
def test_r2_a_save_may_die_anywhere(folder: Path, number: int, every: int) -> None:
    work, before, allowed, least = [*SAVES.values()][number]
    assert every_death(folder, before, work, old_or_new(*allowed), every) > least // every


STRACE = shutil.which("strace")
CALLS = ["?mkdir,?mkdirat", "flock", "write", "fsync", "?rename,?renameat,?renameat2", "?rmdir,?unlink,?unlinkat"]
SAVER = """
import pathlib, sys, torch
from atento.storage.checkpoint import save_checkpoint
from atento.storage.checkpoint import prune
tensors = {"w": torch.full((50,), 2.0), "b": torch.full((3,), 2.0, dtype=torch.float64)}
folder = pathlib.Path(sys.argv[1])
for again in range(2):
    save_checkpoint(folder, 2, config={}, weights=tensors, optimizer=tensors, state={"value": 2.0})
prune(folder, 1)
"""


@pytest.mark.slow
@pytest.mark.skipif(STRACE is None, reason="needs strace")
@pytest.mark.parametrize("call", CALLS)
def test_r2_the_system_itself_kills_at_each_call(folder: Path, call: str) -> None:
    """The same without patched functions: strace delivers SIGKILL as the system call is entered."""
    for number in range(1, 200):
        trial = folder / "trial"
        save(trial, 1)
        inject = ["-e", f"inject={call}:signal=KILL:when={number}"]
        command = [str(STRACE), "-f", "-o", os.devnull, "-e", f"trace={call}", *inject, sys.executable, "-c", SAVER]
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        status = subprocess.run([*command, str(trial)], env=environment, timeout=60).returncode
        assert status in (0, -signal.SIGKILL)
        old_or_new(1.0, 2.0)(trial)
        shutil.rmtree(trial)
        if status == 0:
            break
    assert number > 2


def naive(folder: Path, step: int, size: int = 50) -> None:
    """The planted bug: the common `save(path)` over the file that is there."""
    content = naive_content(step, size)
    fd = os.open(folder / "model.safetensors", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for start in range(0, len(content), 1 << 20):
        os.write(fd, content[start : start + (1 << 20)])
    os.close(fd)


def naive_content(step: int, size: int) -> bytes:
    from safetensors.torch import save as to_bytes

    return to_bytes({"w": torch.full((size,), float(step))})


def naive_value(folder: Path) -> float | None:
    """The one value of a naive checkpoint, None where it cannot be read or is a mixture."""
    with contextlib.suppress(SafetensorError, OSError):
        values = load_file(folder / "model.safetensors")["w"].unique().tolist()
        if len(values) == 1:
            return values[0]
    return None


@in_small_process
def test_r2_has_teeth_a_plain_save_dies_with_nothing(folder: Path) -> None:
    lost = []

    def check(trial: Path) -> None:
        lost.append(naive_value(trial) not in (1.0, 2.0))

    every_death(folder, lambda trial: naive(trial, 1), lambda trial: naive(trial, 2), check)
    assert any(lost) and not all(lost)


def killed_at_random(folder: Path, work: Callable[[], object], source: random.Random) -> None:
    """SIGKILL a child at a random moment of its work, after its first save."""
    pid = in_child(work)
    before = names(folder)
    deadline = time.monotonic() + 20
    while names(folder) == before and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(source.uniform(0.0, 0.03))
    os.kill(pid, signal.SIGKILL)
    assert ended(pid) == -signal.SIGKILL


@in_small_process
def test_r1_twenty_random_kills_lose_nothing(folder: Path) -> None:
    source, last, cut_short = random.Random(1), 0.0, 0

    def trainer() -> None:
        clean(folder)
        found = newest(folder)
        step = 0 if found is None else int(whole(found))
        while True:
            step += 1
            save(folder, step, size=500_000)
            prune(folder, 2)

    for _ in range(20):
        killed_at_random(folder, trainer, source)
        cut_short += any(name.startswith(".") for name in names(folder))
        found = newest(folder)
        value = last if found is None else whole(found)
        assert value >= last  # what was once committed stays
        last = value
        assert not any(name.endswith(".bad") for name in names(folder))
    assert last > 0
    assert cut_short >= 3  # kills did land inside saves


@in_small_process
def test_r1_has_teeth_random_kills_destroy_a_plain_save(folder: Path) -> None:
    source, lost = random.Random(2), 0

    def trainer() -> None:
        contents = [naive_content(step, 2_000_000) for step in (1, 2)]
        while True:
            for content in contents:
                (folder / "model.safetensors").write_bytes(content)

    for _ in range(20):
        killed_at_random(folder, trainer, source)
        lost += naive_value(folder) is None
        for path in folder.iterdir():
            path.unlink()
    assert lost >= 1


@in_small_process
def test_r8_a_reader_beside_a_writer_sees_whole_states_only(folder: Path) -> None:
    """The writer saves, replaces and deletes as fast as it can; what the reader gets is whole, none is called bad."""
    save(folder, 1)

    def writer() -> None:
        step = 1
        while True:
            step += 1
            save(folder, step)
            save(folder, step, fill=float(step))  # the same step again
            prune(folder, 1)

    pid = in_child(writer)
    try:
        seen, gone, last = 0, 0, 0.0
        deadline = time.monotonic() + 20
        while seen < 100 and time.monotonic() < deadline:
            found = newest(folder)
            try:
                value = whole(found) if found else None
            except CheckpointError:
                gone += 1  # deleted between the two calls: an error, never half a state
                continue
            if value is not None:
                assert value >= last - 1  # the one before it, where this one was just being replaced
                last, seen = max(value, last), seen + 1
        assert seen == 100
        assert not any(name.endswith(".bad") or ".bad" in name for name in names(folder))
    finally:
        os.kill(pid, signal.SIGKILL)
        ended(pid)


@in_small_process
def test_what_a_living_process_writes_is_not_cleaned_away(folder: Path) -> None:
    ready, say = os.pipe()

    def slow() -> None:
        real = os.fsync

        def fsync(fd: int) -> None:
            os.write(say, b"1")
            time.sleep(600)
            real(fd)

        os.fsync = fsync
        save(folder, 1)

    pid = in_child(slow)
    assert os.read(ready, 1) == b"1"
    assert clean(folder) == [] and len(names(folder)) == 1
    os.kill(pid, signal.SIGKILL)
    ended(pid)
    assert len(clean(folder)) == 1 and names(folder) == []
    os.close(ready)
    os.close(say)
