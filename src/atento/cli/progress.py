"""What a person sees of work under way: a bar on a terminal, now and then a line elsewhere; all on standard error."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Self

import typer

EVERY = 30.0  # seconds between two lines where no bar is drawn: shorter work says nothing


class Progress:
    """How much of a command's work is done, and how long the rest will take if it goes on like that.

    Args:
        what: the name of the command.
        bar: draw a bar if standard error is a terminal.
    """

    def __init__(self, what: str, *, bar: bool = True) -> None:
        self.what = what
        self.started = self.told = time.monotonic()
        self._bar = _bar(what) if bar and _is_terminal() else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            with suppress(OSError, SystemExit):  # whoever watched has gone: rich would end the program
                self._bar.stop()

    def share(self, done: int, total: int) -> None:
        """So much of the total is done, in whatever unit the work grows by."""
        from atento.training.progress import duration

        part = done / max(1, total)
        left = duration((time.monotonic() - self.started) * (1 - part) / part) if part else "?"
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, total=total, description=f"{left} left")
        else:
            self._tell(f"{self.what}: {part:.0%} done, {left} left")

    def count(self, said: str) -> None:
        """What is done of work that has no known end, such as "2,048 lines"."""
        self._tell(f"{self.what}: {said} done")

    def _tell(self, text: str) -> None:
        now = time.monotonic()
        if now - self.told >= EVERY:
            self.told = now
            with suppress(OSError):
                typer.echo(text, err=True)


@contextmanager
def batches_shown(what: str) -> Iterator[None]:
    """Inside, what a model does to many texts is shown batch by batch."""
    from atento.tasks.grouping import batches_reported

    with Progress(what) as progress, batches_reported(progress.share):
        yield


def tell_waiting(*files: str | None) -> None:
    """Say so where a command is about to read what is typed at a terminal, and seems to hang."""
    if "-" in files and sys.stdin.isatty():
        typer.echo("reading what you type, a line each; Ctrl-D ends it, and FILE reads a file instead", err=True)


def _is_terminal() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def _bar(what: str) -> Any:
    """A bar that is taken away at the end."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn(what),
        TaskProgressColumn(),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    bar = Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False)
    bar.add_task("", total=None)
    bar.start()
    bar.console.show_cursor(True)  # Ctrl-C ends the process at once, and a hidden cursor would stay hidden
    return bar
