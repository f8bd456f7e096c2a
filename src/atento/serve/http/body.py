"""The body of a request: its type, read under the limits of size and time, as JSON or as a form."""

import asyncio
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.types import Receive

from atento.serve.http.errors import ServiceError, too_long
from atento.serve.http.strict_json import parse
from atento.serve.settings import Limits

_SHORT = 1 << 14  # bytes that are parsed in less time than a thread needs to begin
_FORM = "application/x-www-form-urlencoded"


async def read_object(request: Request, limits: Limits, *, form: bool = False) -> Any:
    """The body of a request, parsed.

    Args:
        request: the request.
        limits: of the service.
        form: whether a form is accepted too; its values are texts, a list where a field is repeated.

    Raises:
        ServiceError: 415 another type; 413 too large, without reading on; 408 too slow; 400 not JSON.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    accepted = ("application/json", _FORM) if form else ("application/json",)
    if kind not in accepted:
        raise ServiceError(
            415, f"`Content-Type` must be {' or '.join(accepted)}: got {kind[:60] or 'none'}", "wrong_content_type"
        )
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding != "identity":
        raise ServiceError(415, f"`Content-Encoding` must be identity: got {encoding[:60]}", "wrong_content_type")
    body = await _read(request, limits)
    read = partial(_form, body) if kind == _FORM else partial(parse, body, limits.json_depth)
    return await asyncio.to_thread(read) if len(body) > _SHORT else read()


async def _read(request: Request, limits: Limits) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and (len(declared) > 18 or int(declared) > limits.body_bytes):
        raise too_long(f"the body must have at most {limits.body_bytes:,} bytes: got {declared[:24]}")
    parts, size = [], 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for part in request.stream():
                size += len(part)
                if size > limits.body_bytes:
                    raise too_long(f"the body must have at most {limits.body_bytes:,} bytes: got {size:,} or more")
                parts.append(part)
    except TimeoutError:
        raise ServiceError(
            408, f"the body must arrive in {limits.body_seconds:g} seconds: {size:,} bytes came", "slow_request"
        ) from None
    return b"".join(parts)


def _form(body: bytes) -> dict[str, Any]:
    """The fields of a form. Raises ServiceError: 400, it is not UTF-8 or has too many fields."""
    try:
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=256)
    except ValueError:  # UnicodeDecodeError is one
        raise ServiceError(
            400, "the form must be UTF-8, percent-encoded, of at most 256 fields", "invalid_form"
        ) from None
    fields: dict[str, Any] = {}
    for name, value in pairs:
        fields[name] = (
            [*fields[name], value]
            if isinstance(fields.get(name), list)
            else ([fields[name], value] if name in fields else value)
        )
    return fields


async def gone(receive: Receive) -> None:
    """Return when the client has closed the connection; for a request whose body was read."""
    while (await receive())["type"] != "http.disconnect":
        pass
