"""Processes that end with the launcher that has started them, also if it is killed."""

import ctypes
import os
import signal
import sys

LAUNCHER = "ATENTO_LAUNCHER_PID"  # environment variable: the process that starts those of `--nproc`
_PR_SET_PDEATHSIG = 1  # of Linux


def end_with_parent() -> None:
    """Let the system send SIGTERM to this process when its parent ends, so that it does not go on alone.

    On Linux alone; elsewhere, the processes of a killed launcher go on.

    Raises:
        SystemExit: the launcher has ended already.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.environ.get(LAUNCHER, str(os.getppid())) != str(os.getppid()):  # it ended before
        raise SystemExit(128 + signal.SIGTERM)
