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
    `Last-Event-ID`, also to a service that was started anew. What is new of the runs passes here as it comes.

    Raises:
        ServiceError: 401, 503. What fails later is an event with `error`.
    """
    key = service.clients.authenticate(request)
    service.check_open()
    runs = request.query_params.getlist("run")
    # an id has the marks in the order of the runs
    marks = dict(zip(runs, request.headers.get("last-event-id", "").split(","), strict=False))

    async def lines() -> AsyncIterator[str]:
        before: dict[str, object] = {}
        quiet = 0.0
        with service.clients.share(request, key):
            while not service.stopping:
                fields = {"runs": runs, "marks": [marks.get(run, "") for run in runs]}
                try:
                    told, changes = await process.call("follow", fields)
                except ServiceError as error:
                    told, changes = before | {"error": error.message}, b""  # the page keeps what it has
                marks.update(told.pop("marks", {}))  # how far each was sent
                news = {name: value for name, value in told.items() if value != before.get(name)}
                before, quiet = told, quiet + PAUSE
                if news or changes:
                    quiet = 0.0
                    # without the braces of the object
                    parts = [json.dumps(news)[1:-1], *([f'"changes": {changes.decode("ascii")}'] if changes else [])]
                    data = ", ".join(part for part in parts if part)
                    yield f"id: {','.join(marks.get(run, '') for run in runs)}\ndata: {{{data}}}\n\n"
                elif quiet >= PING_SECONDS:
                    quiet = 0.0
                    yield ": ping\n\n"
                await asyncio.sleep(PAUSE)

    note(request, verb="runs")
    return StreamingResponse(lines(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
