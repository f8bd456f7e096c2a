"""Run trials in processes of their own, and read their scores from their run folders."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from atento.base.errors import AtentoError, TrainingStopped, UsageError
from atento.base.processes import ended_by
from atento.runs.run_record import read_run
from atento.training.progress import STOP_SIGNALS, StopRequest
from atento_cli.search.result import Trial

_POLL = 0.1  # seconds


class TrialWorker:
    """A context manager that runs trials by a worker process (`worker.py`), which starts with the first trial.

    Args:
        stop: the signals that the search has received; the first is passed on to the trial.
        log: receives what trials write.
    """

    def __init__(self, stop: StopRequest, log: IO[bytes]) -> None:
        self.stop, self.log = stop, log
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "TrialWorker":
        return self

    def __exit__(self, *_: object) -> None:
        """End the worker, and with it a trial under way."""
        if self._process is not None:
            self._process.__exit__(None, None, None)  # closes its standard input and waits

    def ask(self, request: Mapping[str, object]) -> tuple[dict[str, Any], int]:
        """Train a trial; return what it answered, empty if it ended before, and its exit status."""
        process = self._process = self._process or subprocess.Popen(
            [sys.executable, "-m", "atento_cli.search.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            bufsize=0,
            start_new_session=True,  # Ctrl-C reaches the search alone, which passes it on once
        )
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(request).encode("utf-8") + b"\n")
        answer: dict[str, object] = {}
        pid, buffer = None, b""
        while True:
            if self.stop.by is not None and pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, self.stop.by)
                pid = None  # once: the second signal would end it without a checkpoint
            if not select.select([process.stdout], [], [], _POLL)[0]:
                continue
            piece = process.stdout.read(1 << 16)
            if not piece:  # the worker has ended
                self._process = None
                with process:
                    pass
                return answer, process.returncode
            buffer += piece
            *lines, buffer = buffer.split(b"\n")
            for message in map(json.loads, lines):
                if "status" in message:
                    return answer, int(message["status"])
                pid = message.get("pid", pid)
                answer = answer if "pid" in message else message


def run_trial(trainer: TrialWorker, trial: Trial, request: Mapping[str, Any], *, data_varies: bool) -> str | None:
    """Train a trial until the share of its steps that the request names, and set how it ended.

    Returns:
        Why it failed, as one sentence; None: it did not.

    Args:
        trainer: runs its process.
        request: recipe, overrides, folder, share, device, precision and threads, as plain data.
        data_varies: whether the data of trials differ, so that an error in them is that of the trial.

    Raises TrainingStopped: a signal stopped the trial; its checkpoint was saved, if training had begun. UsageError: the
    device or the data of the search are wrong, which no other trial would change.
    """
    answer, status = trainer.ask(request)
    stop = trainer.stop
    if "error" in answer:
        if answer.get("fatal") and not data_varies:
            raise UsageError(answer["error"])
        return str(answer["error"])
    ended = signal.Signals(-status) if status < 0 else None  # a negative status is the signal that ended it
    # the last case: stopped before it could say so
    if "stopped" in answer or (ended is not None and ended in STOP_SIGNALS) or (stop.by is not None and not answer):
        name = (stop.by or ended or signal.SIGTERM).name
        raise TrainingStopped(f"stopped by {name} in {request['folder']}; run the same command to resume")
    if not answer:
        if ended is None:
            return f"its process ended with status {status}; {trainer.log.name} says why"
        return f"its process was ended by {ended_by(-status)}"
    try:
        record, finished = read_run(Path(request["folder"])), bool(answer["finished"])
        used, best = record.in_use, record.best
        test = record.test if finished else None
    except AtentoError as error:
        return str(error)
    if finished and used is not None and used.score is not None:  # the averaged checkpoint may be better
        trial.score, trial.ties = used.score, used.ties
    elif best is not None:
        trial.score, trial.ties = best.value, best.ties
    else:
        return f"it has no finite validation score ({record.metric})"
    trial.state, trial.metric, trial.test = "finished" if finished else "paused", record.metric, test
    trial.step, trial.steps, trial.seconds = record.step, record.steps, record.seconds
    return None
