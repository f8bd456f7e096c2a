"""Training in several processes: the same run as in one, and what happens when one of them fails."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from conftest import Done, ForkServer, Running, each_refused, refused
from http_service import until
from runs import differences, events

# five pieces an update, so that two or three processes have unequal shares
SETTINGS = ("training.micro_batches=5", "training.steps=12", "training.checkpoint_every=4", "training.validate_every=6")
EXACT = (*SETTINGS, "training.parallel.exact=true")


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def start(server: ForkServer, size: int, *argv: Any, cwd: Path, recipe: str = "tiny.yaml", **how: Any) -> list[Running]:
    """`atento train ARGUMENTS` in several processes, as torchrun would start them."""
    world = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [
        server.start("train", recipe, *argv, cwd=cwd, env=world | ranks, **how)
        for ranks in [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]
    ]


def train(server: ForkServer, size: int, *argv: object, cwd: Path, **options: object) -> list[Done]:
    """As `start`, from beginning to end."""
    return [running.end() for running in start(server, size, *argv, cwd=cwd, **options)]  # type: ignore[arg-type]


def finished(done: list[Done]) -> None:
    """All processes have ended well, and only the first one has said something."""
    assert [process.status for process in done] == [0] * len(done), done
    assert done[0].stderr and not any(process.stderr or process.stdout for process in done[1:]), done


@pytest.fixture(scope="module")
def alone(server: ForkServer, data: Path, scratch: Path) -> dict[str, Path]:
    """The run in one process, in exact mode and not."""
    runs = {name: scratch / f"alone-{name}" for name in ("exact", "fast")}
    for name, settings in (("exact", EXACT), ("fast", SETTINGS)):
        server.good("train", "tiny.yaml", "--out", runs[name], *settings, cwd=data)
    return runs


def furthest(one: Path, two: Path, kind: str = "train") -> float:
    """The largest difference of the losses of two runs, relative to the loss."""
    pairs = list(zip(events(one, kind), events(two, kind), strict=True))
    assert pairs
    return max(abs(a["loss"] - b["loss"]) / a["loss"] for a, b in pairs)


slow = partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize("size", [2, *map(slow, (3, 4, 8))])
def test_exact_mode_has_the_bits_of_one(server: ForkServer, place: Path, alone: dict[str, Path], size: int) -> None:
    finished(train(server, size, "--out", "run", *EXACT, cwd=place))
    assert differences(alone["exact"], place / "run") == []


SMALL = (
    *("data.train.0.count=300", "data.valid.0.count=10", "tokenizer.vocab_size=400", "training.warmup=2"),
    *("training.steps=4", "training.validate_every=4", "training.checkpoint_every=4", "training.log_every=1"),
    *("training.batch_tokens=600", "training.micro_batches=3", "training.parallel.exact=true"),
)
TINY = ("network.d_model=16", "network.d_ff=32", "network.n_heads=2", "network.n_layers=1")


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe, more",
    [
        ("micro-world-lm", ("training.optimizer=muon", "training.ema=0.9", *TINY)),
        ("micro-world-mlm", ("training.precision=bfloat16", *TINY)),
        ("micro-world-mlm", ("objective=[{kind: masked, share: 0.5}, {kind: causal, share: 0.5}]", *TINY)),
        ("micro-world-en-pt", ("training.scheduled_sampling.share=0.5", "training.log_gradient_noise=true", *TINY)),
        ("micro-world-en-pt", ("training.r_drop=5", *TINY)),
        ("micro-world-rnn", ("network.d_model=16",)),
        ("micro-world-elmo", ()),
        ("micro-world-cbow", ()),
    ],
)
def test_exact_mode_has_the_bits_of_one_process(server: ForkServer, place: Path, recipe: str, more: Any) -> None:
    for size in (1, 2):
        finished(train(server, size, "--out", f"run-{size}", *SMALL, *more, cwd=place, recipe=recipe))
    assert differences(place / "run-1", place / "run-2") == []


def test_fast_mode_agrees_with_one_process(server: ForkServer, place: Path, alone: dict[str, Path]) -> None:
    finished(done := train(server, 2, "--out", "run", *SETTINGS, cwd=place))
    assert "1 thread in each of 2 processes" in done[0].stderr and "nothing to do" not in done[0].stderr
    assert 0 <= furthest(alone["fast"], place / "run") < 5e-5
    ours, theirs = (events(run, "valid") for run in (place / "run", alone["fast"]))
    assert [event["nll"] for event in ours] == pytest.approx([event["nll"] for event in theirs], rel=5e-5)


@pytest.mark.parametrize("fault", ["mean_of_means", *map(slow, ("counts_not_reduced", "dropout_by_rank"))])
def test_the_comparison_finds_known_bugs(server: ForkServer, place: Path, alone: dict[str, Path], fault: str) -> None:
    train(server, 2, "--out", "run", *SETTINGS, cwd=place, fault=fault)
    assert furthest(alone["fast"], place / "run") > 5e-5


def test_the_comparison_of_bits_finds_a_sum_by_process(server: ForkServer, place: Path, alone: dict[str, Path]) -> None:
    train(server, 2, "--out", "run", *EXACT, cwd=place, fault="sum_by_rank")
    assert "model.safetensors" in differences(alone["exact"], place / "run")


def test_a_signal_to_one_stops_all_and_any_number_continues(server: ForkServer, place: Path, alone: Any) -> None:
    """Stopped on 2, continued on 3, stopped again, continued on 1: as never stopped."""
    for size, step in ((2, 3), (3, 7)):
        fault = {"fault": "signalled", "step": step, "rank": 1, "number": int(signal.SIGTERM)}
        done = train(server, size, "--out", "run", *EXACT, cwd=place, **fault)
        assert [process.status for process in done] == [75] * size, done
        assert f"stopped by SIGTERM after step {step}," in done[0].stderr
        assert not any(process.stderr for process in done[1:])
    finished(train(server, 1, "--out", "run", *EXACT, cwd=place))
    assert differences(alone["exact"], place / "run") == []


# Of one process: test_training_engine.py.
@pytest.mark.parametrize("policy, said", [("skip", "the update is skipped"), slow("rewind", "those of step 4 again")])
def test_a_loss_not_finite_on_one_is_skipped_by_all(server: ForkServer, place: Path, policy: str, said: str) -> None:
    for size in (1, 2):
        settings = (*EXACT, f"training.non_finite={policy}")
        fault = {"fault": "loss_not_finite", "step": 5, "rank": size - 1}
        finished(done := train(server, size, "--out", f"run-{size}", *settings, cwd=place, **fault))
        assert done[0].stderr.count(said) == 1
    assert [event["step"] for event in events(place / "run-2", "skip")] == [5]
    assert differences(place / "run-1", place / "run-2") == []


def test_a_loss_that_is_not_finite_or_weights_that_drift_on_one_stop_all(server: ForkServer, place: Path) -> None:
    for fault, settings, step, said in (
        ("loss_not_finite", EXACT, 5, "step 5: the loss is not finite"),
        ("weights_drift", SETTINGS, 6, "step 8: the weights of process 1 are not those of process 0"),
    ):
        done = train(server, 2, "--out", fault, *settings, cwd=place, fault=fault, step=step, rank=1)
        refused(done[0], said, status=1)
        assert done[1].status == 1 and done[1].stderr == ""


def test_memory_that_runs_out_on_one_process_makes_smaller_pieces_on_all(server: ForkServer, place: Path) -> None:
    settings = (*EXACT, "training.micro_batches=2")
    for size in (1, 2):
        fault = {"fault": "memory_runs_out", "step": 5, "rank": size - 1}
        finished(done := train(server, size, "--out", f"run-{size}", *settings, cwd=place, **fault))
        assert done[0].stderr.count("memory ran out") == 1
    assert differences(place / "run-1", place / "run-2") == []


@pytest.mark.slow
def test_a_process_that_is_slow_is_named_once(server: ForkServer, place: Path) -> None:
    settings = (*SETTINGS, "training.steps=20")
    finished(done := train(server, 2, "--out", "run", *settings, cwd=place, fault="computes_slowly", rank=1))
    assert done[0].stderr.count("they wait for it") == 1 and "warning: process 1 takes" in done[0].stderr
    finished(train(server, 2, "--out", "even", *SETTINGS, cwd=place))


def test_a_process_that_hangs_ends_the_run_in_time(server: ForkServer, place: Path) -> None:
    fault = {"fault": "signalled", "step": 6, "rank": 1, "number": int(signal.SIGSTOP)}
    world = start(server, 2, "--out", "run", *SETTINGS, "training.parallel.timeout=2", cwd=place, **fault)
    started = time.monotonic()
    done = world[0].end(30.0)
    os.kill(world[1].pid, signal.SIGKILL)
    world[1].end()
    refused(done, "another process has ended, or has not answered within 2 s", status=1)
    assert "the last update begun is 6, and by process 1 update 5" in done.stderr
    record = json.loads((place / "run" / "flight-recorder-0.json").read_text(encoding="utf-8"))
    assert {entry["profiling_name"] for entry in record["entries"]} >= {"gloo:all_gather", "gloo:all_reduce"}
    assert time.monotonic() - started < 20


def test_a_process_without_a_part_takes_the_same_steps(server: ForkServer, place: Path) -> None:
    settings = ("training.steps=6", "training.parallel.exact=true")
    finished(done := train(server, 2, "--out", "run-2", *settings, cwd=place))
    assert "warning: the first update has 1 part for 2 processes" in done[0].stderr
    finished(train(server, 1, "--out", "run-1", *settings, cwd=place))
    assert differences(place / "run-1", place / "run-2") == []


def test_processes_with_another_recipe_or_folder_are_refused(server: ForkServer, place: Path) -> None:
    other = ("training.learning_rate=1e-4", "--out", "run")
    for argv, message in ((other, "process 1: run is a run of another recipe"), (("--out", "there"), "is missing")):
        address = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        world = [
            server.start("train", "tiny.yaml", *arguments, cwd=place, env=address | {"RANK": str(rank)})
            for rank, arguments in enumerate((("--out", "run"), argv))
        ]
        done = [running.end() for running in world]
        refused(done[0], message)
        assert done[1].status == 2 and done[1].stderr == ""


def test_what_processes_are_refused(server: ForkServer, place: Path) -> None:
    refusals = {
        "train tiny.yaml training.parallel.replicate=2": "replicate` is 2, and 1 process was started",
        "train tiny.yaml training.parallel.exact=true --threads 2": "one CPU thread a process: got 2 threads",
        "train tiny.yaml --nproc 2 --folds 2": "give one of the two",
    }
    each_refused(server, place, refusals)
    done = server.run("train", "tiny.yaml", cwd=place, env={"WORLD_SIZE": "2", "RANK": "0"})
    refused(done, "MASTER_ADDR and MASTER_PORT are not set")
    both = train(server, 2, "training.report_to=[wandb]", "training.stops=3", cwd=place)
    assert [process.status for process in both] == [2, 2] and both[0].stderr.count("error:") == 1 and not both[1].stderr
    (place / "bad.tsv").write_text("one column alone\n")
    both = train(server, 2, "--out", "run", "data.train={file: bad.tsv, source: 0, target: 1}", cwd=place)
    refused(both[0], "bad.tsv:1")
    assert both[1].status == 2 and both[1].stderr == ""


@pytest.mark.slow  # five launches
def test_the_launcher_restarts_after_a_kill_and_passes_signals_on(server: ForkServer, place: Path) -> None:
    """One launch: a process is killed, and all continue from the last checkpoint; SIGTERM stops them; one continues."""
    settings = (*EXACT, "training.steps=48", "training.validate_every=24", "--out", "run")
    command = [sys.executable, "-m", "atento_cli.start", "train", "tiny.yaml", "--nproc", "2", *settings]
    with subprocess.Popen(command, cwd=place, stderr=subprocess.PIPE, text=True) as launcher:
        wait_for(place / "run", 4, launcher)
        workers = children(launcher.pid)
        assert len(workers) == 2
        os.kill(workers[1], signal.SIGKILL)
        wait_for(place / "run", 12, launcher)
        launcher.send_signal(signal.SIGTERM)
        _, stderr = launcher.communicate(timeout=240)
    assert launcher.returncode == 75, stderr
    assert "process 1 of 2 was killed by SIGKILL; all start again from the last checkpoint (1 of 3)" in stderr
    assert "resuming run from step" in stderr and stderr.count("stopped by SIGTERM after step") == 1
    finished(train(server, 1, *settings, cwd=place))
    finished(train(server, 1, *settings[:-1], "never-stopped", cwd=place))
    assert differences(place / "never-stopped", place / "run") == []


@pytest.mark.slow
def test_processes_end_with_a_checkpoint_when_their_launcher_is_killed(server: ForkServer, place: Path) -> None:
    settings = (*EXACT, "training.steps=4000", "training.validate_every=4000", "training.checkpoint_every=100")
    command = [sys.executable, "-m", "atento_cli.start", "train", "tiny.yaml", "--out", "run", "--nproc", "2"]
    with subprocess.Popen([*command, *settings], cwd=place, stderr=subprocess.PIPE, text=True) as launcher:
        wait_for(place / "run", 100, launcher)
        workers = children(launcher.pid)
        launcher.kill()
        launcher.wait(10)
    until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))
    last_step = events(place / "run", "checkpoint")[-1]["step"]
    assert last_step % 100 and (place / f"run/checkpoints/step-{last_step:08d}").exists()  # saved because of SIGTERM


def wait_for(run: Path, step: int, launcher: "subprocess.Popen[str]") -> None:
    """Wait for the checkpoint of a step."""
    deadline = time.monotonic() + 240  # starting takes seconds, and more on a busy machine
    while not (run / "checkpoints" / f"step-{step:08d}").exists():
        assert launcher.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)


def state(pid: int) -> str:
    """A letter for the state of a process; Z until somebody has asked for its status, nothing behind that."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    return ""


