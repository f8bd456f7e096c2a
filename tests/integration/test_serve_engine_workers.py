"""Several workers of one model: jobs are shared among them, and each is replaced without the others."""

import asyncio
import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from atento.base.errors import ModelError
from atento.model import load
from atento_serve.engine.process import WorkerProcess, threads_of
from atento_serve.jobs import Failed, Job, Usage
from atento_serve.settings import ModelSettings
from http_service import until
from serving import TEXTS
from test_serve_engine import LIMITS, LONG, Running, job, under_load, write_small_models

pytestmark = pytest.mark.usefixtures("modules_are_forked")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_models(tmp_path_factory.mktemp("models"))["writer"]


@pytest.fixture
def running(folder: Path) -> Iterator[Running]:
    running = Running({"writer": folder}, LIMITS, workers=2)
    running.run(running.engine.start())
    yield running
    running.close()


def long_jobs(running: Running, count: int) -> list[int]:
    """Let some jobs begin that do not end; the processes that have them."""

    async def submit() -> None:
        for number in range(count):
            running.engine.submit(Job(f"long{number}", "writer", "translate", ["a"], LONG))

    running.run(submit())
    accepted = running.engine._of("writer")._jobs
    return [one.worker.pid for number in range(count) if (one := accepted[f"long{number}"]).worker is not None]


@pytest.mark.filterwarnings("ignore:the exact search")
def test_workers_share_jobs_and_answer_as_the_model_alone(running: Running, folder: Path) -> None:
    assert len(set(running.pids("writer"))) == 2
    assert sorted(Counter(long_jobs(running, 6)).values()) == [3, 3]
    for number in range(6):
        running.loop.call_soon_threadsafe(running.engine.cancel, f"long{number}")
    until(lambda: running.engine.stats("writer").in_flight == 0)
    assert under_load(running, load(folder), 60, 16, seed=3) == []


@pytest.mark.slow  # test_serve_http_faults kills one through HTTP
def test_a_killed_worker_costs_its_own_jobs_alone(running: Running) -> None:
    first, second = running.pids("writer")
    pids = long_jobs(running, 4)
    events = {number: running.engine._of("writer")._jobs[f"long{number}"].events for number in range(4)}
    os.kill(first, signal.SIGKILL)
    until(lambda: first not in running.pids("writer"))
    assert running.engine.ready("writer")
    (after,) = running.events(job("after", "writer", "translate", [TEXTS[0]]))  # by the other worker, at once
    assert isinstance(after[-1], Usage)
    under_way = running.engine._of("writer")._jobs
    for number, pid in enumerate(pids):
        assert (f"long{number}" in under_way) == (pid == second)
    ended = next(number for number, pid in enumerate(pids) if pid == first)
    assert events[ended].get_nowait() == Failed("worker", "the process that computes this model ended")
    until(lambda: len(running.pids("writer")) == 2)
    assert running.engine.stats("writer").restarts == 1 and second in running.pids("writer")


@pytest.mark.slow  # test_serve_engine reloads one worker
def test_a_reload_replaces_all_workers_or_none(running: Running, folder: Path, tmp_path: Path) -> None:
    old = running.pids("writer")
    weights = folder / "model.safetensors"
    shutil.move(weights, tmp_path / "aside")
    with pytest.raises(ModelError):
        running.run(running.engine.reload("writer"))
    assert running.pids("writer") == old
    shutil.move(tmp_path / "aside", weights)
    running.run(running.engine.reload("writer"))
    assert len(set(running.pids("writer"))) == 2 and not set(running.pids("writer")) & set(old)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in old))


@pytest.mark.slow  # an engine of its own
def test_a_worker_that_ends_while_others_load_is_not_taken(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    old, served = running.pids("writer"), running.engine._of("writer")
    real, new = served._new_worker, list[WorkerProcess]()

    async def new_worker() -> WorkerProcess:
        new.append(await real())
        if len(new) == 2:
            os.kill(new[0].pid, signal.SIGKILL)
            while not new[0].has_ended:
                await asyncio.sleep(0.01)
        return new[-1]

    monkeypatch.setattr(served, "_new_worker", new_worker)
    with pytest.raises(ModelError, match=r"a worker of .* ended while the others loaded the model"):
        running.run(running.engine.reload("writer"))
    assert running.pids("writer") == old
    until(lambda: not any(Path(f"/proc/{worker.pid}").exists() for worker in new))


@pytest.mark.slow
def test_a_worker_that_does_not_answer_gets_no_jobs(running: Running) -> None:
    first, second = running.pids("writer")
    os.kill(first, signal.SIGSTOP)
    try:
        workers = running.engine._of("writer").workers
        until(lambda: not workers[0].works)
        assert running.engine.ready("writer") and set(long_jobs(running, 3)) == {second}
    finally:
        os.kill(first, signal.SIGCONT)


def test_workers_share_the_threads_of_a_model() -> None:
    def threads(threads: int | None, workers: int) -> int | None:
        return threads_of(ModelSettings("m", "m", threads=threads, workers=workers))

    assert [threads(None, 1), threads(4, 1), threads(4, 2), threads(3, 2), threads(1, 2)] == [None, 4, 2, 1, 1]
    assert threads(None, 10_000) == 1
