"""Which worker process a job goes to: the one with the fewest texts under way, of those that answer."""

import asyncio
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")

from atento_serve.engine.served import ServedModel
from atento_serve.jobs import Job
from atento_serve.settings import Limits, ModelSettings


class Worker:
    def __init__(self) -> None:
        self.works, self.jobs = True, list[str]()

    def send(self, message: dict[str, Any]) -> None:
        self.jobs.append(message["job"]["id"])


def test_a_job_goes_to_the_worker_with_the_fewest_texts() -> None:
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