def handles_signals(pid: int) -> bool:
    caught = re.search(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(encoding="ascii"), flags=re.M)
    return caught is not None and bool(int(caught[1], 16) >> (signal.SIGUSR1 - 1) & 1)


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize("number, workers", [(signal.SIGINT, 0), slow(signal.SIGTERM, 2)])
def test_a_signal_in_the_first_seconds_is_said_and_ends_all(place: Path, number: signal.Signals, workers: int) -> None:
    """While the launcher imports PyTorch, and while its processes do."""
    command = [sys.executable, "-m", "atento_cli.start", "train", "tiny.yaml", "--nproc", "2", "--out", "run"]
    with subprocess.Popen(command, cwd=place, stderr=subprocess.PIPE, text=True) as launcher:
        deadline = time.monotonic() + 120
        while len(started := children(launcher.pid)) < workers or not handles_signals(launcher.pid):
            assert launcher.poll() is None and time.monotonic() < deadline
            time.sleep(0.005)
        launcher.send_signal(number)
        _, stderr = launcher.communicate(timeout=60)
    assert launcher.returncode in (-number, 128 + number), stderr  # a shell gives 128 + the signal for both
    assert stderr.count("\n") == 1 and stderr.startswith(f"stopped by {number.name}"), stderr
    until(lambda: {state(pid) for pid in started} <= {"", "Z"}, 10)  # one that was killed takes a moment to end
    assert not (place / "run").exists()
