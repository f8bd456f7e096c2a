"""A run at the terminal: its progress as a bar and as lines of the log, and the signals that stop it."""

import contextlib
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import IO, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from atento.base.terminal import echo, printable

PACE_AFTER = 10.0  # seconds after which the pace is reported
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
LONG = 7200.0  # seconds of training that are worth a warning


class Reporter:
    """Reports a run on standard error and in its log file."""

    def __init__(
        self,
        total: int,
        done: int = 0,
        log: IO[str] | None = None,
        bar: bool | None = None,
        targets: str = "tokens",
        quiet: bool = False,
    ) -> None:
        """`total` and `done` are steps; `targets` is the noun for the targets of a step; `quiet`: report nothing."""
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.log, self.targets, self.quiet = log, targets, quiet
        self.total, self.started, self.first = total, time.monotonic(), done
        self.progress: Progress | None = None
        self._warm: tuple[int, float] | None = None  # first step and its time; it is slower than the others
        self._paced = False
        if not quiet and (self.console.is_terminal if bar is None else bar):
            columns = (
                TextColumn("step"),
                MofNCompleteColumn(),
                BarColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.description}"),
            )
            self.progress = Progress(*columns, console=self.console, transient=True)
            self.progress.start()
            self.console.show_cursor(True)  # a second Ctrl-C ends the process, and a hidden cursor would stay hidden
            self.task = self.progress.add_task("", total=total, completed=done)

    def line(self, text: str) -> None:
        """Write a line on the terminal, above the bar, and to the log.

        If standard error is closed, training continues, and only the log is written.
        """
        try:
            if self.progress is not None:
                self.console.print(printable(text), markup=False, emoji=False)
            elif sys.stderr is not None and not self.quiet:
                echo(text, err=True)
        except (OSError, SystemExit):  # rich ends the program on a closed pipe
            self.console.quiet = True
        self._write(text)

    def step(self, step: int) -> None:
        """Advance the bar to a step; after 10 seconds, report how long the run will take."""
        if self.progress is not None:
            self.progress.update(self.task, completed=step)
        now = time.monotonic()
        self._warm = self._warm or (step, now)
        if not self._paced and now - self.started >= PACE_AFTER:
            self._pace(step, tell=True)

    def _pace(self, step: int, tell: bool) -> None:
        """Report once how long the run will take, and warn if that is more than two hours."""
        self._paced = True
        per_step = self._per_step(step)
        left = per_step * (self.total - step)
        if tell and self.progress is None:
            self.line(f"step {step} of {self.total}: {per_step:.2g} s a step, about {duration(left)} left")
        if left > LONG:
            self.line(
                f"warning: about {duration(left)} of training are ahead; a smaller `network`, fewer `training.steps` "
                "or less `training.batch_tokens` shorten it"
            )

    def _per_step(self, step: int) -> float:
        """Seconds of a step so far, without the first one, which compiles kernels, where there are others."""
        begun, since = self._warm or (self.first, self.started)
        if step <= begun:  # the first step is all there is
            begun, since = self.first, self.started
        return (time.monotonic() - since) / max(1, step - begun)  # not the first, which is slower

    def event(self, event: dict[str, Any]) -> None:
        """Report an event: a train event beside the bar, or as a line without one; other events as a line."""
        text = describe(event, self.targets)
        measured = self._warm is not None and int(event["step"]) > self._warm[0]  # from the second step on
        if event["event"] == "train" and measured and not self._paced:
            self._pace(int(event["step"]), tell=False)
        if event["event"] == "train" and self.progress is not None:
            self.progress.update(self.task, description=text)
            self._write(text)
            return
        if event["event"] == "train":
            text = f"{text}, {duration(self._per_step(event['step']) * (self.total - event['step']))} left"
        self.line(text)

    def _write(self, text: str) -> None:
        if self.log is not None:
            try:
                self.log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
                self.log.flush()
            except OSError as error:  # a full disk must not stop a run
                echo(f"warning: the log cannot be written: {error}", err=True)
                self.log = None

    def close(self) -> None:
        """Remove the bar."""
        if self.progress is not None:
            with contextlib.suppress(OSError, SystemExit):
                self.progress.stop()


def describe(event: dict[str, object], targets: str = "tokens") -> str:
    """Return an event of `metrics.jsonl` as one line; `targets` is the unit that is counted per second."""
    if event["event"] == "train":
        losses = ", ".join(f"{name} {event[name]:.3f}" for name in ("loss", "nll") if name in event)
        return (
            f"step {event['step']}: {losses or 'no update'}, "
            f"learning rate {event['learning_rate']:.2e}, {event['tokens_per_second']:,.0f} {targets}/s"
        )
    if event["event"] == "sample":
        texts = {name: " ".join(str(event[name]).split()) for name in ("input", "output", "reference")}
        return f"step {event['step']}: sample" + "".join(f"\n  {name:<9} {text}" for name, text in texts.items())
    apart = ("event", "step", "loss", "nll", "seconds")
    scores = [f"{name} {value:.2f}" for name, value in event.items() if name not in apart]
    return f"step {event['step']}: validation nll {event['nll']:.3f}" + "".join(f", {score}" for score in scores)


def duration(seconds: float) -> str:
    """Format seconds: "5 h 31 min", "1 min 40 s", "8 s"."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"


class StopRequest:
    """A context manager in which a first signal only sets `by`, and the second one stops at once.

    Outside the main thread it does nothing.

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

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.by is not None:  # the second signal has its default effect
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.by = signal.Signals(number)
