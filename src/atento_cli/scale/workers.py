"""A worker process that answers blocks: how it is started and asked, and what it does."""

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from queue import SimpleQueue
from typing import Any, BinaryIO, Protocol

from atento.base.errors import AtentoError, UsageError
from atento.base.processes import Child, Message, ended_by, receive, send
from atento_cli.scale.line_blocks import Block


class WorkerLost(Exception):
    """A worker ended, or could not answer for a reason that is not the input's; another may do the block."""


@dataclass(frozen=True)
class Answer:
    """What a worker says to a block, or, without content, after it has loaded the model."""

    content: bytes = b""  # the bytes of the part
    bad: list[str] = field(default_factory=list)  # the messages of bad lines, which are empty lines in the part
    # what the model warned of, as the fields of each warning
    warnings: list[dict[str, Any]] = field(default_factory=list)


class Worker(Protocol):
    """Answers blocks with one loaded model."""

    def ready(self) -> Answer:
        """Wait until the model is loaded. Raises AtentoError: it cannot be; WorkerLost."""
        ...

    def answer(self, block: Block, raw: bytes) -> Answer:
        """The outputs of a block; `raw` has its bytes, if workers do not read them. Raises as `ready`."""
        ...

    def close(self) -> None:
        """End it at once."""
        ...


class WorkerProcess(Child):
    """A process that loads the model and answers blocks.

    Args:
        module: what it runs (`python -m`), which calls `serve`.
        request: the first message, from which it knows its work.
        threads: CPU threads of its libraries.
    """

    def __init__(self, module: str, request: Mapping[str, object], threads: int | None = None) -> None:
        names = () if threads is None else ("OMP_NUM_THREADS", "RAYON_NUM_THREADS")
        super().__init__("-m", module, **{name: str(threads) for name in names})
        self.send(json.dumps(request).encode("utf-8"), b"")

    def answer(self, block: Block, raw: bytes) -> Answer:
        """Ask for the outputs of a block."""
        self.send(json.dumps(asdict(block)).encode("utf-8"), raw)
        return self.ready()

    def ready(self) -> Answer:
        """Wait until the model is loaded, or the block is answered."""
        message = self.receive()
        if message is None:
            status = self.wait()
            how = f"with status {status}; its error is above" if status >= 0 else f"by {ended_by(-status)}"
            raise WorkerLost(f"its process ended {how}")
        reply = json.loads(message[0])
        if "lost" in reply:
            raise WorkerLost(reply["lost"])
        if "error" in reply:
            raise (UsageError if reply["status"] == UsageError.exit_status else AtentoError)(reply["error"])
        return Answer(message[1], reply["bad"], reply["warnings"])


class Requests:
    """In a worker: the messages of the process that started it. The worker ends at once when that process is gone."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no answer
        self._messages: SimpleQueue[Message] = SimpleQueue()
        threading.Thread(target=self._read, args=(sys.stdin.buffer,), daemon=True).start()

    def first(self) -> dict[str, Any]:
        """The message that says what the worker is for."""
        message: dict[str, object] = json.loads(self._messages.get()[0])
        return message

    def blocks(self) -> Iterator[tuple[Block, bytes]]:
        """The blocks to answer, with their bytes, for ever."""
        while True:
            about, raw = self._messages.get()
            yield Block(**json.loads(about)), raw

    def reply(self, answer: Answer) -> None:
        """Send an answer."""
        send(self._out, json.dumps({"bad": answer.bad, "warnings": answer.warnings}).encode("utf-8"), answer.content)

    def fail(self, error: Exception) -> None:
        """Send an error: one that the user caused, or another one, after which the worker should end."""
        if isinstance(error, AtentoError):
            message = {"error": str(error), "status": error.exit_status}
        else:
            message = {"lost": f"it failed with {type(error).__name__}: {error}"}
        send(self._out, json.dumps(message).encode("utf-8"), b"")

    def _read(self, stream: BinaryIO) -> None:
        while (message := receive(stream)) is not None:
            self._messages.put(message)
        os._exit(0)


def serve(work: Callable[[Requests, Mapping[str, object]], object]) -> None:
    """Run a worker process: `work` gets the requests and the first message, and answers until the process ends."""
    requests = Requests()
    try:
        work(requests, requests.first())
    except Exception as error:
        requests.fail(error)
        if not isinstance(error, AtentoError):
            raise


def share_of_threads(workers: int, cores: int) -> int:
    """The CPU threads of each of several workers on one machine."""
    return max(1, cores // workers)
