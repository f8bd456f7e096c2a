"""The application: all routes over one engine, with one form of error."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from atento.base.errors import AtentoError
from atento.base.version import __version__
from atento_serve import health
from atento_serve.api import find, hugging_face, libretranslate, openai_chat, openai_completions, rerank, tokens
from atento_serve.api import translated_files as files
from atento_serve.http.body import read_object
from atento_serve.http.errors import ServiceError, error_body
from atento_serve.http.fields import Fields, read
from atento_serve.http.hosts import Hosts
from atento_serve.http.middleware import Observed, answer
from atento_serve.http.service import Service, note
from atento_serve.routes_page import POLICY, routes_page
from atento_serve.studio import studio_routes
from atento_serve.studio.studio_process import Studio

if TYPE_CHECKING:
    from atento_serve.http.tracing import Tracing

ROUTES: list[Callable[[FastAPI, Service], None]] = [  # each adds routes
    *(openai_completions.add_routes, openai_chat.add_routes, libretranslate.add_routes, files.add_routes),
    *(rerank.add_routes, find.add_routes, tokens.add_routes, hugging_face.add_routes),
]
_MESSAGES = {404: "there is no such path; GET /docs lists the routes", 405: "this path does not take that method"}


class _Application(FastAPI):
    """FastAPI whose document describes the parameters of paths, which the routes read from the request themselves."""

    def openapi(self) -> dict[str, object]:
        """The OpenAPI document."""
        document = super().openapi()
        for path, operations in document["paths"].items():
            for operation in operations.values():
                operation["parameters"] = [
                    {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                    for name in re.findall(r"\{(\w+)\}", path)
                ]
        return document


def application(
    service: Service,
    *,
    origins: Sequence[str] = (),
    tracing: "Tracing | None" = None,
    hosts: Hosts | None = None,
    studio: Studio | None = None,
) -> ASGIApp:
    """The application of the public address.

    Args:
        service: what the routes share.
        origins: web pages that may call it (CORS); by default none.
        tracing: makes a span of each request.
        hosts: the names that are answered; None: all.
        studio: what Studio shows, and its processes; None: there is no Studio.
    """
    pulse = health.Pulse()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        beating = asyncio.create_task(pulse.run())
        yield
        beating.cancel()
        with suppress(asyncio.CancelledError):
            await beating

    app = _Application(
        title="Atento", version=__version__, lifespan=lifespan, redirect_slashes=False, docs_url=None, redoc_url=None
    )
    _add_errors(app)
    for add_routes in ROUTES:
        add_routes(app, service)
    health.add_routes(app, service, pulse)
    if studio is not None:
        studio_routes.add_routes(app, service, studio)

    async def docs(_: Request) -> Response:
        # names of models are not for those without a key
        page = routes_page(app.openapi(), [] if service.clients.has_keys else list(service.models))
        return HTMLResponse(page, headers={"Content-Security-Policy": POLICY})

    app.add_api_route("/docs", docs, methods=["GET"], summary="This page", include_in_schema=False)
    if origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(origins), allow_methods=["GET", "POST"], allow_headers=["*"]
        )
    # outermost: it also sees errors of the rest
    return Observed(app, service, tracing, hosts)


class _Reload(Fields):
    model: str


def admin_application(service: Service) -> ASGIApp:
    """The application of the admin socket: `POST /models/reload`."""
    app = FastAPI(title="Atento: administration", openapi_url=None, redirect_slashes=False)
    _add_errors(app)

    @app.post("/models/reload")
    async def reload(request: Request) -> Response:
        fields = read(_Reload, await read_object(request, service.limits))
        service.describe(fields.model)
        try:
            await service.engine.reload(fields.model)
        except AtentoError as error:
            raise ServiceError(409, f"the model was not replaced: {error}", "reload_failed") from None
        return JSONResponse({"model": fields.model, "status": "reloaded"})

    return Observed(app, service)


class _Refusal(Response):
    """The answer of an error."""

    def __init__(self, error: ServiceError) -> None:
        super().__init__(status_code=error.status)
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        await answer(self._error, scope, receive, send)


def _add_errors(app: FastAPI) -> None:
    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, ServiceError)
        note(request, code=error.code)
        return _Refusal(error)

    async def no_route(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code = {404: "not_found", 405: "wrong_method"}.get(error.status_code, "refused")
        message = _MESSAGES.get(error.status_code, str(error.detail))
        body = error_body(error.status_code, message, code, None, request.scope)
        return JSONResponse(body, error.status_code, error.headers)

    async def failed(request: Request, error: Exception) -> Response:
        number = request.scope["atento"]["id"]
        message = f"the service failed (request {number}); its log says where"
        return JSONResponse(error_body(500, message, "bug", None, request.scope), 500)

    app.add_exception_handler(ServiceError, refused)
    app.add_exception_handler(HTTPException, no_route)
    app.add_exception_handler(Exception, failed)
