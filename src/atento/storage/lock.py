"""The lock of a run folder: one trainer at a time; the system releases it when its process ends, however it ends."""

import contextlib
import fcntl
import json
import logging
import os
import socket
import time
from pathlib import Path

from atento.base.errors import UsageError

_log = logging.getLogger(__name__)
_locked: set[int] = set()  # descriptors of the locks of this process; forked children close them
_AGAIN = 3  # how often a lock is taken again whose file was removed


class RunLock:
    """A context manager that locks a folder for this process; a second process is refused, with the owner's name.

    The lock is `flock` on `folder/.lock`, so that a killed owner leaves nothing to remove; the content of the file only
    names the owner.

    Args:
        folder: made if it is missing.
        name: what messages call the folder.
    """

    def __init__(self, folder: Path, name: str = "run folder") -> None:
        self.folder, self._name = folder, f"{name} {folder}"
        self._fd: int | None = None

    def __enter__(self) -> "RunLock":
        """Acquire the lock.
        Raises UsageError: another process holds it (process, host and time are named), or the folder cannot be written.
        """
        path = self.folder / ".lock"
        fd = self._locked(path)
        for _ in range(
            _AGAIN
        ):  # an owner that was refused has removed its folder (`NewFolder`) after this opened the file
            with contextlib.suppress(OSError):
                if os.path.samestat(os.fstat(fd), path.stat()):
                    break
            os.close(fd)
            fd = self._locked(path)
        self._fd = fd
        _locked.add(fd)
        # on a full disk the lock holds without it
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
        with contextlib.suppress(OSError):
            os.ftruncate(fd, 0)
            os.pwrite(fd, json.dumps(owner).encode("utf-8") + b"\n", 0)
        return self

    def _locked(self, path: Path) -> int:
        """Open and lock the file, and return its descriptor."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise UsageError(f"{self._name} cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            try:
                about = json.loads(os.pread(fd, 4096, 0))
                owner = f"process {about['pid']} on {about['host']} since {about['since']}"
            except (OSError, ValueError, KeyError, TypeError):  # it may not have written it yet
                owner = "another process"
            os.close(fd)
            raise UsageError(f"{self._name} is in use by {owner}; wait for it, or give another folder") from None
        except OSError as error:
            # Some network file systems have no locks; training is possible there all the same.
            _log.warning("%s cannot be locked (%s): make sure that only one trainer uses it", path, error.strerror)
        return fd

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Release the lock. The file stays: two trainers could lock two files of one name if it were removed."""
        if self._fd in _locked:  # not in a forked child, which closed it at its start
            _locked.discard(self._fd)
            os.close(self._fd)
        self._fd = None


def _close_in_child() -> None:
    """In a forked child, close the parent's locks: a worker that outlives its trainer would hold them."""
    for fd in _locked:
        os.close(fd)
    _locked.clear()


os.register_at_fork(after_in_child=_close_in_child)
