"""What the service answers instead of a result: statuses, and the error body of each API."""

from collections.abc import Mapping
from math import ceil

_KINDS = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}

HUGGING_FACE, LIBRETRANSLATE = "Hugging Face", "LibreTranslate"
"""The tags of the routes whose errors have a form of their own."""


class ServiceError(Exception):
    """A request that is refused or failed.

    Attributes:
        status: the HTTP status.
        message: one sentence for the client. It may quote the request, so it is not logged.
        param: a pointer to the field, such as `/messages/0/content`; None if it is not about a field.
        code: a word for programs, which is also logged.
        headers: further fields of the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        code: str,
        *,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.headers = dict(headers or {})

    def body(self, scope: Mapping[str, object]) -> dict[str, object]:
        """The answer, in the form of the API of the route."""
        return error_body(self.status, self.message, self.code, self.param, scope)


def error_body(
    status: int, message: str, code: str, param: str | None = None, scope: Mapping[str, object] | None = None
) -> dict[str, object]:
    """The body of an error.

    `{"error": {"message", "type", "param", "code"}}`, as OpenAI's API has it; on the routes of Hugging Face
    `error_type` stands beside it, which clients of text-generation-inference read. On the routes of LibreTranslate
    `error` is the message, as its clients show it.

    Args:
        scope: of the request, whose route says which API it is of; None: no route.
    """
    tags = getattr((scope or {}).get("route"), "tags", None) or ()
    about = {"param": param, "code": code}
    if LIBRETRANSLATE in tags:
        return {"error": message, **about}
    kind = _KINDS.get(status, "server_error" if status >= 500 else "invalid_request_error")
    body: dict[str, object] = {"error": {"message": message, "type": kind, **about}}
    if HUGGING_FACE in tags:
        body["error_type"] = "overloaded" if status in (429, 503) else "generation" if status >= 500 else "validation"
    return body


def wrong_field(pointer: str, message: str) -> ServiceError:
    """422: a field that is missing, unknown, of the wrong type or out of range."""
    return ServiceError(422, message, "wrong_field", param=pointer)


def too_long(message: str, pointer: str | None = None) -> ServiceError:
    """413: a body or a text that is too long; the message says both lengths."""
    return ServiceError(413, message, "too_long", param=pointer)


def busy(message: str, seconds: float, code: str = "busy") -> ServiceError:
    """503 with `Retry-After` in whole seconds, 1 at least."""
    return ServiceError(503, message, code, headers={"Retry-After": retry_after(seconds)})


def late(seconds: float) -> ServiceError:
    """504: the deadline of a request has passed, in seconds."""
    said = f"the answer was not ready in {seconds:g} seconds, the limit `deadline` of the service: send less at once"
    return ServiceError(504, said, "deadline")


def stopping() -> ServiceError:
    """503: the service is stopping."""
    return busy("the service is stopping", 5, "stopping")


def retry_after(seconds: float) -> str:
    """The value of `Retry-After`: whole seconds, 1 at least."""
    return str(max(1, ceil(seconds)))
