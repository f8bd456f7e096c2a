"""What a worker process sends to the server: the events of jobs, and counts of its work."""

import sys
import traceback
from collections import Counter
from collections.abc import Mapping
from typing import BinaryIO

from atento.base.errors import AtentoError, UsageError
from atento_serve.chat.template_process import TemplateError
from atento_serve.engine.messages import encoded, event_message
from atento_serve.engine.verbs import TooLong
from atento_serve.jobs import Event, Failed, FailureKind, Usage

# the first that fits
_KINDS: dict[type[AtentoError], FailureKind] = {TooLong: "too_long", TemplateError: "template"}
_KINDS |= {UsageError: "request", AtentoError: "internal"}


class Outbox:
    """Sends messages on a stream, and counts batches by size and tokens by kind since the last report."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._batches, self._tokens = Counter[int](), Counter[str]()

    def send(self, message: dict[str, object]) -> None:
        """Send a message."""
        self._stream.write(encoded(message))
        self._stream.flush()

    def event(self, job_id: str, event: Event) -> None:
        """Send an event of a job."""
        if isinstance(event, Usage):
            self._tokens["prompt"] += event.prompt_tokens
            self._tokens["new"] += event.new_tokens
        self.send(event_message(job_id, event))

    def started(self, job_id: str) -> None:
        """Say that a job no longer waits."""
        self.send({"started": job_id})

    def fail(self, job_id: str, error: BaseException) -> None:
        """Say that a job failed: in the model's own words, if it refuses the job."""
        self.event(job_id, failure_of(error))

    def count_batch(self, size: int) -> None:
        """Count a batch, or a step, of so many texts."""
        self._batches[size] += 1

    def report(self) -> Mapping[str, object]:
        """The counts since the last report."""
        counts = {"batches": list(self._batches.items()), "tokens": dict(self._tokens)}
        self._batches.clear()
        self._tokens.clear()
        return counts


def failure_of(error: BaseException) -> Failed:
    """The event for an error. Of a fault of ours only the type and the lines are logged: its words may be a user's."""
    for kind, name in _KINDS.items():
        if isinstance(error, kind):
            return Failed(name, str(error))
    frames = "".join(traceback.format_tb(error.__traceback__)[-3:])
    sys.stderr.write(f"{type(error).__name__} in a worker\n{frames}")
    sys.stderr.flush()
    return Failed("internal", f"{type(error).__name__} while computing; the log of the service has the lines")
