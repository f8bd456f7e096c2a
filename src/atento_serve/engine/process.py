"""A worker process as the server sees it: started, written to, read from, and watched for its end."""

import asyncio
import contextlib
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from typing import Any

from atento.base.errors import ModelError
from atento.base.precision import available_cores
from atento_serve.engine.messages import LONGEST, decoded, encoded
from atento_serve.jobs import Description
from atento_serve.settings import Limits, ModelSettings

PING_SECONDS = 1.0  # between two questions whether the worker still works
SILENT_SECONDS = 3.5  # a worker that leaves one unanswered for so long does not work
_CLOSING_SECONDS = 2.0  # what a worker has to end by itself

OnMessage = Callable[["WorkerProcess", dict[str, object]], None]
OnEnd = Callable[["WorkerProcess"], None]


def threads_of(settings: ModelSettings) -> int | None:
    """The CPU threads of each worker of a model; None: all cores."""
    if settings.workers == 1:
        return settings.threads
    return max(1, (settings.threads or available_cores()) // settings.workers)


class WorkerProcess:
    """A process that has loaded one model; made by `started`.

    Attributes:
        description: of the model.
        has_ended: it has ended by itself, or was killed.
        has_hung: it was ended because it did not answer any more.
    """

    description: Description

    def __init__(self, process: Process, hang_seconds: float, on_message: OnMessage, on_end: OnEnd) -> None:
        self._process, self._on_message, self._on_end = process, on_message, on_end
        self._hang_seconds, self.has_ended, self.has_hung = hang_seconds, False, False
        self._unanswered: float | None = None  # when the question was sent that has no answer yet
        self._closing = False
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def started(
        cls, settings: ModelSettings, limits: Limits, on_message: OnMessage, on_end: OnEnd
    ) -> "WorkerProcess":
        """Start a process and wait until its model is loaded.

        Args:
            on_message: called with each message about jobs, on the event loop.
            on_end: called if the process ends without having been closed, or was ended because it hung.

        Raises:
            ModelError: the model cannot be loaded; with the sentence of `atento.load`.
        """
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "atento_serve.engine.start_worker"),
            stdin=PIPE,
            stdout=PIPE,
            limit=LONGEST,
            start_new_session=True,  # Ctrl-C reaches the server alone, which closes its workers
        )
        worker = cls(process, limits.hang_seconds, on_message, on_end)
        names = ("input_tokens", "output_tokens", "truncate", "batch_tokens", "in_flight", "wait_ms")
        loaded = {name: getattr(settings, name) for name in ("path", "device", "precision", "engine", "seed", "index")}
        loaded["threads"] = threads_of(settings)
        shares = {name: getattr(limits, name) for name in names}
        shares["in_flight"] = -(-limits.in_flight // settings.workers)  # ceil: of each worker
        try:
            worker.send({"settings": loaded, "limits": shares})
            first = await worker._line()
        except BaseException:
            await worker.close()
            raise
        if "loaded" not in first:
            await worker.close()
            ended = f"the worker of {settings.path} ended while it loaded the model"
            raise ModelError(first.get("refused", ended))
        worker.description = Description(**first["loaded"])
        worker._tasks = [asyncio.create_task(worker._read()), asyncio.create_task(worker._ask())]
        return worker

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def works(self) -> bool:
        """Whether it answered the last question in time, by a forward pass over one token."""
        return self._unanswered is None or time.monotonic() - self._unanswered < SILENT_SECONDS

    def send(self, message: dict[str, object]) -> None:
        """Send a message; it is lost if the process has ended."""
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError, RuntimeError):
            self._process.stdin.write(encoded(message))

    async def close(self) -> None:
        """End the process."""
        self._closing = True
        for task in self._tasks:
            task.cancel()
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), _CLOSING_SECONDS)
        except TimeoutError:
            self._kill()
            await self._process.wait()

    async def _line(self) -> dict[str, Any]:
        """The next message; empty at the end, and where a line is too long, after which none can be read."""
        assert self._process.stdout is not None
        try:
            line = await self._process.stdout.readline()
        except ValueError:
            self._kill()
            await self._process.stdout.read()  # to the end of the pipe, which `wait` waits for
            return {}
        return decoded(line) if line else {}

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def _read(self) -> None:
        while message := await self._line():
            if "pong" in message:
                self._unanswered = None
            self._on_message(self, message)
        if not self._closing:
            self.has_ended = True
            await self._process.wait()
            self._tasks[1].cancel()
            self._on_end(self)

    async def _ask(self) -> None:
        number = 0
        while True:
            if self._unanswered is None:
                number, self._unanswered = number + 1, time.monotonic()
                self.send({"ping": number})
            elif time.monotonic() - self._unanswered > self._hang_seconds and not self.has_hung:
                self.has_hung = True
                self._kill()  # `_read` then meets the end of its messages
            await asyncio.sleep(PING_SECONDS)
