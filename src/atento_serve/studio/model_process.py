"""The process that holds Studio's models: reads one request after another from standard input and answers it."""

import json
import os
import signal
import traceback
import warnings
from typing import Any

import torch

from atento.errors import AtentoError
from atento.processes import Message, receive, send
from atento.terminal import echo
from atento_serve.engine.verbs import TooLong
from atento_serve.http.errors import ServiceError, too_long
from atento_serve.settings import Limits, ModelSettings
from atento_serve.studio.screen_table import answer
from atento_serve.studio.shelf import Shelf


def main() -> None:
    """Answer until standard input ends, which is when the service ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the service decides when its processes end
    warnings.simplefilter("ignore")  # they may quote a text
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing else may write to the service
    first = receive(requests)
    if first is None:
        return
    given = json.loads(first[0])
    settings = given["settings"]
    models = {name: ModelSettings(**one) for name, one in settings["models"].items()}
    threads = next((one.threads for one in models.values() if one.threads), None)
    if threads:
        torch.set_num_threads(threads)
    shelf = Shelf(models, Limits(**given["limits"]), settings["cache_bytes"])
    while (message := receive(requests)) is not None:
        send(answers, *answered(shelf, message))


def answered(shelf: Shelf, message: Message) -> Message:
    """The answer to a request, or the error that it raises, as a message."""
    request = json.loads(message[0])
    try:
        with torch.no_grad():  # not inference mode: a screen may ask for gradients
            value, data = answer(shelf, request["function"], request["arguments"])
        return _encoded({"value": value}), data
    except Exception as error:
        refusal = _refusal(error)
        about = {"status": refusal.status, "message": refusal.message, "code": refusal.code, "param": refusal.param}
        return _encoded({"error": about | {"headers": refusal.headers}}), b""


def _refusal(error: Exception) -> ServiceError:
    if isinstance(error, ServiceError):
        return error
    if isinstance(error, TooLong):
        return too_long(str(error))
    if isinstance(error, AtentoError):
        return ServiceError(422, str(error), "refused")
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return ServiceError(503, "there is not enough memory for this: give a shorter text", "memory")
    last = traceback.extract_tb(error.__traceback__)[-1]  # where it was, not its message, which may quote a text
    where = f"{last.filename.rpartition('/')[2]}:{last.lineno}"
    echo(json.dumps({"event": "studio_bug", "error": type(error).__name__, "where": where}), err=True)
    return ServiceError(500, f"Studio failed ({type(error).__name__} in {where}); this is a bug in Atento", "bug")


def _encoded(message: Any) -> bytes:
    return json.dumps(message, allow_nan=False).encode("ascii")


if __name__ == "__main__":
    main()
