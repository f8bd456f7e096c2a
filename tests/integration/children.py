"""Work in forked children, and how they end."""

import os
from collections.abc import Callable

DONE, FAILED = 0, 3


def in_child(work: Callable[[], object]) -> int:
    """Start `work` in a forked child; its exit status tells how it ended."""
    pid = os.fork()
    if pid == 0:
        status = FAILED
        try:
            work()
            status = DONE
        finally:
            os._exit(status)
    return pid


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
