"""The start of the service: its address, the worker processes, and the routes, which are imported meanwhile."""

import asyncio
import re
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from atento.base.errors import AtentoError, UsageError
from atento_serve.engine.engine import Engine
from atento_serve.http.hosts import is_loopback
from atento_serve.settings import Limits, ModelSettings, StudioSettings
from atento_serve.studio.studio_process import Studio

if TYPE_CHECKING:
    from atento_serve.http.clients import Key
    from atento_serve.http.tracing import Tracing

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # SIGHUP: its terminal is gone


@dataclass(frozen=True)
class ServerSettings:
    """Where and for whom the service listens.

    Attributes:
        host, port: of the public address; port 0: a free one.
        keys: API keys; none: everyone may use the service.
        insecure: whether it may listen beyond this machine without a key.
        origins: web pages that may call it (CORS).
        allowed_hosts: names by which it may be called, beside those that `Hosts` answers itself.
        admin_socket: path of the unix socket of `POST /models/reload`; None: there is none.
        log_text: whether users' texts may be logged. quiet: whether successful requests are left out of the log.
        tracing: makes, from what writes an event of the log, what turns each request into a span of OpenTelemetry;
            None: they are none.
        studio: what Studio shows; None: there is none.
        ready: called with the address of the service when it answers.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    keys: "Sequence[Key]" = ()
    insecure: bool = False
    origins: Sequence[str] = ()
    allowed_hosts: Sequence[str] = ()
    admin_socket: Path | None = None
    log_text: bool = False
    quiet: bool = False
    tracing: "Callable[[Callable[..., None]], Tracing] | None" = None
    studio: StudioSettings | None = None
    ready: Callable[[str], None] = field(default=lambda url: None)

    def check(self) -> None:
        """Raises UsageError: it would be open to other machines without a key, or an origin is none of a browser's."""
        for origin in self.origins:
            if not re.fullmatch(r"\*|null|[a-z][a-z0-9+.-]*://[^/?#\sA-Z]+", origin):
                example = "as a browser sends it, such as https://example.org, or *"
                raise UsageError(f"--cors must be an origin {example}: got {origin!r}")
        if not self.keys and not self.insecure and not is_loopback(self.host):
            raise UsageError(
                f"--host {self.host} is open to other machines: give --api-key, --api-keys, or --insecure to allow all"
            )


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


Models = Mapping[str, ModelSettings]
Answer = Callable[
    [asyncio.Event, Engine, Models, Limits, ServerSettings, socket.socket, Studio | None], Awaitable[None]
]
"""Answers requests until an event: `atento_serve.server.answer_until`."""


def serve(models: Models, limits: Limits, settings: ServerSettings, routes: Callable[[], Answer]) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP; running requests then have `limits.drain_seconds` to end.

    Args:
        models: the models by their names.
        limits: of the service.
        settings: where and for whom it listens.
        routes: imports the function that answers, which takes half a second, while the workers load their models.

    Raises:
        UsageError: the address needs a key. ModelError: a model cannot be loaded. AtentoError: the address is taken.
    """
    settings.check()
    with listening_socket(settings.host, settings.port) as bound:
        asyncio.run(_serve(models, limits, settings, routes, bound))


async def _serve(
    models: Models, limits: Limits, settings: ServerSettings, routes: Callable[[], Answer], bound: socket.socket
) -> None:
    engine = Engine(models, limits)
    studio = None if settings.studio is None else Studio(settings.studio, limits)
    if studio is not None and not models:  # else the models of the service are loaded first
        studio.models.start()
    stop = asyncio.Event()
    with _signals(stop):
        starting = asyncio.ensure_future(engine.start())
        stopping = asyncio.ensure_future(stop.wait())
        try:
            answer = await asyncio.to_thread(routes)
            await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                await answer(stop, engine, models, limits, settings, bound, studio)
        finally:
            if studio is not None:
                studio.close()
            for future in (starting, stopping):
                future.cancel()
            with suppress(asyncio.CancelledError, AtentoError):
                await starting
            await engine.close()


@contextmanager
def _signals(stop: asyncio.Event) -> Iterator[None]:
    """Set the event at the first of the signals; the second ends the process at once. Under nohup, SIGHUP is none."""
    loop = asyncio.get_running_loop()
    heard = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]

    def first() -> None:
        stop.set()
        for number in heard:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    for number in heard:
        loop.add_signal_handler(number, first)
    try:
        yield
    finally:
        for number in heard:
            loop.remove_signal_handler(number)
