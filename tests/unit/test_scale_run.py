"""Blocks handed out to worker processes: all are answered, whichever worker is lost, or the error names the block."""

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from atento.base.errors import AtentoError, UsageError
from atento_cli.scale.line_blocks import Block
from atento_cli.scale.run_blocks import BlockRun
from atento_cli.scale.workers import Answer, WorkerLost, WorkerProcess
from failing import fails

BLOCKS = [(Block(n, 10 * n + 1, 10, 0, 0, 0), f"block {n}".encode()) for n in range(6)]
RIGHT = {n: f"BLOCK {n}".encode() for n in range(6)}


class Recorded:
    """A run with workers of `echo_worker`, and what it called."""

    def __init__(self, folder: Path, workers: int, **about: Any) -> None:
        self.answers: dict[int, bytes] = {}
        self.lost: list[str] = []
        self.loaded = 0
        self.started: list[WorkerProcess] = []

        def start(number: int) -> WorkerProcess:
            self.started.append(WorkerProcess("echo_worker", {"marks": str(folder), **about}))
            return self.started[-1]

        self.run = BlockRun(workers, start, self._done, self._heard, self.lost.append)

    def _done(self, block: Block, answer: Answer) -> None:
        assert block.number not in self.answers
        self.answers[block.number] = answer.content

    def _heard(self, answer: Answer) -> None:
        assert answer.warnings == [{"text": "loaded"}]
        self.loaded += 1

    def ended(self) -> bool:
        """Whether no worker is left."""
        return all(not Path(f"/proc/{worker.pid}").exists() for worker in self.started)


def test_a_killed_worker_costs_its_block_which_another_does(tmp_path: Path) -> None:
    run = Recorded(tmp_path, 2, die_once=[1, 4])
    run.run.run(BLOCKS)
    assert run.answers == RIGHT
    assert len(run.lost) == 2 and all("SIGKILL" in text and "which is done again" in text for text in run.lost)
    assert run.loaded in (3, 4) and run.ended()


def test_a_block_that_fails_three_times_is_named_and_the_others_are_done(tmp_path: Path) -> None:
    run = Recorded(tmp_path, 2, die_always=[2])
    fails(AtentoError, r"block 2 \(lines 21-30\) failed 3 times; the last time .*SIGKILL", run.run.run, BLOCKS)
    assert run.answers == {n: content for n, content in RIGHT.items() if n != 2}
    assert len(run.lost) == 2 and run.ended()


def test_errors_of_work_of_loading_and_of_the_user(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name in "bc":
        (tmp_path / name).mkdir()
    run = Recorded(tmp_path, 1, **{"raise": [0]})
    fails(AtentoError, r"block 0 .* failed 3 times; the last time .* MemoryError: no room", run.run.run, BLOCKS[:2])
    assert run.answers == {1: b"BLOCK 1"}
    run = Recorded(tmp_path / "b", 1, no_model=True)
    fails(AtentoError, r"model could not be loaded in 3 workers; the last time its process ended", run.run.run, BLOCKS)
    assert len(run.started) in (3, 4) and run.answers == {}  # a fourth may be starting
    run = Recorded(tmp_path / "c", 2, wrong=[3])
    fails(UsageError, r"^line 31 is wrong$", run.run.run, BLOCKS)
    assert run.ended()


def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    """As when that process is killed: its end of the pipe is closed."""
    worker = WorkerProcess("echo_worker", {"marks": str(tmp_path)})
    worker.ready()
    os.close(worker.stdin.fileno())
    deadline = time.monotonic() + 10
    while worker._process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert worker._process.poll() == 0


class Waiting:
    """A worker in this process; one that replaces a lost one waits for a machine until it is closed."""

    def __init__(self, lost_at: int | None, waits: bool) -> None:
        self.lost_at, self.waits, self.closed = lost_at, waits, threading.Event()

    def ready(self) -> Answer:
        if self.waits:
            self.closed.wait(60)
            raise WorkerLost("it was never started")
        return Answer(warnings=[{"text": "loaded"}])

    def answer(self, block: Block, raw: bytes) -> Answer:
        if self.lost_at is not None and block.number >= self.lost_at:
            raise WorkerLost("its machine has gone")
        time.sleep(0.01)
        return Answer(raw.upper())

    def close(self) -> None:
        self.closed.set()


def test_a_worker_that_finds_no_machine_any_more_keeps_no_block(tmp_path: Path) -> None:
    """The others do the block of the machine that was lost, though its worker is never started again."""
    started: list[int] = []

    def start(number: int) -> Waiting:
        started.append(number)
        return Waiting(2 if number == 1 else None, waits=started.count(number) > 1)

    answers: dict[int, bytes] = {}
    run = BlockRun(2, start, lambda block, answer: answers.setdefault(block.number, answer.content))
    thread = threading.Thread(target=run.run, args=(BLOCKS,), daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive() and answers == RIGHT and started.count(1) == 2
