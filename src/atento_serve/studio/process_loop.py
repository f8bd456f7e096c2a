"""What every process of Studio does: it reads one request after another from standard input, and answers it."""

import json
import os
import signal
import traceback
import warnings
from collections.abc import Callable
from typing import Any

from atento.base.errors import AtentoError
from atento.base.processes import Message, receive, send
from atento.base.terminal import echo
from atento_serve.http.errors import ServiceError
from atento_serve.settings import Limits, ModelSettings, StudioSettings

Answered = tuple[Any, bytes]
"""Plain data, and bytes."""
Answer = Callable[[str, object], Answered]
"""What answers a function and its arguments."""


def answer_all(begin: Callable[[StudioSettings, Limits], Answer]) -> None:
    """Answer until standard input ends, which is when the service ends; `begin` gets what the first message has."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the service decides when its processes end
    warnings.simplefilter("ignore")  # they may quote a text
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing else may write to the service
    first = receive(requests)
    if first is None:
        return
    given = json.loads(first[0])
    models = {name: ModelSettings(**one) for name, one in given["settings"]["models"].items()}
    answer = begin(StudioSettings(**(given["settings"] | {"models": models})), Limits(**given["limits"]))
    while (message := receive(requests)) is not None:
        send(answers, *_answered(answer, message))


def _answered(answer: Answer, message: Message) -> Message:
    """The answer to a request, or the error that it raises, as a message."""
    request = json.loads(message[0])
    try:
        value, data = answer(request["function"], request["arguments"])
        return _encoded({"value": value}), data
    except Exception as error:
        refusal = _refusal(error)
        about = {"status": refusal.status, "message": refusal.message, "code": refusal.code, "param": refusal.param}
        return _encoded({"error": about | {"headers": refusal.headers}}), b""


def _refusal(error: Exception) -> ServiceError:
    if isinstance(error, ServiceError):
        return error
    if isinstance(error, AtentoError):
        return ServiceError(422, str(error), "refused")
    if isinstance(error, MemoryError):
        return ServiceError(503, "there is not enough memory for this: give a shorter text", "memory")
    last = traceback.extract_tb(error.__traceback__)[-1]  # where it was, not its message, which may quote a text
    where = f"{last.filename.rpartition('/')[2]}:{last.lineno}"
    echo(json.dumps({"event": "studio_bug", "error": type(error).__name__, "where": where}), err=True)
    return ServiceError(500, f"Studio failed ({type(error).__name__} in {where}); this is a bug in Atento", "bug")


def _encoded(message: object) -> bytes:
    return json.dumps(message, allow_nan=False).encode("ascii")
