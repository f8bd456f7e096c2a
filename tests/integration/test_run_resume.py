"""A run that is killed, stopped, or made twice is the same run, bit for bit (R1, R7, N1, N2)."""

import contextlib
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from conftest import ForkServer
from runs import batches, differences, events, last, tensors

# Everything that could go wrong on resuming is on: warm-up, dropout, accumulation, drawn subwords, own tokens among
# the inputs, decoding, averaging.
HARD = (
    *("training.log_every=1", "training.micro_batches=2", "training.subword_dropout=0.1", "training.average=2"),
    *("training.scheduled_sampling.share=0.5", "training.scheduled_sampling.tokens=sample"),
    *("training.checkpoint_every=3", "training.validate_every=6", "network.attention.dropout=0.1", "training.steps=15"),
    *("data.test.0.file=test.tsv", "data.test.0.source=0", "data.test.0.target=1"),
)
PRECISIONS = ["float32", "bfloat16"]
# without a kernel of bfloat16 for each shape, whose making is half of such a run
QUICK = {"ONEDNN_MAX_CPU_ISA": "AVX2"}


def train(precision: str, *more: str) -> list[str]:
    return ["train", "tiny.yaml", *HARD, f"training.precision={precision}", "--threads", "1", *more]


@pytest.fixture(scope="module")
def whole(server: ForkServer, data: Path, scratch: Path) -> dict[str, Path]:
    """An uninterrupted run a precision, with the record of its batches beside it, and how long it took."""
    runs = {}
    for precision in PRECISIONS:
        run = runs[precision] = scratch / f"whole-{precision}"
        begin = time.monotonic()
        server.good(*train(precision, "--out", str(run)), cwd=data, record=run.with_suffix(".ids"), env=QUICK)
        run.with_suffix(".time").write_text(str(time.monotonic() - begin), encoding="utf-8")
    return runs


def being_written(run: Path) -> set[str]:
    """The temporary folders of checkpoints that are being written, or were when a process was killed."""
    with contextlib.suppress(FileNotFoundError):
        return {path.name for path in (run / "checkpoints").iterdir() if path.name.startswith(".tmp-")}
    return set()


# The tests below kill at chosen places in float32, so the gate kills at random in bfloat16, which keeps more state.
@pytest.mark.parametrize("precision", ["bfloat16", pytest.param("float32", marks=pytest.mark.slow)])
def test_r1_killed_at_any_moment(server: ForkServer, place: Path, whole: dict[str, Path], precision: str) -> None:
    """SIGKILL, half of the times inside a save; restarted until it is done."""
    source, reference = random.Random(7), whole[precision]
    usual = float(reference.with_suffix(".time").read_text(encoding="utf-8"))
    run, record = place / "run", place / "ids"
    command = train(precision, "--out", "run")
    killed = cut_short = 0
    for attempt in range(12):
        before = being_written(run)
        running = server.start(*command, cwd=place, record=record, fault="slow_disk", env=QUICK)
        if attempt % 2:
            status, deadline = None, time.monotonic() + 30
            while status is None and not being_written(run) - before:
                status = running.status()
                assert time.monotonic() < deadline, running.stderr.read_text(encoding="utf-8")
            time.sleep(source.uniform(0.0, 0.01))
        else:
            time.sleep(source.uniform(0.05, 0.4) * usual)
            status = None
        status = running.status() if status is None else status
        if status is None and attempt < 6:
            os.kill(running.pid, signal.SIGKILL)
            killed += running.status(20.0) == -signal.SIGKILL
            cut_short += bool(being_written(run) - before)
            continue
        done = running.end() if status is None else running.told(status)
        assert done.status == 0, done.stderr
        break
    else:
        raise AssertionError("never done")
    assert killed >= 4 and cut_short >= 1, (killed, cut_short)
    assert differences(run, reference) == [] and batches(record) == batches(reference.with_suffix(".ids"))
    assert [event["step"] for event in events(run, "train")] == list(range(1, 16))
    assert [event["step"] for event in events(run, "valid")] == [6, 12, 15]
    assert not [path for path in (run / "checkpoints").iterdir() if path.name.startswith(".")]
    assert sorted(path.name for path in run.iterdir() if path.name.startswith(".")) == [".lock"]
    again = server.run(*command, cwd=place)
    assert (again.status, again.stdout, again.stderr) == (0, "", "already finished: run, step 15\n")


