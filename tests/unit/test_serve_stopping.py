"""What a service that stops answers: its requests, those that come late, those that it does not wait for."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("fastapi", reason="the service needs the extra serve")

from starlette.types import Message, Receive, Scope, Send

from atento_serve.http.logs import Log
from atento_serve.http.metrics import Metrics
from atento_serve.http.middleware import Observed
from atento_serve.http.service import Service
from atento_serve.settings import Limits


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
