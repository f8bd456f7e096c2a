"""The processes that work on users' texts, as the server sees them: one request each, ended when it passes a limit."""

import asyncio
import json
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from atento_serve.api.text_work import WORK, Asked
from atento_serve.http.errors import ServiceError, busy, late, too_long
from atento_serve.settings import Limits

SHORT = 2000  # characters of a request whose work takes milliseconds, and is done in this process
_KEPT = 2  # processes that wait for the next request
_LONGEST = 64 << 20  # bytes of a part of a message
Answer = Callable[[Asked], Awaitable[object]]
"""Answers what a piece of work asks for: what the models of the service do."""


class _TextProcess:
    """A process; `terms` is the glossary that it worked with last, `has_asked` whether it waits for an answer."""

    def __init__(self, process: Process) -> None:
        self._process, self.terms, self.has_asked = process, "", False

    def send(self, first: object, second: bytes = b"") -> None:
        """Send a message; it is lost if the process has ended."""
        data, stream = json.dumps(first).encode(), self._process.stdin
        assert stream is not None
        with suppress(ConnectionError, RuntimeError):
            stream.write(len(data).to_bytes(8, "little") + len(second).to_bytes(8, "little") + data + second)
        self.has_asked = False

    async def receive(self) -> tuple[Asked, bytes]:
        """The next message. Raises ServiceError: the process has ended."""
        stream = self._process.stdout
        assert stream is not None
        try:
            head = await stream.readexactly(16)
            sizes = int.from_bytes(head[:8], "little"), int.from_bytes(head[8:], "little")
            if max(sizes) > _LONGEST:
                raise too_long(f"the texts of an answer may have at most {_LONGEST:,} bytes")
            first, second = [await stream.readexactly(size) for size in sizes]
        except (asyncio.IncompleteReadError, ConnectionError):
            if await self._process.wait() == -signal.SIGPROF:
                raise too_long("the texts of the request take too much time of the processor") from None
            raise busy("the process that read the texts ended", 2, "worker_ended") from None
        message: Asked = json.loads(first)
        self.has_asked = "ask" in message
        return message, second

    def close(self) -> None:
        """End the process at once."""
        with suppress(ProcessLookupError):
            self._process.kill()


class TextProcesses:
    """The processes of a service, started when needed.

    Args:
        limits: of the service.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits, self._idle = limits, list[_TextProcess]()
        self._places = asyncio.Semaphore(limits.text_processes)
        self._waiting = 0

    async def run(self, work: str, given: Asked, content: bytes, answer: Answer, deadline: float) -> bytes:
        """The body that a piece of work ends with.

        Args:
            work: its name in `WORK`.
            given, content: what it takes; with the limits of the service.
            answer: called with what it asks for.
            deadline: the `time.monotonic()` at which it is ended.

        Raises:
            ServiceError: the request is refused; it passes a limit; too many others wait.
        """
        limits = self._limits
        most = {"segments": limits.segments, "unfolded_bytes": limits.unfolded_bytes}
        given |= {"work": work, "limits": most | {"input_tokens": limits.input_tokens, "texts": limits.texts}}
        if "q" in given and sum(map(len, given["q"])) + len(given["terms"]) <= SHORT:
            return await _here(work, given, answer)
        try:
            async with asyncio.timeout(deadline - time.monotonic()), self._place():
                return await self._in_process(given, content, answer)
        except TimeoutError:
            raise late(self._limits.deadline) from None

    def close(self) -> None:
        """End the processes that wait."""
        while self._idle:
            self._idle.pop().close()

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        """One of the places for requests. Raises ServiceError: as many wait as may."""
        if self._places.locked() and self._waiting >= self._limits.queue:
            raise busy(f"{self._limits.text_processes:,} requests with long texts are under way, and others wait", 2)
        self._waiting += 1
        try:
            await self._places.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._places.release()

    async def _started(self) -> _TextProcess:
        words = ("-m", "atento_serve.api.text_process", str(self._limits.text_memory), str(self._limits.text_seconds))
        # in a session of its own: Ctrl-C reaches the server alone
        started = asyncio.create_subprocess_exec(
            sys.executable, *words, stdin=PIPE, stdout=PIPE, start_new_session=True
        )
        return _TextProcess(await started)

    async def _in_process(self, given: Asked, content: bytes, answer: Answer) -> bytes:
        process = next((one for one in self._idle if one.terms == given["terms"]), None)  # it knows the glossary
        process = process or (self._idle[-1] if self._idle else await self._started())
        if process in self._idle:
            self._idle.remove(process)
        process.terms, is_kept = given["terms"], False
        process.send(given, content)
        try:
            while "ask" in (received := await process.receive())[0]:
                process.send(await answer(received[0]["ask"]))
            message, body = received
            is_kept = not message["is_last"]
            if "refused" in message:
                status, text, code, param = message["refused"]
                raise ServiceError(status, text, code, param=param)
            return body
        finally:
            if process.has_asked:  # the answer failed, or the client has gone: the process is told, and free
                process.send(None)
                is_kept = True
            if is_kept and len(self._idle) < _KEPT:
                self._idle.append(process)
            else:
                process.close()


async def _here(work: str, given: Asked, answer: Answer) -> bytes:
    """As `run`, in this process."""
    steps, found = WORK[work](given, b""), None
    while True:
        try:
            asked = steps.send(found)
        except StopIteration as end:
            body: bytes = end.value
            return body
        found = await answer(asked)
