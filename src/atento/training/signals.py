"""Stopping politely: a first SIGTERM, SIGINT or SIGUSR1 asks to stop after the step, a second stops at once."""

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class StopRequest:
    """A context in which the signals only raise a flag; outside the main thread it watches nothing."""

    def __init__(self) -> None:
        self.by: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._ask) for number in STOPPING}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.by is not None:  # asked twice: do what the signal does to a process that handles nothing
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.by = signal.Signals(number)
