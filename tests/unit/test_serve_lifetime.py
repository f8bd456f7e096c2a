"""A service that starts, that shares jobs among its workers, and that stops: what it answers, and leaves behind."""

import asyncio
import io
import json
import socket
import sys
import time
from asyncio.subprocess import PIPE
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("fastapi", reason="the service needs the extra serve")

from starlette.types import Message, Receive, Scope, Send

from atento.base.errors import AtentoError, UsageError
from atento.config.tables.tasks import TASKS
from atento_serve import server
from atento_serve.app import application
from atento_serve.engine import process
from atento_serve.engine.engine import Engine
from atento_serve.engine.outbox import Outbox
from atento_serve.engine.process import WorkerProcess
from atento_serve.engine.served import ServedModel
from atento_serve.http import request_jobs
from atento_serve.http.clients import Clients
from atento_serve.http.errors import ServiceError
from atento_serve.http.logs import Log
from atento_serve.http.metrics import Metrics
from atento_serve.http.middleware import Observed
from atento_serve.http.request_jobs import Work
from atento_serve.http.service import Service
from atento_serve.jobs import Job, Usage
from atento_serve.settings import Limits, ModelSettings
from atento_serve.start import ServerSettings, listening_socket
from failing import fails


def test_a_new_task_with_a_known_verb_has_a_route(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "paraphrasing", TASKS["translation"])
    limits = Limits()
    app: Any = application(Service(SimpleNamespace(), {}, limits, Clients([], limits), Metrics(dict), Log()))  # type: ignore[arg-type]
    assert {"/paraphrasing", "/translation", "/fill-mask", "/v1/completions"} <= set(app._app.openapi()["paths"])


@pytest.mark.parametrize("ends", [None, OSError("no more files")])
def test_a_server_that_ends_before_it_answers(monkeypatch, tmp_path, ends) -> None:
    """It leaves no socket of its administration behind."""
    admin = tmp_path / "admin.sock"

    async def serve(self: Any, sockets: object) -> None:
        if ends is not None:
            raise ends

    monkeypatch.setattr(server._Server, "serve", serve)
    limits = Limits()

    async def start() -> None:
        with listening_socket("127.0.0.1", 0) as bound:
            wrong: dict[str, Any] = {"ready": lambda url: pytest.fail("it does not answer")}
            settings = ServerSettings(quiet=True, admin_socket=admin, **wrong)
            answering = server.answer_until(asyncio.Event(), Engine({}, limits), {}, limits, settings, bound, None)
            await asyncio.wait_for(answering, 10)

    kind, said = (AtentoError, "before it could answer") if ends is None else (OSError, "no more")
    fails(kind, said, asyncio.run, start())
    assert not admin.exists()


def test_the_admin_socket_of_a_running_service_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with server._unix_socket(path) as running:
        running.listen()
        fails(UsageError, r"--admin-socket .*admin.sock: another service answers there", server._unix_socket, path)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
    server._unix_socket(path).close()  # of a service that was killed


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


async def slow(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["path"] == "/begun":
        await send({"type": "http.response.start", "status": 200, "headers": []})
    await asyncio.sleep(0 if scope["path"] == "/quick" else 60)


def asked(method: str, path: str, *, stopping: bool, cut: bool = False) -> list[Message]:
    """What is sent; `cut`: the task of the request is cancelled, as uvicorn does after the drain."""
    parts = {"limits": Limits(), "metrics": Metrics(dict), "log": Log(quiet=True), "stopping": stopping}
    service = cast(Service, SimpleNamespace(**parts))
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    async def run() -> None:
        scope: dict[str, Any] = {"type": "http", "method": method, "path": path, "headers": []}
        task = asyncio.ensure_future(Observed(slow, service)(scope, receive, send))
        await asyncio.wait({task}, timeout=0.01 if cut else 5)
        if cut:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(run())
    assert service.metrics.running == 0
    return sent


def is_refusal(sent: list[Message]) -> bool:
    error = json.loads(sent[1]["body"])["error"]
    return sent[0]["status"] == 503 and error["code"] == "stopping" and (b"retry-after", b"5") in sent[0]["headers"]


def test_v7_late_work_is_refused_at_its_head_and_probes_are_answered() -> None:
    refused = asked("POST", "/quick", stopping=True)
    assert is_refusal(refused) and (b"connection", b"close") in refused[0]["headers"]
    assert asked("GET", "/quick", stopping=True) == asked("POST", "/quick", stopping=False) == []  # the route was asked
    assert is_refusal(asked("POST", "/slow", stopping=False, cut=True))
    assert len(asked("POST", "/begun", stopping=False, cut=True)) == 1  # nothing fits behind what was sent


def test_a_worker_whose_message_is_too_long_to_read_has_ended_so_that_another_is_started() -> None:
    program = "import sys; sys.stdout.write('x' * 500_000); sys.stdout.flush(); sys.stdin.read()"

    async def ended() -> None:
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdin=PIPE, stdout=PIPE, limit=1000)
        found: list[WorkerProcess] = []
        worker = WorkerProcess(child, 100.0, lambda *_: None, found.append)
        worker._tasks = [asyncio.create_task(worker._read()), asyncio.create_task(worker._ask())]
        await asyncio.wait_for(worker._tasks[0], 20)
        assert found == [worker] and worker.has_ended

    asyncio.run(ended())


def test_a_worker_that_answers_each_question_is_not_taken_for_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "PING_SECONDS", 0.05)
    program = (
        "import json, sys\nfor line in sys.stdin: print(json.dumps({'pong': json.loads(line)['ping']}), flush=True)"
    )

    async def answered() -> None:
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdin=PIPE, stdout=PIPE)
        pongs: list[dict[str, object]] = []
        worker = WorkerProcess(child, 0.5, lambda _, message: pongs.append(message), lambda _: None)
        worker._tasks = [asyncio.create_task(worker._read()), asyncio.create_task(worker._ask())]
        while not pongs:  # it has begun
            await asyncio.sleep(0.05)
        await asyncio.sleep(1)
        assert len(pongs) > 2 and not worker.has_hung and not worker.has_ended
        await worker.close()

    asyncio.run(answered())


def test_the_deadline_of_a_stream_holds_for_each_of_its_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is awaited by a task of its own; the worker that should report the deadline is silent."""
    monkeypatch.setattr(request_jobs, "_GRACE", 0.0)

    async def silent(job: Job) -> Any:
        yield Usage(prompt_tokens=1, new_tokens=0)
        await asyncio.sleep(30)

    async def streamed() -> None:
        engine = SimpleNamespace(submit=silent, cancel=lambda _: None)
        service: Any = SimpleNamespace(engine=engine, limits=Limits(deadline=1))
        request: Any = SimpleNamespace(scope={"atento": {"notes": {}}})
        events = Work(service, request).events(Job("0", "m", "generate", ["a"], deadline=time.monotonic() + 0.3))
        await asyncio.ensure_future(anext(events))
        late = asyncio.ensure_future(anext(events))
        assert await asyncio.wait({late}, timeout=5) == ({late}, set())  # it ends by itself
        error = late.exception()
        assert isinstance(error, ServiceError) and error.status == 504

    asyncio.run(streamed())
