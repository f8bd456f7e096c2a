"""Which worker process a job goes to, that with the fewest texts of those that answer; and what a worker counts."""

import asyncio
import io
import sys
from asyncio.subprocess import PIPE
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")

from atento_serve.engine.outbox import Outbox
from atento_serve.engine.process import WorkerProcess
from atento_serve.engine.served import ServedModel
from atento_serve.jobs import Job, Usage
from atento_serve.settings import Limits, ModelSettings


class Worker:
    def __init__(self) -> None:
        self.works, self.jobs = True, list[str]()

    def send(self, message: dict[str, Any]) -> None:
        self.jobs.append(message["job"]["id"])


def test_a_job_goes_to_the_worker_with_the_fewest_texts_which_reports_each_batch_and_token_once() -> None:
    async def sent() -> list[list[str]]:
        served = ServedModel(ModelSettings("m", "nowhere"), Limits())
        workers: list[Any] = [Worker(), Worker()]
        served.workers = workers
        for number, texts in enumerate((3, 1, 1, 2)):
            served.submit(Job(str(number), "m", "classify", ["a"] * texts))
        workers[0].works = False
        served.submit(Job("4", "m", "classify", ["a"]))
        workers[1].works = False  # none answers: any may again
        served.submit(Job("5", "m", "classify", ["a"]))
        return [worker.jobs for worker in workers]

    assert asyncio.run(sent()) == [["0", "5"], ["1", "2", "3", "4"]]
    outbox = Outbox(io.BytesIO())
    for size in (4, 4, 1):
        outbox.count_batch(size)
    outbox.event("0", Usage(prompt_tokens=7, new_tokens=2))
    assert outbox.report() == {"batches": [(4, 2), (1, 1)], "tokens": {"prompt": 7, "new": 2}}
    assert outbox.report() == {"batches": [], "tokens": {}}


def test_a_worker_whose_message_is_too_long_to_read_has_ended_so_that_another_is_started() -> None:
    program = "import sys; sys.stdout.write('x' * 500_000); sys.stdout.flush(); sys.stdin.read()"

    async def ended() -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, stdin=PIPE, stdout=PIPE, limit=1000
        )
        found: list[WorkerProcess] = []
        worker = WorkerProcess(process, 100.0, lambda *_: None, found.append)
        worker._tasks = [asyncio.create_task(worker._read()), asyncio.create_task(worker._ask())]
        await asyncio.wait_for(worker._tasks[0], 20)
        assert found == [worker] and worker.has_ended

    asyncio.run(ended())
