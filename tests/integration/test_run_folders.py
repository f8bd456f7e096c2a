"""The folder of a run: one trainer at a time, with real processes (R8), and what a refused command leaves in it."""

import fcntl
import os
import shutil
import signal
import socket
import tempfile
import time
from pathlib import Path

import pytest

from atento.base.errors import AtentoError, DataError, UsageError
from atento.storage.atomic_files import NewFolder
from atento.storage.lock import RunLock
from children import DONE, ended, in_child
from conftest import ForkServer, refused


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


def test_r8_a_second_trainer_is_refused_and_the_owner_named(folder: Path) -> None:
    ready, say = os.pipe()

    def hold() -> None:
        with RunLock(folder):
            os.write(say, b"1")
            time.sleep(600)

    pid = in_child(hold)
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
        assert ended(in_child(lambda: lock.__exit__(None, None, None))) == DONE
        with pytest.raises(UsageError, match="in use by process"), RunLock(folder):
            pass
    with RunLock(folder):
        (folder / ".lock").write_bytes(b"")
        with pytest.raises(UsageError, match="in use by another process; wait for it"), RunLock(folder):
            pass


def test_r8_a_folder_that_cannot_be_written_or_leads_out_of_it_is_refused() -> None:
    folder = Path(tempfile.mkdtemp())  # not tmp_path: its parents are closed to others
    folder.chmod(0o555)

    def attempt() -> None:
        if os.geteuid() == 0:
            os.setuid(65534)  # root may write anywhere
        with pytest.raises(UsageError, match=r"run folder .* cannot be written: Permission denied"), RunLock(folder):
            pass

    assert ended(in_child(attempt)) == DONE
    folder.chmod(0o700)
    (folder / "victim").write_bytes(b"precious")
    (folder / ".lock").symlink_to(folder / "victim")  # no way out of the folder
    with pytest.raises(UsageError, match="cannot be written"), RunLock(folder):
        pass
    assert (folder / "victim").read_bytes() == b"precious"
    shutil.rmtree(folder)


def test_r8_no_locks_warns(folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def unsupported(fd: int, operation: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with RunLock(folder):
        assert "cannot be locked (Operation not supported)" in caplog.text


def content(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


@pytest.mark.parametrize(
    ("setting", "out"),
    [
        ("data.train={file: none.tsv, source: 0, target: 1}", "run"),  # before the records are read
        ("data.valid={file: bad.tsv, source: 0, target: 1}", "deep/er/run"),  # while they are read
        ("network.vocab_size=999", "deep/run"),  # after the tokenizer was trained and saved
        ("init.model=none", "run"),
    ],
)
def test_a_refused_training_leaves_no_folder(server: ForkServer, place: Path, setting: str, out: str) -> None:
    (place / "bad.tsv").write_text("one column alone\n", encoding="utf-8")
    before = content(place)
    refused(server.run("train", "tiny.yaml", "--out", out, setting, cwd=place))
    assert content(place) == before


def test_a_refused_training_leaves_what_was_there(server: ForkServer, place: Path) -> None:
    (place / "empty").mkdir()
    wrong = ("network.vocab_size=999",)
    refused(server.run("train", "tiny.yaml", "--out", "empty", *wrong, cwd=place))
    assert (place / "empty").is_dir() and content(place / "empty") == set()
    server.good("train", "tiny.yaml", "--out", "run", "training.steps=1", cwd=place)
    before = content(place)
    refused(server.run("train", "tiny.yaml", "--out", "run", "training.learning_rate=1", cwd=place), "another recipe")
    assert content(place) == before
    again = server.run("train", "tiny.yaml", "--out", "run", "--force", *wrong, cwd=place)
    refused(again, "moved the old folder to run.old-1\n", "put run back\n")
    assert content(place) == before


def test_a_refused_command_on_a_cluster_leaves_no_folder(server: ForkServer, here: Path) -> None:
    (here / "bad.txt").write_bytes(b"good\nb\xffd\n")
    before = content(here)
    cluster = ("--cluster", "local", "--out", "new/parts", "--threads", "1", "--device", "cpu")
    refused(server.run("translate", "run", "bad.txt", *cluster, cwd=here), "bad.txt:2: not UTF-8")
    assert content(here) == before
    (here / "parts").mkdir()
    (here / "parts" / ".lock").touch()
    with (here / "parts" / ".lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = server.run("translate", "run", "train.tsv", *cluster[:3], "parts", *cluster[4:], cwd=here)
    refused(done, "error: --out parts is in use by another process; wait for it")
    assert content(here / "parts") == {".lock"}


def test_a_folder_with_results_another_failure_or_foreign_files_stays(tmp_path: Path) -> None:
    for name, begun, error, stays in (
        ("refused", False, DataError("line 7"), False),
        ("begun", True, DataError("line 7"), True),
        ("failed", False, AtentoError("the disk is full"), True),
        ("bug", False, ValueError("a bug"), True),
    ):
        folder = tmp_path / name
        with pytest.raises(type(error)), NewFolder(folder, lambda begun=begun: begun):
            folder.mkdir()
            (folder / "file").touch()
            raise error
        assert folder.exists() == stays, name
    new = NewFolder(tmp_path / "runs" / "ours", lambda: False)
    (tmp_path / "runs" / "ours").mkdir(parents=True)
    (tmp_path / "runs" / "theirs").mkdir()
    with pytest.raises(UsageError), new:
        raise UsageError("refused")
    assert content(tmp_path / "runs") == {"theirs"}


def test_a_lock_whose_folder_was_removed_is_taken_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between opening and locking the file, its owner was refused and removed it; two processes must not lock two."""
    real, folder = fcntl.flock, tmp_path / "run"

    def flock(fd: int, operation: int) -> None:
        if not (tmp_path / "moved").exists():
            folder.rename(tmp_path / "moved")
        real(fd, operation)

    monkeypatch.setattr("atento.storage.lock.fcntl.flock", flock)
    with RunLock(folder) as lock:
        assert lock._fd is not None and os.path.samestat(os.fstat(lock._fd), (folder / ".lock").stat())
        with pytest.raises(UsageError, match="in use by process"), RunLock(folder):
            pass