SHORT = ("training.log_every=4", "training.steps=10")
FAULTY = [
    ("dropout_by_the_clock", "float32", "train"),
    ("data_from_the_start", "float32", "train"),
    ("moments_forgotten", "float32", "optimizer.safetensors"),
    ("interval_forgotten", "float32", "train"),
    ("journal_not_cut", "float32", "train"),
    ("rate_from_the_start", "float32", "model.safetensors"),
    ("weights_not_restored", "bfloat16", "train"),
]


@pytest.fixture(scope="module")
def killed_right(server: ForkServer, data: Path, scratch: Path) -> dict[str, tuple[Path, Path]]:
    """A precision: a run of 10 steps that was killed in the step behind a checkpoint, and the same run not killed."""
    runs = {}
    at = {"module": "atento.training.loop", "function": "learning_rate", "number": signal.SIGKILL, "call": 9}
    for precision in PRECISIONS:
        killed, right = runs[precision] = scratch / f"killed-{precision}", scratch / f"right-{precision}"
        command = train(precision, *SHORT, "--out", str(killed))
        assert server.run(*command, cwd=data, env=QUICK, fault="signal_in_call", **at).status == -signal.SIGKILL
        assert last(killed).name == "step-00000006"
        assert server.run(*train(precision, *SHORT, "--out", str(right)), cwd=data, env=QUICK).status == 0
    return runs


@pytest.mark.parametrize(("fault", "precision", "seen"), FAULTY)
def test_r1_has_teeth_a_planted_bug_is_found(
    server: ForkServer, place: Path, whole: dict[str, Path], killed_right: Any, fault: str, precision: str, seen: str
) -> None:
    """Killed in the step behind a checkpoint, gone on with by a program that has the bug."""
    killed, right = killed_right[precision]
    shutil.copytree(killed, place / "run")
    command = train(precision, *SHORT, "--out", "run")
    assert server.run(*command, cwd=place, fault=fault, record=place / "ids", env=QUICK).status == 0
    assert seen in differences(place / "run", right)
    taken = batches(place / "ids")
    assert (sorted(taken) != list(range(6, 10))) == (fault == "data_from_the_start")
    assert taken.items() <= batches(whole[precision].with_suffix(".ids")).items()


@pytest.mark.parametrize("kill", [1, pytest.param(2, marks=pytest.mark.slow), 3])
def test_r1_killed_behind_its_last_step(server: ForkServer, place: Path, whole: dict[str, Path], kill: int) -> None:
    """While it averages (1), scores the average (2), or reads the best model for the test data (3)."""
    function = ("average_run", "signed", "read_model")[kill - 1]
    at = {"module": "atento.runs.finish", "function": function, "number": signal.SIGKILL}
    command = train("float32", "--out", "run")
    assert server.run(*command, cwd=place, fault="signal_in_call", **at).status == -signal.SIGKILL
    assert "resuming run after its last step, 15" in server.good(*command, cwd=place).stderr
    assert differences(place / "run", whole["float32"]) == []


@pytest.mark.covering
@pytest.mark.parametrize("keep", [1, 2])
@pytest.mark.parametrize("call", [1, 2, 3])
def test_r2_what_a_kill_cuts_off_a_checkpoint_is_made_up(server: ForkServer, place: Path, keep: int, call: int) -> None:
    """Killed between a checkpoint and its event, or between the event and the retention, also of the last step."""
    command = ["train", "tiny.yaml", "--threads", "1", f"training.keep={keep}"]
    command += ["training.steps=6", "training.validate_every=6", "training.checkpoint_every=2"]
    assert server.run(*command, "--out", "whole", cwd=place).status == 0
    wanted = sorted(path.name for path in (place / "whole" / "checkpoints").iterdir())
    for function in ("prune", "append_event"):
        run = place / function
        at = {"module": "atento.training.run_state", "function": function, "number": signal.SIGKILL, "call": call}
        assert server.run(*command, "--out", run, cwd=place, fault="signal_in_call", **at).status == -signal.SIGKILL
        assert server.run(*command, "--out", run, cwd=place).status == 0
        assert [event["step"] for event in events(run, "checkpoint")] == [2, 4, 6]
        assert sorted(path.name for path in (run / "checkpoints").iterdir()) == wanted


