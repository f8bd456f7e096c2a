"""Connections: how many, how large the head of a request, and how slow a client may be (uvicorn's protocol of h11).

A connection is closed if the head of a request takes too long, if no request comes, or if the client does not read its
answer. The time of a body is limited where it is read (`body.py`).
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from atento_serve.http.errors import error_body
from atento_serve.settings import Limits

Refused = Callable[[int, str, float], None]


def protocol_class(limits: Limits, refused: Refused) -> type[asyncio.Protocol]:
    """The class of connections that hold these limits.

    Args:
        limits: of the service.
        refused: called with the status, the code and the seconds of a request that is answered here, not by a route.
    """

    class LimitedProtocol(_Limited):
        """A connection of this service."""

        limits_held = limits
        note_refused = staticmethod(refused)

    return LimitedProtocol


class _Limited(H11Protocol):
    limits_held: Limits
    note_refused: Refused

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._timer: asyncio.TimerHandle | None = None  # until the next request is known
        self._writing: asyncio.TimerHandle | None = None  # while the client does not read
        self._refused = False
        self._since = time.monotonic()  # of the connection, or of the head of the last request
        self._begun = False  # whether the head of the next request has begun

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._refused = len(self.connections) > self.limits_held.connections
        self._wait(self.limits_held.idle_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._timer, self._writing):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            most = self.limits_held.connections
            self._refuse(503, f"the service has at most {most:,} connections: all are open", "busy")
            return
        cycle = self.cycle
        idle = cycle is None or cycle.response_complete
        if idle and not self._begun:
            self._begun, self._since = True, time.monotonic()
            self._wait(self.limits_held.header_seconds)
        super().data_received(data)
        if self.cycle is not cycle:
            self._begun = False
            self._wait(None)

    def on_response_complete(self) -> None:
        self._begun = False
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is not HTTP; called by uvicorn while it handles the error of h11."""
        error = sys.exception()
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        if status == 431:
            most = self.limits_held.header_bytes
            self._refuse(431, f"the head of a request must have at most {most:,} bytes: got more", "head_too_large")
        else:
            self._refuse(400, "the request is not valid HTTP/1.1", "invalid_http")

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._writing is None:
            self._writing = self.loop.call_later(self.limits_held.idle_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    def _wait(self, seconds: float | None) -> None:
        """Expect a request within some seconds; None: it has come."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self._too_slow)

    def _too_slow(self) -> None:
        if self._begun and not self.transport.is_closing():
            seconds = self.limits_held.header_seconds
            self._refuse(408, f"the head of a request must arrive in {seconds:g} seconds", "slow_request")
        else:
            self.transport.close()

    def _refuse(self, status: int, message: str, code: str) -> None:
        """Answer without the application, and close."""
        if self.transport.is_closing():
            return
        self.note_refused(status, code, time.monotonic() - self._since)
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            body = json.dumps(error_body(status, message, code)).encode()
            head = [
                f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
                "content-type: application/json",
                f"content-length: {len(body)}",
                *(["retry-after: 1"] if status == 503 else []),
                "connection: close",
            ]
            self.transport.write("\r\n".join([*head, "", ""]).encode("ascii") + body)
        self.transport.close()
