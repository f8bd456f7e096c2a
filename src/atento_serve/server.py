"""The server process at work: uvicorn over the routes, the admin socket, the drain."""

import asyncio
import gc
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from atento.base.errors import AtentoError, UsageError
from atento_serve.app import admin_application, application
from atento_serve.engine.engine import Engine
from atento_serve.http.clients import Clients
from atento_serve.http.connection import protocol_class
from atento_serve.http.hosts import Hosts
from atento_serve.http.logs import Log
from atento_serve.http.metrics import Metrics
from atento_serve.http.service import Service
from atento_serve.settings import Limits, ModelSettings
from atento_serve.start import ServerSettings
from atento_serve.studio.studio_process import Studio

_LAST_WORDS = 2.0  # seconds that connections have to close after the last answer


async def answer_until(
    stop: asyncio.Event,
    engine: Engine,
    models: Mapping[str, ModelSettings],
    limits: Limits,
    settings: ServerSettings,
    bound: socket.socket,
    studio: Studio | None,
) -> None:
    """Answer requests until the event, then let those that run end.

    Args:
        stop: the event.
        engine: started.
        models, limits, settings: of the service.
        bound: the socket of its address.
        studio: what Studio shows; None: there is none.

    Raises:
        AtentoError: a server ended before it had started.
    """
    log = Log(texts=settings.log_text, quiet=settings.quiet)
    engine.on_change(log.event)
    service = Service(
        engine,
        models,
        limits,
        Clients(list(settings.keys), limits),
        Metrics(lambda: {name: engine.stats(name) for name in models}),
        log,
    )
    tracing = None if settings.tracing is None else settings.tracing(log.event)
    hosts = Hosts(settings.host, settings.allowed_hosts)
    if studio is not None:
        studio.models.start()
    app = application(service, origins=settings.origins, tracing=tracing, hosts=hosts, studio=studio)
    servers = [(_Server(_config(app, service)), bound)]
    if settings.admin_socket is not None:
        servers.append((_Server(_config(admin_application(service), service)), _unix_socket(settings.admin_socket)))
    running = [asyncio.ensure_future(server.serve(sockets=[sock])) for server, sock in servers]  # both run in this loop
    try:
        await _all_started([server for server, _ in servers], running)
    except BaseException:
        _remove(settings.admin_socket)
        raise
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    gc.freeze()  # what is there stays: a collection while a large body is parsed need not look at it
    settings.ready(f"http://{host}:{bound.getsockname()[1]}")
    stopped = asyncio.ensure_future(stop.wait())
    # a server that ends by itself stops the service too
    await asyncio.wait({stopped, *running}, return_when=asyncio.FIRST_COMPLETED)
    service.stopping = True  # new requests are refused; those that run go on
    began = time.monotonic()
    service.log.event("stopping", requests=service.metrics.running)
    while service.metrics.running and time.monotonic() - began < limits.drain_seconds:
        await asyncio.sleep(0.02)
    cut = service.metrics.running or None  # requests that the drain did not wait for: refused, not broken off
    engine.drop()
    for server, _ in servers:
        server.should_exit = True
    await asyncio.gather(*running)
    exported = tracing is None or await asyncio.to_thread(tracing.close)
    seconds = round(time.monotonic() - began, 3)
    service.log.event("stopped", seconds=seconds, cut=cut, spans_lost=None if exported else True)
    service.texts.close()
    _remove(settings.admin_socket)


def _remove(admin_socket: Path | None) -> None:
    if admin_socket is not None:
        admin_socket.unlink(missing_ok=True)


async def _all_started(servers: Sequence[uvicorn.Server], running: Sequence[asyncio.Future[None]]) -> None:
    """Wait until each server answers; if one ends before, end the others too, and raise what ended it."""
    while not all(server.started for server in servers):
        if any(task.done() for task in running):
            for server in servers:
                server.should_exit = True
            await asyncio.gather(*running)
            raise AtentoError("the service ended before it could answer")
        await asyncio.sleep(0.005)


class _Server(uvicorn.Server):
    """uvicorn's server without its own handling of signals, which `start` handles."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


def _config(app: object, service: Service) -> uvicorn.Config:
    limits = service.limits
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        http=protocol_class(limits, service.refused),
        ws="none",
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        h11_max_incomplete_event_size=limits.header_bytes,
        timeout_keep_alive=int(max(1, limits.idle_seconds)),
        timeout_graceful_shutdown=int(_LAST_WORDS),
        backlog=1024,
    )


def _unix_socket(path: Path) -> socket.socket:
    """A bound unix socket that only this user may open.

    Raises:
        UsageError: something else is at the path, or another service answers there.
    """
    if path.is_socket():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
            if other.connect_ex(str(path)) == 0:  # else a service left it that was killed
                raise UsageError(f"--admin-socket {path}: another service answers there")
        path.unlink()
    elif path.exists():
        raise UsageError(f"--admin-socket {path} must not exist: it is no socket")
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        bound.bind(str(path))
    except OSError as error:
        raise UsageError(f"--admin-socket {path}: {error.strerror or error}") from None
    finally:
        os.umask(mask)
    return bound
