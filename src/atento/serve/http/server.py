"""The server process: sockets, the start of the engine, signals, the drain, the end."""

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

import uvicorn

from atento.errors import AtentoError, UsageError
from atento.serve.engine.engine import Engine
from atento.serve.http.app import admin_application, application
from atento.serve.http.clients import Clients, Key
from atento.serve.http.connection import protocol_class
from atento.serve.http.logs import Log
from atento.serve.http.metrics import Metrics
from atento.serve.http.service import Service
from atento.serve.settings import Limits, ModelSettings

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LAST_WORDS = 2.0  # seconds that connections have to close after the last answer


@dataclass(frozen=True)
class ServerSettings:
    """Where and for whom the service listens.

    Attributes:
        host, port: of the public address; port 0: a free one.
        keys: API keys; none: everyone may use the service.
        insecure: whether it may listen beyond this machine without a key.
        origins: web pages that may call it (CORS).
        admin_socket: path of the unix socket of `POST /models/reload`; None: there is none.
        log_text: whether users' texts may be logged. quiet: whether successful requests are left out of the log.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    keys: Sequence[Key] = ()
    insecure: bool = False
    origins: Sequence[str] = ()
    admin_socket: Path | None = None
    log_text: bool = False
    quiet: bool = False
    ready: Callable[[str], None] = field(default=lambda url: None)

    def check(self) -> None:
        """Raises UsageError: it would be open to other machines without a key."""
        if not self.keys and not self.insecure and not _is_loopback(self.host):
            raise UsageError(
                f"--host {self.host} is open to other machines: give --api-key, --api-keys, or --insecure to allow all"
            )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def listening_socket(host: str, port: int) -> socket.socket:
    """A bound socket.

    Raises:
        AtentoError: the address is taken or is not of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        raise AtentoError(f"cannot listen on {host} port {port}: {error.strerror or error}") from None
    return bound


def serve(models: Mapping[str, ModelSettings], limits: Limits, settings: ServerSettings) -> None:
    """Serve until SIGTERM or SIGINT; running requests then have `limits.drain_seconds` to end.

    Raises:
        UsageError: the address needs a key. ModelError: a model cannot be loaded. AtentoError: the address is taken.
    """
    settings.check()
    bound = listening_socket(settings.host, settings.port)
    with bound:
        asyncio.run(_serve(models, limits, settings, bound))


async def _serve(
    models: Mapping[str, ModelSettings], limits: Limits, settings: ServerSettings, bound: socket.socket
) -> None:
    engine = Engine(models, limits)
    service = Service(
        engine,
        models,
        limits,
        Clients(list(settings.keys), limits),
        Metrics(lambda: {name: engine.stats(name) for name in models}),
        Log(texts=settings.log_text, quiet=settings.quiet),
    )
    stop = asyncio.Event()
    with _signals(stop):
        starting = asyncio.ensure_future(engine.start())
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            with suppress(asyncio.CancelledError, AtentoError):
                await starting
            await engine.close()
            return
        try:
            starting.result()
            await _answer_until(stop, service, settings, bound)
        finally:
            stopping.cancel()
            await engine.close()


async def _answer_until(stop: asyncio.Event, service: Service, settings: ServerSettings, bound: socket.socket) -> None:
    """Answer requests until the event, then let those that run end."""
    limits = service.limits
    app = application(service, origins=settings.origins)
    servers = [(_Server(_config(app, limits)), bound)]
    if settings.admin_socket is not None:
        servers.append((_Server(_config(admin_application(service), limits)), _unix_socket(settings.admin_socket)))
    running = [asyncio.ensure_future(server.serve(sockets=[sock])) for server, sock in servers]
    while not all(server.started for server, _ in servers):
        await asyncio.sleep(0.005)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    settings.ready(f"http://{host}:{bound.getsockname()[1]}")
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait({stopped, *running}, return_when=asyncio.FIRST_COMPLETED)
    service.stopping = True
    began = time.monotonic()
    service.log.event("stopping", requests=service.metrics.running)
    while service.metrics.running and time.monotonic() - began < limits.drain_seconds:
        await asyncio.sleep(0.02)
    for server, _ in servers:
        server.should_exit = True
    await asyncio.gather(*running)
    service.log.event("stopped", seconds=round(time.monotonic() - began, 3), cut=service.metrics.running or None)
    if settings.admin_socket is not None:
        settings.admin_socket.unlink(missing_ok=True)


class _Server(uvicorn.Server):
    """uvicorn's server without its own handling of signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to `_signals`."""
        yield


def _config(app: object, limits: Limits) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        http=protocol_class(limits),
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
        UsageError: something else is at the path.
    """
    if path.is_socket():
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


@contextmanager
def _signals(stop: asyncio.Event) -> Iterator[None]:
    """Set the event at the first SIGTERM or SIGINT; the second ends the process at once."""
    loop = asyncio.get_running_loop()

    def first() -> None:
        stop.set()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    for number in _SIGNALS:
        loop.add_signal_handler(number, first)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
