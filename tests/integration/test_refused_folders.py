"""What a refused command leaves: nothing in a folder of its own, and everything in a folder that was there before."""

import fcntl
import os
from pathlib import Path

import pytest

from atento.base.errors import AtentoError, DataError, UsageError
from atento.storage.atomic_files import NewFolder
from atento.storage.lock import RunLock
from conftest import ForkServer, refused
from test_replicas import train


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


def test_a_refused_training_of_several_processes_leaves_no_folder(server: ForkServer, place: Path) -> None:
    before = content(place)
    shard = ("training.parallel.shard=2", "training.scheduled_sampling.share=0.5")
    refused(train(server, 2, "--out", "run", *shard, cwd=place)[0], "weights outside of a pass")
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
