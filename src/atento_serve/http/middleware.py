"""Around every request: its number, the limits of its head, errors as JSON, metrics, one line of log."""

import asyncio
import json
import time
import traceback
import uuid
from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from atento_serve.http.errors import ServiceError, stopping
from atento_serve.http.hosts import Hosts
from atento_serve.http.service import Service

if TYPE_CHECKING:
    from atento_serve.http.tracing import Tracing

CLOSED_BY_CLIENT = 499  # in logs and metrics only: nobody reads the answer
_DRAIN_BYTES, _DRAIN_SECONDS = 4 << 20, 1.0  # what is read of a refused body, so that its sender can read the answer


class Observed:
    """The application, observed.

    Args:
        app: the routes.
        service: its limits, metrics and log; once it is stopping, only GET and HEAD are answered.
        tracing: makes a span of each request; None: there is none.
        hosts: the names that are answered; None: all.
    """

    def __init__(
        self, app: ASGIApp, service: Service, tracing: "Tracing | None" = None, hosts: Hosts | None = None
    ) -> None:
        self._app, self._service, self._tracing, self._hosts = app, service, tracing, hosts
        self._limits, self._metrics, self._log = service.limits, service.metrics, service.log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, status, has_ended, has_gone = time.monotonic(), 0, False, False
        number = uuid.uuid4().hex[:16]
        notes: dict[str, object] = {}
        scope["atento"] = {"id": number, "begun": begun, "notes": notes}
        span = None if self._tracing is None else self._tracing.begin(scope)

        async def send_noted(message: Message) -> None:
            nonlocal status, has_ended
            if message["type"] == "http.response.start":
                status = message["status"]
                message.setdefault("headers", []).append((b"x-request-id", number.encode()))
            await send(message)
            has_ended = message["type"] == "http.response.body" and not message.get("more_body")

        async def receive_noted() -> Message:
            nonlocal has_gone
            message = await receive()
            has_gone = has_gone or (message["type"] == "http.disconnect" and not has_ended)
            return message

        self._metrics.begin()
        is_late = self._service.stopping and scope["method"] not in ("GET", "HEAD")
        try:
            self._check_head(scope)
            if self._hosts is not None:
                self._hosts.check(scope["headers"])
            if is_late:
                raise stopping()
            await self._app(scope, receive_noted, send_noted)
        except ClientDisconnect:
            status = CLOSED_BY_CLIENT
        except ServiceError as error:
            notes["code"] = error.code
            await answer(error, scope, receive, send_noted, is_late=is_late)
        except asyncio.CancelledError:  # the drain is over, and no job of the request tells it
            notes["code"] = "stopping"
            if status == 0:
                await answer(stopping(), scope, receive, send_noted)
            raise
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]  # what raised it
            where = f"{last.filename.rpartition('/')[2]}:{last.lineno}"
            notes.update(code="bug", error=type(error).__name__, where=where)
            if status == 0:
                failure = ServiceError(500, f"the service failed (request {number}); its log says where", "bug")
                await answer(failure, scope, receive, send_noted)
        finally:
            if has_gone and not has_ended:  # in the middle of a stream
                status = CLOSED_BY_CLIENT
            if self._tracing is not None and span is not None:
                notes["trace_id"] = f"{span.get_span_context().trace_id:032x}"
                self._tracing.end(span, _route(scope), status or CLOSED_BY_CLIENT, notes)
            route, seconds = _route(scope), time.monotonic() - begun
            self._metrics.end(route, status or CLOSED_BY_CLIENT, seconds)
            about = {"id": number, "method": scope["method"][:16], "route": route, "seconds": round(seconds, 4)}
            self._log.request(status or CLOSED_BY_CLIENT, **about, **notes)

    def _check_head(self, scope: Scope) -> None:
        """Raises ServiceError: 431, the head of the request is too large; 400, it gives two lengths of the body."""
        headers = scope["headers"]
        if {b"content-length", b"transfer-encoding"} <= {name for name, _ in headers}:  # RFC 9112, 6.1
            message = "a request must not have both Content-Length and Transfer-Encoding"
            raise ServiceError(400, message, "invalid_http", headers={"Connection": "close"})
        if len(headers) > (most := self._limits.header_fields):
            raise _large_head(f"the head of a request must have at most {most} fields", len(headers))
        size = len(scope.get("raw_path") or b"") + len(scope.get("query_string", b""))
        size += sum(len(name) + len(value) + 4 for name, value in headers)
        if size > self._limits.header_bytes:
            raise _large_head(f"the head of a request must have at most {self._limits.header_bytes:,} bytes", size)


def _route(scope: Scope) -> str:
    """The pattern of the route of a request; "unknown" if none fits."""
    return getattr(scope.get("route"), "path", "unknown")


def _large_head(rule: str, got: int) -> ServiceError:
    return ServiceError(431, f"{rule}: got {got:,}", "head_too_large", headers={"Connection": "close"})


async def answer(error: ServiceError, scope: Scope, receive: Receive, send: Send, *, is_late: bool = False) -> None:
    """Send the body of an error. A request whose body was not read to its end closes the connection."""
    body = json.dumps(error.body(scope), ensure_ascii=False).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(name.lower().encode(), value.encode()) for name, value in error.headers.items()]
    unread = is_late or error.status in (408, 413, 415)  # of these the body was not read
    if unread:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": unread})
    if unread:
        # a client that waits for 100 Continue has sent no body
        if error.status != 408 and not any(name == b"expect" for name, _ in scope["headers"]):
            await _drain(receive)
        await send({"type": "http.response.body", "body": b""})


async def _drain(receive: Receive) -> None:
    """Read on for a moment: a connection that is closed with unread data is reset, and the answer lost."""
    size = 0
    try:
        async with asyncio.timeout(_DRAIN_SECONDS):
            while size < _DRAIN_BYTES:
                message = await receive()
                size += len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body"):
                    return
    except TimeoutError:
        return
