"""Logs: one JSON object a line on standard error, with lengths and times; users' texts only if allowed."""

import json
import time
from contextlib import suppress

from atento.base.terminal import echo


class Log:
    """Writes events.

    Args:
        texts: whether bodies of requests are logged as well.
        quiet: whether requests that succeed are left out.
    """

    def __init__(self, *, texts: bool = False, quiet: bool = False) -> None:
        self.texts, self._quiet = texts, quiet

    def event(self, name: str, **values: object) -> None:
        """Write one event with the time in UTC; values that are None are left out."""
        now = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"
        fields = {"time": stamp, "event": name} | {key: value for key, value in values.items() if value is not None}
        with suppress(OSError, ValueError):  # standard error is closed; the service goes on
            echo(json.dumps(fields, ensure_ascii=False), err=True)

    def request(self, status: int, **values: object) -> None:
        """Write the event of one request."""
        if status >= 400 or not self._quiet:
            self.event("request", status=status, **values)
