"""The messages that a worker process gets from the server, read by a thread, so that compute never waits for them."""

import os
import threading
from collections import deque
from typing import Any, BinaryIO

from atento_serve.engine.messages import decoded


class Inbox:
    """The messages that have arrived on a stream; the process ends when the stream does."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._messages, self._arrived = stream, deque[dict[str, Any]](), threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def take(self, seconds: float | None) -> list[dict[str, Any]]:
        """The messages since the last call; if there are none, wait for one so many seconds (None: without end)."""
        if not self._messages and (seconds is None or seconds > 0):
            self._arrived.wait(seconds)
        self._arrived.clear()
        taken = []
        while self._messages:
            taken.append(self._messages.popleft())
        return taken

    def _read(self) -> None:
        while line := self._stream.readline():
            self._messages.append(decoded(line))
            self._arrived.set()
        os._exit(0)  # the server has ended, or has closed this worker
