"""The process that trains the trials of a search: it imports PyTorch once and forks a process for each trial.

Each trial has its own process, so that the search continues if the system ends the process for lack of memory, or if a
library crashes; and its memory is free afterwards. A forked process starts in milliseconds, an import of PyTorch takes
seconds. This process computes nothing itself, so there are no threads that a fork would lose. On macOS, whose libraries
do not permit a fork, it trains one trial itself and ends.

A line of JSON on standard input is a request. The answers on standard output are {"pid": ...}, the outcome of
`trained`, and {"status": ...}, negative for a signal. All processes end when standard input ends.
"""

import gc
import json
import os
import signal
import sys
import threading
from fractions import Fraction
from typing import Any

import torch._dynamo  # noqa: F401  the first optimizer of each trial would import it

from atento.base.errors import AtentoError, DataError, TrainingStopped
from atento.base.precision import resolve_device
from atento.runs.train import train


def main() -> None:
    """Serve requests until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    results = os.dup(1)
    os.dup2(2, 1)  # nothing else may write to the search
    gc.collect()
    gc.freeze()  # a collection in a trial would copy every page of what is imported
    while line := _line():
        forks = sys.platform != "darwin"
        pid = os.fork() if forks else 0
        if pid == 0:
            threading.Thread(target=_end_with_search, daemon=True).start()
            if not forks:
                _write(results, {"pid": os.getpid()})
            _write(results, trained(json.loads(line)))
            sys.stderr.flush()
            os._exit(0)
        _write(results, {"pid": pid})
        _write(results, {"status": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])})


def trained(request: dict[str, Any]) -> dict[str, Any]:
    """Return how training ended: `finished` and `step`, `stopped`, or `error` with `fatal` (for the search as well)."""
    try:
        resolve_device(request["device"])
    except AtentoError as error:
        return {"error": str(error), "fatal": True}
    try:
        result = train(
            request["recipe"],
            request["overrides"],
            out=request["folder"],
            device=request["device"],
            precision=request["precision"],
            threads=request["threads"],
            share=Fraction(request["share"]),
        )
    except TrainingStopped as error:
        return {"stopped": str(error)}
    except AtentoError as error:
        return {"error": str(error), "fatal": isinstance(error, DataError)}
    except MemoryError:
        return {"error": "out of memory"}
    except Exception as error:  # the next trial may do better
        text = (str(error).splitlines() or [""])[0]
        memory = any(words in text for words in ("out of memory", "can't allocate memory"))
        return {"error": f"out of memory: {text}" if memory else f"{type(error).__name__}: {text}"}
    return {"finished": result.finished, "step": result.step}


def _write(file: int, content: dict[str, object]) -> None:
    os.write(file, json.dumps(content).encode("utf-8") + b"\n")


def _line() -> bytes:
    """Read a line of standard input; empty at its end. It has no buffer, since the process of a trial reads it too."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 1)
        if not piece:
            return b""
        line += piece
    return line


def _end_with_search() -> None:
    """Wait for the end of standard input, which is the end of the search, however it ended."""
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
