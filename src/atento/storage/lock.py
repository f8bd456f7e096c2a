"""One trainer a run folder: a lock that the system takes back when its owner dies, however it dies."""

import contextlib
import fcntl
import json
import logging
import os
import socket
import time
from pathlib import Path
from types import TracebackType

from atento.errors import UsageError

_log = logging.getLogger(__name__)
_held: set[int] = set()  # descriptors of the locks of this process, for its forked children to close


class RunLock:
    """Holds a run folder for this process, as a context manager; a second trainer is refused, the owner named.

    The lock is `flock` on `folder/.lock`, so a killed owner leaves nothing to clear away; the file only says who.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._fd: int | None = None

    def __enter__(self) -> "RunLock":
        """Take the lock.

        Raises:
            UsageError: another process holds it (process, host and time are named), or the folder cannot be written.
        """
        path = self.folder / ".lock"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise UsageError(f"run folder {self.folder} cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = _owner(fd)
            os.close(fd)
            raise UsageError(
                f"run folder {self.folder} is in use by {owner}; wait for it, or give another folder"
            ) from None
        except OSError as error:
            # Some network file systems know no locks; refusing to train there would help nobody.
            _log.warning("%s cannot be locked (%s): see to it that only one trainer works there", path, error.strerror)
        self._fd = fd
        _held.add(fd)
        _sign(fd)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the lock back. The file stays: taking it away could let two trainers lock two files of one name."""
        if self._fd in _held:  # not in a forked child, which gave it back at birth
            _held.discard(self._fd)
            os.close(self._fd)
        self._fd = None


def _sign(fd: int) -> None:
    """Say who holds the lock; on a full disk it is held all the same."""
    owner = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    with contextlib.suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps(owner).encode("utf-8") + b"\n", 0)


def _owner(fd: int) -> str:
    """The owner as it signed; it may just be about to."""
    try:
        owner = json.loads(os.pread(fd, 4096, 0))
        return f"process {owner['pid']} on {owner['host']} since {owner['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


def _forget() -> None:
    """In a forked child: let go of the parent's locks, or a worker that outlives its trainer would keep them."""
    for fd in _held:
        os.close(fd)
    _held.clear()


os.register_at_fork(after_in_child=_forget)
