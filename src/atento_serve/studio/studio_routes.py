"""The routes of Studio, all below `/studio`: the files of the page, and what its screens ask."""

import asyncio
import json
from collections.abc import Callable

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from atento.inspection.figures.svg import DARK_RAMP, LIGHT_RAMP
from atento.version import __version__
from atento_serve.http.body import read_object
from atento_serve.http.errors import ServiceError
from atento_serve.http.request_jobs import unless_gone
from atento_serve.http.service import Service, note
from atento_serve.studio.run_folders import found_runs
from atento_serve.studio.run_stream import run_events
from atento_serve.studio.static_files import static_files
from atento_serve.studio.studio_process import Studio

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
                "ramps": {"light": LIGHT_RAMP, "dark": DARK_RAMP},
            }
        )

    async def ask(request: Request) -> Response:
        key = service.clients.authenticate(request)
        with service.clients.share(request, key):
            service.check_open()
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
