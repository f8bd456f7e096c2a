"""Clients of a server in the benchmark of the service: each sends its next request when it has the last answer."""

import asyncio
import json
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np

from atento.base.errors import AtentoError
from atento.base.start_up import machine_environment
from benchmarks.serving_sides import Server

_START_SECONDS = 300
_END_SECONDS = 10
_PATIENCE = 4  # times the duration of a measurement: requests without an answer by then are given up


@dataclass
class Load:
    """What the clients saw: seconds of each answer, and of each request that was given up, which needs more."""

    answered: list[float] = field(default_factory=list)
    unanswered: list[float] = field(default_factory=list)
    failed: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Answers a second."""
        return len(self.answered) / self.seconds

    def milliseconds(self, percent: float) -> float:
        """A percentile of the latency; at least this where requests were given up."""
        latencies = self.answered + self.unanswered
        return float(1000 * np.percentile(latencies, percent)) if latencies else 0.0


class Started(NamedTuple):
    """A server that runs: its port and the number of its process."""

    port: int
    process: int


@contextmanager
def running(server: Server) -> Iterator[Started]:
    """Start a server on a free port, wait until it is ready, and end it, also where a signal ends this process.

    Raises:
        AtentoError: it ended, or was not ready in time.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [part.replace("PORT", str(port)) for part in server.command]
    before = {number: signal.signal(number, _unwind) for number in (signal.SIGINT, signal.SIGTERM)}
    process = subprocess.Popen(command, env=machine_environment() | server.environment, stdout=subprocess.DEVNULL)
    try:
        end = time.monotonic() + _START_SECONDS
        while not _is_ready(port, server.health):
            if process.poll() is not None or time.monotonic() > end:
                raise AtentoError(f"a server of the benchmark did not start: {' '.join(command)}")
            time.sleep(0.05)
        yield Started(port, process.pid)
    finally:
        process.terminate()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()  # it computes what was given up
            process.wait()
        for number, handler in before.items():
            signal.signal(number, handler)


def _unwind(number: int, frame: object) -> None:
    """End this process through what ends its servers and removes its files; at once, a signal would leave them."""
    raise SystemExit(128 + number)


def _is_ready(port: int, path: str) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


def replies(port: int, requests: Sequence[bytes]) -> list[object]:
    """The replies to requests that are sent one after the other, as JSON.

    Raises:
        AtentoError: a reply is an error.
    """

    async def send() -> list[object]:
        connection, values = _Connection(port), []
        for request in requests:
            status, content = await connection.answer(request)
            if status != 200:
                raise AtentoError(f"a server of the benchmark answered {status}: {content.decode(errors='replace')}")
            values.append(json.loads(content))
        connection.close()
        return values

    return asyncio.run(send())


def load(port: int, requests: Sequence[bytes], clients: int, seconds: float) -> Load:
    """Let clients send requests for some seconds, and wait for the last answers, though not for ever."""
    return asyncio.run(_load(port, requests, clients, seconds))


async def _load(port: int, requests: Sequence[bytes], clients: int, seconds: float) -> Load:
    result, begin = Load(), time.perf_counter()

    async def client(number: int) -> None:
        connection, turn = _Connection(port), number
        while (start := time.perf_counter()) - begin < seconds:
            try:
                async with asyncio.timeout(begin + _PATIENCE * seconds - start):
                    status, _ = await connection.answer(requests[turn % len(requests)])
            except TimeoutError:
                result.unanswered.append(time.perf_counter() - start)
                break
            if status == 200:
                result.answered.append(time.perf_counter() - start)
            else:
                result.failed += 1
            turn += clients
        connection.close()

    await asyncio.gather(*map(client, range(clients)))
    result.seconds = time.perf_counter() - begin
    return result


class _Connection:
    """A connection that stays open as long as the server allows it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def answer(self, request: bytes) -> tuple[int, bytes]:
        """Send a request; the status and the content of the answer."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
        fields = dict(line.split(": ", 1) for line in head[1:] if ": " in line)
        content = await reader.readexactly(int(fields["content-length"]))
        if fields.get("connection") == "close":
            self.close()
        return int(head[0].split()[1]), content

    def close(self) -> None:
        """Close it; the next request opens another."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None