def test_r1_killed_before_the_first_checkpoint(server: ForkServer, place: Path, whole: dict[str, Path]) -> None:
    """While data are read, the run's own files are written, the tokenizer is trained and the first step is made."""
    command = train("float32", "--out", "run")
    for module, function in (
        ("atento.runs.token_data", "read_data"),
        ("atento.runs.run_identity", "dump_recipe"),
        ("atento.runs.run_tokenizer", "train_tokenizer"),
        ("atento.runs.steps", "network_for"),
        ("atento.training.loop", "learning_rate"),
    ):
        at = {"module": module, "function": function, "number": signal.SIGKILL}
        assert server.run(*command, cwd=place, fault="signal_in_call", **at).status == -signal.SIGKILL
    assert server.run(*command, cwd=place).status == 0 and differences(place / "run", whole["float32"]) == []


# One signal in the gate: the three differ in their number alone, and tests/unit/test_signals.py takes all of them.
@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, *(pytest.param(other, marks=pytest.mark.slow) for other in (signal.SIGINT, signal.SIGUSR1))],
)
def test_r7_a_signal_any_time(server: ForkServer, place: Path, whole: dict[str, Path], number: signal.Signals) -> None:
    """Stopped again and again at random moments; each stop adds a step at least, and says where it stands."""
    source, run, record, pause = random.Random(number), place / "run", place / "ids", 0.3
    command = train("float32", "--out", "run")
    stops = 0
    for attempt in range(60):
        running = server.start(*command, cwd=place, record=record)
        deadline = time.monotonic() + 20
        while not any(said in running.stderr.read_text(encoding="utf-8") for said in ("going on", "run folder")):
            status = running.status()
            assert time.monotonic() < deadline and status in (None, 0)
            if status == 0:
                break
        else:
            time.sleep(source.uniform(0.0, pause))
            status = running.status()
        if status is None and attempt >= 8 and stops:  # on a slow machine every stop adds a single step: let it end
            done = running.end(120.0)
        elif status is None:
            os.kill(running.pid, number)
            begin = time.monotonic()
            done = running.end(20.0)
            assert time.monotonic() - begin < 10  # 2 s and a step, on a quiet machine
        else:
            done = running.told(status)
        if done.status == 0 and not stops:  # a fast machine ends a whole run meanwhile: begin anew, and stop it sooner
            shutil.rmtree(run)
            record.unlink()
            pause /= 2
            continue
        if done.status == 0:
            break
        if done.status == 75:
            step = int(last(run).name.removeprefix("step-"))
            said = f"stopped by {number.name} after step {step}, checkpoint saved; run the same command to resume\n"
            assert done.stderr.endswith(said)
            stops += 1
        else:  # before training began, or behind its end: what the signal does by itself
            assert done.status == -number
    assert done.status == 0 and stops >= 1 and differences(run, whole["float32"]) == []
    assert batches(record) == batches(whole["float32"].with_suffix(".ids"))


@pytest.mark.parametrize("every", [17, pytest.param(1, marks=pytest.mark.slow)])  # a run for each line is a minute
def test_r7_a_signal_before_a_line_of_the_loop(server: ForkServer, place: Path, every: int) -> None:
    """SIGTERM at each (17th) line that `fit` executes, to the last: 75 with the checkpoint it speaks of, or 0."""
    short = ["training.steps=2", "training.checkpoint_every=5", "training.validate_every=2", "training.average=0"]
    command = ["train", "tiny.yaml", *short, "--threads", "1"]
    assert server.run(*command, "--out", "whole", cwd=place).status == 0
    statuses = []
    for number, line in enumerate(range(1, 200, every), 1):
        run = place / f"run-{line}"
        at = {"module": "atento.runs.finish", "function": "fit", "count": line, "number": signal.SIGTERM}
        done = server.run(*command, "--out", str(run), cwd=place, fault="signal_at_line", **at)
        statuses.append(done.status)
        if done.status == 75:
            stopped = int(done.stderr.split("after step ")[1].split(",")[0])
            assert last(run).name == f"step-{stopped:08d}", f"line {line}: {done.stderr}"
        else:
            assert done.status in (0, -signal.SIGTERM), done.stderr  # not yet, or no longer, in the loop's hands
        if number % 6 == 0 or "after step 2" in done.stderr:
            assert server.run(*command, "--out", str(run), cwd=place).status == 0
            assert [event["step"] for event in events(run, "valid")] == [2], line
            assert differences(run, place / "whole") == [], line
        if done.status == 0 and statuses[-3:] == [0, 0, 0]:
            break
    assert statuses.count(75) > 20 // every and statuses[-1] == 0


