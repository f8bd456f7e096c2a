"""One trainer a folder, with real processes: a second is refused by name, a killed owner leaves nothing behind (R8)."""

import fcntl
import os
import signal
import socket
import tempfile
import time
from pathlib import Path

import pytest

from atento.base.errors import UsageError
from atento.storage.lock import RunLock
from children import DONE, ended, in_child


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


def hold(folder: Path, ready: int) -> None:
    """Hold the lock for ever, after saying so."""
    with RunLock(folder):
        os.write(ready, b"1")
        time.sleep(600)


def test_r8_a_second_trainer_is_refused_and_the_owner_named(folder: Path) -> None:
    ready, say = os.pipe()
    pid = in_child(lambda: hold(folder, say))
    assert os.read(ready, 1) == b"1"
    since = rf"since {time.strftime('%Y-%m')}-\d\dT\d\d:\d\d:\d\dZ"
    with pytest.raises(UsageError, match=rf"use by process {pid} on {socket.gethostname()} {since}"), RunLock(folder):
        pass
    os.kill(pid, signal.SIGKILL)
    assert ended(pid) == -signal.SIGKILL
    with RunLock(folder):  # a killed owner leaves nothing to clear away
        assert f'"pid": {os.getpid()}' in (folder / ".lock").read_text(encoding="utf-8")
        with pytest.raises(UsageError, match=f"process {os.getpid()} "), RunLock(folder):
            pass
    with RunLock(folder):
        pass
    os.close(ready)
    os.close(say)


def test_r8_a_worker_that_outlives_its_trainer_does_not_keep_the_lock(folder: Path) -> None:
    ready, say = os.pipe()

    def trainer() -> None:
        with RunLock(folder):
            os.write(say, in_child(lambda: time.sleep(600)).to_bytes(4, "little"))
            time.sleep(600)

    pid = in_child(trainer)
    worker = int.from_bytes(os.read(ready, 4), "little")
    os.kill(pid, signal.SIGKILL)
    ended(pid)
    os.kill(worker, 0)  # still there
    with RunLock(folder):
        pass
    os.kill(worker, signal.SIGKILL)
    os.close(ready)
    os.close(say)


def test_r8_a_child_that_leaves_its_lock_does_not_release_it_and_an_owner_that_has_not_signed_yet(folder: Path) -> None:
    with RunLock(folder) as lock:
        pid = in_child(lambda: lock.__exit__(None, None, None))
        assert ended(pid) == DONE
        with pytest.raises(UsageError, match="in use by process"), RunLock(folder):
            pass
    with RunLock(folder):
        (folder / ".lock").write_bytes(b"")
        with pytest.raises(UsageError, match="in use by another process; wait for it"), RunLock(folder):
            pass


def test_r8_a_folder_that_cannot_be_written_is_refused() -> None:
    folder = Path(tempfile.mkdtemp())  # not tmp_path: its parents are closed to others
    folder.chmod(0o555)

    def attempt() -> None:
        if os.geteuid() == 0:
            os.setuid(65534)  # root may write anywhere
        with pytest.raises(UsageError, match=r"run folder .* cannot be written: Permission denied"), RunLock(folder):
            pass

    assert ended(in_child(attempt)) == DONE
    folder.rmdir()


def test_r8_the_lock_is_not_a_way_out_of_the_folder(folder: Path) -> None:
    folder.mkdir()
    (folder / "victim").write_bytes(b"precious")
    (folder / ".lock").symlink_to(folder / "victim")
    with pytest.raises(UsageError, match="cannot be written"), RunLock(folder):
        pass
    assert (folder / "victim").read_bytes() == b"precious"


def test_r8_no_locks_warns(folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def unsupported(fd: int, operation: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with RunLock(folder):
        assert "cannot be locked (Operation not supported)" in caplog.text
