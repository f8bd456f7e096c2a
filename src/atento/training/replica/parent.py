"""Processes that end with the launcher that has started them, also if it is killed."""

import os
import signal
import threading
import time

LAUNCHER = "ATENTO_LAUNCHER_PID"  # environment variable: the process that starts those of `--nproc`
_EVERY = 0.5  # seconds between two looks


def end_with_parent() -> None:
    """Send SIGTERM to this process, once, when its parent has ended, so that it saves a checkpoint and ends.

    A thread looks for the parent. Linux can send the signal by itself (`PR_SET_PDEATHSIG`), but it may come once for
    each thread of the parent, and a second SIGTERM ends a process that has not saved yet.

    Raises:
        SystemExit: the launcher has ended already.
    """
    parent = int(os.environ.get(LAUNCHER, os.getppid()))
    if os.getppid() != parent:
        raise SystemExit(128 + signal.SIGTERM)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_EVERY)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
