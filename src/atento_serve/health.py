"""What the service says of itself: health, models, limits, version, metrics."""

import asyncio
import time
from dataclasses import asdict, dataclass

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from atento.base.version import __version__
from atento_serve.api.languages import pair_in
from atento_serve.http.metrics import CONTENT_TYPE
from atento_serve.http.service import Service
from atento_serve.settings import limit_texts

LAG = 1.0  # seconds by which the event loop may be late while the process counts as alive


class Pulse:
    """How late the event loop is: it looks at the clock every tenth of a second."""

    def __init__(self) -> None:
        self._beat = time.monotonic()

    async def run(self) -> None:
        """Look at the clock for ever."""
        while True:
            self._beat = time.monotonic()
            await asyncio.sleep(0.1)

    @property
    def lag(self) -> float:
        """Seconds since the last look."""
        return time.monotonic() - self._beat


@dataclass(frozen=True)
class _Answers:
    """The answers to requests about the service itself."""

    service: Service
    pulse: Pulse

    async def live(self, _: Request) -> Response:
        alive = self.pulse.lag < LAG
        return JSONResponse({"status": "ok" if alive else "late"}, 200 if alive else 503)

    async def ready(self, _: Request) -> Response:
        models = {name: self.service.engine.ready(name) for name in self.service.models}
        status = "stopping" if self.service.stopping else "ok" if all(models.values()) else "not ready"
        headers = {} if status == "ok" else {"Retry-After": "1"}
        return JSONResponse({"status": status, "models": models}, 200 if status == "ok" else 503, headers)

    async def version(self, _: Request) -> Response:
        return JSONResponse({"version": __version__})

    async def limits(self, request: Request) -> Response:
        self.service.clients.authenticate(request)
        texts = limit_texts()
        rows = {name: {"value": value, "meaning": texts[name]} for name, value in asdict(self.service.limits).items()}
        return JSONResponse(rows)

    async def info(self, request: Request) -> Response:
        self.service.clients.authenticate(request)
        models = {
            name: asdict(self.service.engine.describe(name))
            | {"ready": self.service.engine.ready(name), "languages": _languages(self.service, name)}
            for name in self.service.models
        }
        for model in models.values():
            del model["path"]  # of this machine
        return JSONResponse(
            {
                "version": __version__,
                "uptime_seconds": round(time.time() - self.service.started, 1),
                "models": models,
                "limits": asdict(self.service.limits),
            }
        )

    async def models(self, request: Request) -> Response:
        self.service.clients.authenticate(request)
        return JSONResponse({"object": "list", "data": [_model(self.service, name) for name in self.service.models]})

    async def one_model(self, request: Request) -> Response:
        self.service.clients.authenticate(request)
        name = request.path_params["id"]
        self.service.describe(name)
        return JSONResponse(_model(self.service, name))

    async def metrics(self, request: Request) -> Response:
        self.service.clients.authenticate(request)
        return Response(self.service.metrics.page(), media_type=CONTENT_TYPE)


def add_routes(app: FastAPI, service: Service, pulse: Pulse) -> None:
    """Add the routes. Those of health need no API key; the others do where the service has keys."""
    answers = _Answers(service, pulse)
    for path, route, summary in (
        ("/health", answers.ready, "Whether every model answers"),
        ("/health/ready", answers.ready, "Whether every model answers"),
        ("/health/live", answers.live, "Whether the process answers"),
        ("/version", answers.version, "The version of Atento"),
        ("/limits", answers.limits, "Every limit, its value and its meaning"),
        ("/info", answers.info, "The models and the limits"),
        ("/metrics", answers.metrics, "Numbers in the format of Prometheus"),
        ("/v1/models", answers.models, "The models"),
        ("/v1/models/{id:path}", answers.one_model, "A model"),
    ):
        app.add_api_route(path, route, methods=["GET"], summary=summary, tags=["The service"])
        app.add_api_route(path, route, methods=["HEAD"], include_in_schema=False)  # as some load balancers ask


def _model(service: Service, name: str) -> dict[str, object]:
    """A model as OpenAI lists it, with its task, its languages, and how many tokens it reads and writes."""
    description = service.engine.describe(name)
    return {
        "id": name,
        "object": "model",
        "created": int(service.started),
        "owned_by": "atento",
        "task": description.task,
        "languages": _languages(service, name),
        "max_length": description.max_length,
        "max_new_tokens": description.max_new_tokens,
        "trained_length": description.trained_length,
    }


def _languages(service: Service, name: str) -> list[str]:
    """The languages of a model: of its tokenizer, else (source, target) as the command or its name says them."""
    return service.engine.describe(name).languages or list(service.models[name].languages or pair_in(name) or ())
