"""Progress on standard error: a bar on a terminal, elsewhere a line every 30 seconds."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Self

from atento.base.terminal import echo

EVERY = 30.0  # seconds between two lines without a bar; shorter work prints nothing


class Progress:
    """Shows how much of a command's work is done and the estimated remaining time.

    Args:
        name: the name of the command.
        bar: draw a bar if standard error is a terminal.
    """

    def __init__(self, name: str, *, bar: bool = True) -> None:
        self.name = name
        self.started = self._last_line = time.monotonic()
        self._bar = _bar(name) if bar and sys.stderr.isatty() and os.environ.get("TERM") != "dumb" else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            with suppress(OSError, SystemExit):  # if the terminal is gone, rich would end the program
                self._bar.stop()

    def share(self, done: int, total: int) -> None:
        """Show progress of work with a known total, in any unit."""
        from atento.training.progress import duration

        part = done / max(1, total)
        left = duration((time.monotonic() - self.started) * (1 - part) / part) if part else "?"
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, total=total, description=f"{left} left")
        else:
            self._print(f"{self.name}: {part:.0%} done, {left} left")

    def count(self, amount: str) -> None:
        """Show progress of work with an unknown total, such as "2,048 lines"."""
        self._print(f"{self.name}: {amount} done")

    def _print(self, text: str) -> None:
        now = time.monotonic()
        if now - self._last_line >= EVERY:
            self._last_line = now
            with suppress(OSError):
                echo(text, err=True)


@contextmanager
def show_batches(name: str) -> Iterator[None]:
    """Show the progress of a model over many texts inside this context."""
    from atento.tasks.length_batching import batches_reported

    with Progress(name) as progress, batches_reported(progress.share):
        yield


def announce_stdin(*files: str | None) -> None:
    """Print a hint if a command reads standard input from a terminal."""
    if "-" in files and sys.stdin.isatty():
        echo("reading lines from the terminal; end with Ctrl-D, or give FILE to read a file", err=True)


def _bar(name: str) -> Any:
    """A progress bar that disappears at the end."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn(name),
        TaskProgressColumn(),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    bar = Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False)
    bar.add_task("", total=None)
    bar.start()
    bar.console.show_cursor(True)  # Ctrl-C ends the process at once, which would leave the cursor hidden
    return bar