def test_r7_two_signals_stop_at_once_a_cut_validation_is_made_up(server: ForkServer, place: Path, whole: Any) -> None:
    """The signal that cuts a validation comes in step 6 and in the last, 15."""
    command = train("float32", "--out", "run")
    for number in (signal.SIGTERM, signal.SIGINT):  # a shell calls these 143 and 130
        at = {"module": "atento.training.loop", "function": "learning_rate", "number": number, "times": 2}
        done = server.run(*command, cwd=place, fault="signal_in_call", **at)
        assert done.status == -number
        assert "stopped by" not in done.stderr and not (place / "run" / "checkpoints").exists()
    command = train("float32", "--out", "run")
    for call, step in ((6, 6), (9, 15)):
        at = {"module": "atento.training.loop", "function": "learning_rate", "number": signal.SIGTERM, "call": call}
        done = server.run(*command, cwd=place, fault="signal_in_call", **at)
        assert done.status == 75 and f"after step {step}," in done.stderr
        assert step not in [event["step"] for event in events(place / "run", "valid")]
    assert server.run(*command, cwd=place).status == 0
    assert [event["step"] for event in events(place / "run", "valid")] == [6, 12, 15]
    assert differences(place / "run", whole["float32"]) == []


@pytest.mark.parametrize(
    ("module", "function", "number"),
    [
        ("loop", "validate", signal.SIGUSR1),
        ("run_state", "save_checkpoint", signal.SIGINT),
        ("run_state", "prune", signal.SIGTERM),
    ],
)
def test_r7_a_signal_while_it_validates_or_saves(
    server: ForkServer, place: Path, whole: dict[str, Path], module: str, function: str, number: signal.Signals
) -> None:
    at = {"module": f"atento.training.{module}", "function": function, "number": number}
    command = train("float32", "--out", "run")
    done = server.run(*command, cwd=place, fault="signal_in_call", **at)
    assert done.status == 75 and f"stopped by {number.name}" in done.stderr
    assert server.run(*command, cwd=place).status == 0 and differences(place / "run", whole["float32"]) == []


def test_n1_no_habit_changes_weights_and_a_seed_does(server: ForkServer, place: Path, whole: dict[str, Path]) -> None:
    """The same steps with other habits: the same weights and the same optimiser."""
    often = ["training.validate_every=2", "training.checkpoint_every=4", "training.log_every=7"]
    seldom = ["training.validate_every=100", "training.checkpoint_every=100", "training.average=0", "decoding.beam=3"]
    for number, habits in enumerate((often, seldom, ["~data.valid", "~data.test", "training.keep=1"])):
        run = place / f"run-{number}"
        server.good(*train("float32", *habits, "--out", str(run)), cwd=place)
        for name in ("model.safetensors", "optimizer.safetensors"):
            assert tensors(last(run) / name) == tensors(last(whole["float32"]) / name)
    assert server.run(*train("float32", "--seed", "2", "--out", "run"), cwd=place).status == 0
    assert "model.safetensors" in differences(place / "run", whole["float32"])


def test_n2_accumulation_changes_nothing_but_rounding(server: ForkServer, place: Path) -> None:
    """20 steps without dropout: losses and weights equal to 1e-5, in 1, 2 and 4 parts."""
    quiet = ["network.dropout=0", "training.steps=20", "training.log_every=1", "training.batch_tokens=400"]
    for parts in (1, 2, 4):
        command = ["train", "tiny.yaml", *quiet, f"training.micro_batches={parts}", "--threads", "1"]
        server.good(*command, "--out", f"run-{parts}", cwd=place)
    one = place / "run-1"
    weights = load_file(last(one) / "model.safetensors")
    for other in (place / "run-2", place / "run-4"):
        assert len(events(one, "train")) == 20
        for mine, yours in zip(events(one, "train"), events(other, "train"), strict=True):
            assert mine["loss"] == pytest.approx(yours["loss"], rel=1e-5)
        for name, value in load_file(last(other) / "model.safetensors").items():
            difference = (value - weights[name]).abs()
            if name.endswith("attention.input.bias"):  # softmax undoes the keys' bias: its gradient is rounding alone
                difference[16:32] = 0.0
            assert difference.max() <= 1e-5 * max(1.0, float(weights[name].abs().max())), name
