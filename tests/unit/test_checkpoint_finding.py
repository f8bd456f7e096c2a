"""Finding checkpoints: newest, best and what is cleared away, whatever the disk and other processes do (R4, R8)."""

import errno
import logging
import os
import shutil
from pathlib import Path

import pytest

from atento.base.errors import CheckpointError
from atento.storage.checkpoint import best, clean, newest, prune
from atento.storage.checkpoint_list import is_in_use, list_checkpoints, select_checkpoint
from checkpoints import failing, names, save
from failing import fails


def steps(folder: Path) -> list[int]:
    return [item.step for item in list_checkpoints(folder)]


def test_newest_is_by_the_step_of_the_manifest_and_of_nothing_none(tmp_path: Path) -> None:
    for step in (123_456_789, 5, 99_999_999, 1_000_000_000):
        save(tmp_path, step)
    assert newest(tmp_path) == tmp_path / "step-1000000000"
    assert steps(tmp_path) == [1_000_000_000, 123_456_789, 99_999_999, 5]
    save(tmp_path / "named", 7).rename(tmp_path / "named" / "step-00000099")
    save(tmp_path / "named", 8)
    assert newest(tmp_path / "named") == tmp_path / "named" / "step-00000008" and steps(tmp_path / "named") == [8, 7]
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    assert newest(nothing) is None and best(nothing) is None and newest(nothing / "absent") is None
    save(nothing / "unscored", 1)
    assert best(nothing / "unscored") is None
    (nothing / "step-00000001").mkdir()
    assert newest(nothing, rename_damaged=False) is None


def test_best_is_the_highest_score_then_the_next_ones_then_the_earliest(tmp_path: Path) -> None:
    """Then the earliest; retention keeps that one, and an average that is better in a later score wins."""
    for step, ties in enumerate([(13.0, -2.0), (99.0, -0.2), (99.0, -0.1), (99.0, -0.1), (50.0, 0.0)], start=1):
        save(tmp_path / "checkpoints", step, score=0.0, ties=ties)
    assert best(tmp_path / "checkpoints") == tmp_path / "checkpoints" / "step-00000003"
    assert prune(tmp_path / "checkpoints", 1) == [1, 2, 4] and steps(tmp_path / "checkpoints") == [5, 3]
    save(tmp_path / "averaged", 5, score=0.0, ties=(99.0, -0.1))
    assert select_checkpoint(tmp_path) == (tmp_path / "checkpoints" / "step-00000003", "best")
    save(tmp_path / "averaged", 5, score=0.0, ties=(99.0, -0.09))
    assert select_checkpoint(tmp_path) == (tmp_path / "averaged" / "step-00000005", "averaged")
    for step, score in ((1, None), (2, -1.5), (3, 27), (4, 27.0), (5, 2.0), (6, None)):
        save(tmp_path, step, score=score)
    assert best(tmp_path) == tmp_path / "step-00000003"
    (tmp_path / "step-00000003" / "model.safetensors").write_bytes(b"")
    assert best(tmp_path) == tmp_path / "step-00000004"
    assert "step-00000003.bad" in names(tmp_path)


def test_newest_and_best_of_one_run_and_no_altered_score(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(tmp_path, 1, score=3.0, run_id="a")
    save(tmp_path, 2, score=9.0, run_id="b")
    save(tmp_path, 3, score=2.0, run_id="a")
    save(tmp_path, 4, score=1.0, run_id="b")
    assert newest(tmp_path) == tmp_path / "step-00000004"
    assert newest(tmp_path, run_id="a") == tmp_path / "step-00000003"
    assert best(tmp_path) == tmp_path / "step-00000002"
    assert best(tmp_path, run_id="a") == tmp_path / "step-00000001"
    assert newest(tmp_path, run_id="c") is None
    altered = tmp_path / "altered"
    save(altered, 1, score=2.0)
    state = save(altered, 2, score=1.0) / "state.json"
    state.write_bytes(state.read_bytes().replace(b"1.0", b"9.0"))
    with caplog.at_level(logging.WARNING):
        assert best(altered) == altered / "step-00000001"
    assert "state.json was altered" in caplog.text
    assert "step-00000002.bad" in names(altered)


def test_clean_takes_ours_alone_and_finishes_a_replacement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1)
    ours = [f".tmp-12-{'0' * 32}", f".trash-step-00000001-{'f' * 32}", f".trash-step-00000001.old-{'f' * 32}"]
    others = [".tmp", ".tmp-12", f".tmp-12-{'0' * 31}", f"tmp-12-{'0' * 32}"]
    others += ["notes", "step-1", ".trash-notes", "step-00000001.bad"]
    for name in ours + others:
        (tmp_path / name / "deep").mkdir(parents=True)
    (tmp_path / f".tmp-13-{'0' * 32}").write_bytes(b"a file, not ours")
    assert clean(tmp_path) == ours
    assert names(tmp_path) == sorted([*others, f".tmp-13-{'0' * 32}", "step-00000001"])
    assert clean(tmp_path / "absent") == []
    run = tmp_path / "run"
    path = save(run, 1)
    old = path.rename(run / "step-00000001.old")  # between the two renames
    assert newest(run) == old
    assert clean(run) == [] and newest(run) == path
    shutil.copytree(path, old)  # after them
    assert clean(run) == [old.name] and names(run) == [path.name]
    shutil.copytree(path, old)
    (path / "config.json").unlink()  # the new one is no good: the old one is kept
    assert clean(run) == [] and newest(run) == old
    save(run, 1)
    (save(run, 2) / "config.json").unlink()
    failing("rename", errno.EROFS, lambda call: True, monkeypatch)
    assert newest(run) == run / "step-00000001"


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EACCES])
def test_what_says_nothing_of_a_checkpoint_does_not_condemn_it(tmp_path: Path, code: int) -> None:
    """Too many open files must not make a run start again from an older step, or from none."""
    save(tmp_path, 1, score=1.0)
    save(tmp_path, 2, score=2.0)
    for look in (newest, best):
        failed = 0
        for at in range(100):
            with pytest.MonkeyPatch.context() as patch:
                calls = failing("open", code, lambda call, at=at: call == at, patch)
                try:
                    assert look(tmp_path) == tmp_path / "step-00000002"
                except CheckpointError as error:
                    failed += 1
                    assert os.strerror(code) in str(error)
            assert names(tmp_path) == ["step-00000001", "step-00000002"]
            if len(calls) <= at:
                break
        assert failed >= 6


def test_what_the_disk_cannot_read_is_not_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    real, second = os.open, (tmp_path / "step-00000002").stat().st_ino

    def broken(path, flags, *args, dir_fd=None, **kwargs):
        if path == "model.safetensors" and os.fstat(dir_fd).st_ino == second:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path, flags, *args, dir_fd=dir_fd, **kwargs)

    monkeypatch.setattr(os, "open", broken)
    assert newest(tmp_path) == tmp_path / "step-00000001"
    assert names(tmp_path) == ["step-00000001", "step-00000002"]


def test_an_unreadable_folder_is_an_error_in_use_means_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1)
    failing("listdir", errno.EACCES, lambda call: True, monkeypatch)
    failing("scandir", errno.EACCES, lambda call: True, monkeypatch)
    fails(CheckpointError, r"cannot be read .*Permission denied", newest, tmp_path)
    import fcntl

    path = save(tmp_path, 1)
    assert not is_in_use(path) and not is_in_use(tmp_path / "absent")
    fd = os.open(path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)
    assert is_in_use(path)
    os.close(fd)
    assert not is_in_use(path)
