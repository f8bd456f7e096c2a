"""What the launcher says to each process by environment variables, as torchrun sets them; a process ends with it."""

import os
import signal
import threading
import time


def rank() -> int:
    """The number of this process among all that train together, from 0; 0 if it trains alone."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """The number of processes that train together; 1 if no launcher started this one."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_rank() -> int:
    """The number of this process among those of its machine, from 0; it trains on that GPU."""
    return int(os.environ.get("LOCAL_RANK", str(rank())))


def launched() -> bool:
    """Whether a launcher started this process: torchrun, or `atento train --nproc`."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def restarted() -> bool:
    """Whether the launcher has started this process again after a failure."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


LAUNCHER = "ATENTO_LAUNCHER_PID"  # environment variable: the process that starts those of `--nproc`
_EVERY = 0.5  # seconds between two looks


def end_with_parent() -> None:
    """Send SIGTERM to this process, once, when its parent has ended, so that it saves a checkpoint and ends.

    A thread looks for the parent. Linux can send the signal by itself (`PR_SET_PDEATHSIG`), but it may come once for
    each thread of the parent, and a second SIGTERM ends a process that has not saved yet.
    Raises SystemExit: the launcher has ended already.
    """
    parent = int(os.environ.get(LAUNCHER, os.getppid()))
    if os.getppid() != parent:
        raise SystemExit(128 + signal.SIGTERM)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_EVERY)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
