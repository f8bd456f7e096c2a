"""The routes of Studio, all below `/studio`: files of the page, what its screens ask, runs as server-sent events."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse

from atento.base.version import __version__
from atento.inspection.palette import palette_sheet
from atento_serve.http.body import read_object
from atento_serve.http.errors import ServiceError
from atento_serve.http.request_jobs import PING_SECONDS, unless_gone
from atento_serve.http.service import Service, note
from atento_serve.studio.run_folders import found_runs
from atento_serve.studio.studio_process import Studio, StudioProcess

KINDS = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
POLICY = (
    "default-src 'self'; img-src 'self' blob: data:; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""The `Content-Security-Policy`: nothing from another address, no script or style in the markup, no text as markup."""
SHARED = ("base.css", "mark.svg", "page_heat.js", "page_lines.js")
"""The look of all pages and the drawings of the attention page, which the page uses as they are."""


@dataclass(frozen=True)
class StaticFile:
    """A file of the page: what it holds, its media type, and a mark that changes with it."""

    content: bytes
    kind: str
    tag: str

    @property
    def headers(self) -> dict[str, str]:
        """The fields of its answer."""
        return {
            "Content-Type": self.kind,
            "Content-Security-Policy": POLICY,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-cache",  # a browser asks each time, and is told that nothing has changed
            "ETag": self.tag,
        }


def static_files() -> dict[str, StaticFile]:
    """The files by their path below the page's; "" is the page."""
    found = dict(_inside(files("atento_serve.studio").joinpath("static"), ""))
    found |= {name: _read(files("atento.inspection").joinpath(name)) for name in SHARED}
    found["palette.css"] = _file("palette.css", palette_sheet().encode("ascii"))
    return {"": found["index.html"], **found}


def _inside(folder: Traversable, path: str) -> list[tuple[str, StaticFile]]:
    rows = []
    for entry in folder.iterdir():
        if entry.is_dir():
            rows += _inside(entry, f"{path}{entry.name}/")
        elif entry.name.rpartition(".")[2] in KINDS:
            rows.append((path + entry.name, _read(entry)))
    return rows


def _read(entry: Traversable) -> StaticFile:
    return _file(entry.name, entry.read_bytes())


def _file(name: str, content: bytes) -> StaticFile:
    return StaticFile(content, KINDS[name.rpartition(".")[2]], f'"{hashlib.sha256(content).hexdigest()[:16]}"')


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


ABOUT = "X-Atento-About"
"""The field of an answer of bytes that has, as JSON, what stands beside them."""
NO_RUNS = {"code": "no_runs", "text": "No run was given: start Studio with run folders, or with a folder of runs."}
"""Why there is nothing to see of training, as `reasons.Reason.shown` has it."""


def add_routes(app: FastAPI, service: Service, studio: Studio) -> None:
    """Add the routes. The files of the page need no API key, as they hold nothing; what it asks needs one."""
    files, models = static_files(), list(studio.settings.models)

    async def page(request: Request) -> Response:
        name = request.path_params.get("path", "")
        if name not in files:
            raise ServiceError(404, f"Studio has no file {name[:80]!r}", "not_found")
        file = files[name]
        if request.headers.get("if-none-match") == file.tag:
            return Response(status_code=304, headers=file.headers)
        return Response(file.content, headers=file.headers)

    async def about(request: Request) -> Response:
        service.clients.authenticate(request)
        runs = await asyncio.to_thread(found_runs, studio.settings.runs)
        return JSONResponse(
            {
                "version": __version__,
                "models": models,
                "reasons": {} if runs else {"training": NO_RUNS},
                "limits": {"tokens": service.limits.input_tokens, "bytes": service.limits.body_bytes},
            }
        )

    async def ask(request: Request) -> Response:
        key = service.clients.authenticate(request)
        with service.clients.share(request, key):
            arguments = await read_object(request, service.limits)
            function = request.path_params["function"]
            named = arguments.get("model") if isinstance(arguments, dict) else None
            note(request, verb=function[:40], **({"model": named} if named in models else {}))
            value, data = await unless_gone(request, studio.models.call(function, arguments))
            if not data:
                return JSONResponse(value)
            return Response(data, media_type="application/octet-stream", headers={ABOUT: json.dumps(value)})

    async def runs(request: Request) -> Response:
        return run_events(request, service, studio.runs)

    async def to_page(_: Request) -> Response:
        return RedirectResponse("/studio/")

    routes: list[tuple[str, Callable[..., object], list[str]]] = [
        ("/studio", to_page, ["GET"]),
        ("/studio/api/about", about, ["GET"]),
        ("/studio/api/runs", runs, ["GET"]),
        ("/studio/api/{function}", ask, ["POST"]),
        ("/studio/{path:path}", page, ["GET"]),  # any other path below it
    ]
    if not service.models:  # Studio alone
        routes.append(("/", to_page, ["GET"]))
    for path, route, methods in routes:
        app.add_api_route(path, route, methods=methods, include_in_schema=False)
