"""The body of a request: its type, read under the limits of size and time, as JSON or as a form."""

import asyncio
import re
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.types import Receive

from atento.base.errors import counted
from atento_serve.http.errors import ServiceError, too_long, wrong_field
from atento_serve.http.strict_json import parse
from atento_serve.settings import Limits

T = TypeVar("T")
_SHORT = 1 << 14  # bytes that are parsed in less time than a thread needs to begin
_PARSER = ThreadPoolExecutor(1, "parser")  # one body at a time beside the event loop, which several would hold up
_HEAD = 4096  # bytes of the head of a part of a form
_FORM, _PARTS = "application/x-www-form-urlencoded", "multipart/form-data"
FORMS = (_FORM, _PARTS)
_MOST_FIELDS = 256
_FILE = re.compile(rb'(?im)^content-disposition:\s*form-data;[^\r\n]*;?\s*filename="([^"\r\n]*)"')
_NAME = re.compile(rb'(?im)^content-disposition:\s*form-data;(?:[^\r\n]*;)?\s*name="([^"\r\n]*)"')


async def read_object(request: Request, limits: Limits, *, form: bool = False) -> Any:
    """The body of a request, parsed.

    Args:
        request: the request.
        limits: of the service.
        form: whether a form is accepted too; its values are texts, a list where a field is repeated.

    Raises:
        ServiceError: 415 another type; 413 too large, without reading on; 408 too slow; 400 not JSON.
    """
    kind = content_type(request)
    accepted = ("application/json", *FORMS) if form else ("application/json",)
    if kind not in accepted:
        message = f"`Content-Type` must be {' or '.join(accepted)}: got {kind[:60] or 'none'}"
        raise ServiceError(415, message, "wrong_content_type")
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding != "identity":
        raise ServiceError(415, f"`Content-Encoding` must be identity: got {encoding[:60]}", "wrong_content_type")
    body = await _read(request, limits)
    read = partial(_parsed, body, kind, request.headers["content-type"], limits)
    return await _in_turn(read) if len(body) > _SHORT else read()


async def read_upload(request: Request, limits: Limits) -> tuple[dict[str, str], str, bytes]:
    """The fields of a form in parts that are not empty, and the name and the content of its field `file`.

    Raises:
        ServiceError: as `read_object`; 422, there is no file, or it has no name.
    """
    if content_type(request) != _PARTS:
        raise ServiceError(415, f"`Content-Type` must be {_PARTS}", "wrong_content_type")
    body = await _read(request, limits)
    parts = await _in_turn(partial(_in_parts, body, request.headers["content-type"]))
    fields = {name: _text(value) for name, file, value in parts if name != "file" and value}
    uploads = [(_text(file), value) for name, file, value in parts if name == "file" and file]
    if len(uploads) != 1:
        raise wrong_field("/file", f"`file` must be one file with its name: got {len(uploads) or 'none'}")
    return fields, *uploads[0]


async def _in_turn(read: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(_PARSER, read)


def _parsed(body: bytes, kind: str, header: str, limits: Limits) -> object:
    if kind == _PARTS:
        return _fields((name, _text(value)) for name, _, value in _in_parts(body, header))
    return _fields(_in_pairs(body)) if kind == _FORM else parse(body, limits.json_depth, limits.json_parts)


def content_type(request: Request) -> str:
    """The type of the body, without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def _read(request: Request, limits: Limits) -> bytes:
    declared = request.headers.get("content-length", "")
    # as declared, before any of it is read
    if declared.isascii() and declared.isdigit() and (len(declared) > 18 or int(declared) > limits.body_bytes):
        raise too_long(f"the body must have at most {limits.body_bytes:,} bytes: got {declared[:24]}")
    parts, size = [], 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for part in request.stream():
                size += len(part)  # what comes in chunks declares nothing
                if size > limits.body_bytes:
                    raise too_long(f"the body must have at most {limits.body_bytes:,} bytes: got {size:,} or more")
                parts.append(part)
    except TimeoutError:
        message = f"the body must arrive in {limits.body_seconds:g} seconds: {counted(size, 'byte')} came"
        raise ServiceError(408, message, "slow_request") from None
    request.scope["atento"]["read"] = time.monotonic()
    return b"".join(parts)


def _in_pairs(body: bytes) -> list[tuple[str, str]]:
    """The fields of a form, percent-encoded or UTF-8 as it stands. Raises ServiceError: 400."""
    try:
        return parse_qsl(body.decode("utf-8"), keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS)
    except ValueError:  # UnicodeDecodeError is one
        raise _bad_form() from None


def _text(value: bytes) -> str:
    """The text of a field. Raises ServiceError: 400, it is not UTF-8."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        raise _bad_form() from None


def _in_parts(body: bytes, kind: str) -> list[tuple[str, bytes, bytes]]:
    """The fields of a form in parts (RFC 7578): name, name of a file, value. Raises ServiceError: 400."""
    boundary = re.search(r'boundary="?([^";,]{1,70})"?', kind)  # at most 70 characters: RFC 2046
    if boundary is None:
        raise _bad_form()
    border = b"\r\n--" + boundary[1].encode()
    _, *parts = (b"\r\n" + body).split(border, _MOST_FIELDS + 2)  # the first part has no line before it
    if not parts or not parts[-1].startswith(b"--") or len(parts) > _MOST_FIELDS + 1:  # "--" ends the form
        raise _bad_form()
    fields = []
    for part in parts[:-1]:
        head, end, value = part.partition(b"\r\n\r\n")
        name = _NAME.search(head[:_HEAD])  # its time grows with the square of the length
        if name is None or not end or len(head) > _HEAD:
            raise _bad_form()
        file = _FILE.search(head)
        fields.append((_text(name[1]), file[1] if file else b"", value))
    return fields


def _bad_form() -> ServiceError:
    return ServiceError(400, f"the form must be UTF-8, well formed, of at most {_MOST_FIELDS} fields", "invalid_form")


def _fields(pairs: Iterable[tuple[str, str]]) -> dict[str, object]:
    """The fields of a form: a list where one is repeated."""
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    return {name: row[0] if len(row) == 1 else row for name, row in values.items()}


async def gone(receive: Receive) -> None:
    """Return when the client has closed the connection; for a request whose body was read."""
    while (await receive())["type"] != "http.disconnect":
        pass
