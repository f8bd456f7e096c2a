"""Stop training by a signal: the first SIGTERM, SIGINT or SIGUSR1 stops it after the step, the second at once."""

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class StopRequest:
    """A context manager in which a first signal only sets `by`; outside the main thread it does nothing.

    Attributes:
        by: the signal that was received; None: no signal.
    """

    def __init__(self) -> None:
        self.by: signal.Signals | None = None
        self._previous_handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            self._previous_handlers = {number: signal.signal(number, self._handle) for number in STOP_SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.by is not None:  # the second signal has its default effect
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.by = signal.Signals(number)
