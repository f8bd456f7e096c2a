"""Runs as server-sent events: what is new in them, once a second, from where the page says that it is."""

import asyncio
import json
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import StreamingResponse

from atento_serve.http.errors import ServiceError
from atento_serve.http.request_jobs import PING_SECONDS
from atento_serve.http.service import Service, note
from atento_serve.studio.studio_process import StudioProcess

PAUSE = 1.0
"""Seconds between two looks at the runs."""


def run_events(request: Request, service: Service, process: StudioProcess) -> StreamingResponse:
    """The events of the runs that a request names (`?run=a&run=b`), until its client or the service goes.

    The id of an event says how far each of these runs was sent; a client that was cut off sends the last one as
    `Last-Event-ID`, also to a service that was started anew.

    Raises:
        ServiceError: 401, 503. What fails later is an event with `error`.
    """
    key = service.clients.authenticate(request)
    service.check_open()
    runs = request.query_params.getlist("run")
    marks = dict(zip(runs, request.headers.get("last-event-id", "").split(","), strict=False))

    async def lines() -> AsyncIterator[str]:
        before: dict[str, object] = {"runs": None}
        quiet = 0.0
        with service.clients.share(request, key):
            while not service.stopping:
                event = await _news(process, runs, marks, before)
                quiet = 0.0 if event else quiet + PAUSE
                if event:
                    yield f"id: {','.join(marks.get(run, '') for run in runs)}\ndata: {json.dumps(event)}\n\n"
                elif quiet >= PING_SECONDS:
                    quiet = 0.0
                    yield ": ping\n\n"
                await asyncio.sleep(PAUSE)

    note(request, verb="runs")
    return StreamingResponse(lines(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})


async def _news(
    process: StudioProcess, runs: list[str], marks: dict[str, str], before: dict[str, object]
) -> dict[str, object]:
    """What a client has not been told; `marks` and `before`, the list of runs and the errors, then know of it."""
    try:
        told, _ = await process.call("follow", {"runs": runs, "marks": [marks.get(run, "") for run in runs]})
    except ServiceError as error:
        told = {"runs": before["runs"], "changes": {}, "error": error.message}
    news: dict[str, object] = {}
    if told["runs"] != before["runs"]:
        news["runs"] = before["runs"] = told["runs"]
    if told.get("error") != before.get("error"):
        news["error"] = before["error"] = told.get("error")
    changes = {name: one for name, one in told["changes"].items() if one.get("error", "") != before.get(f"run {name}")}
    for name, change in changes.items():
        marks[name] = change.get("mark", "")
        before[f"run {name}"] = change.get("error")
    return news | ({"changes": changes} if changes else {})
