"""Finding checkpoints, whatever the disk and other processes do (R4, R8); those of shards, whichever process fails."""

import errno
import logging
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from atento.base.errors import AtentoError, CheckpointError
from atento.storage import shards as module
from atento.storage.average_weights import average_run
from atento.storage.checkpoint import best, clean, load_checkpoint, newest, prune
from atento.storage.checkpoint_list import is_in_use, list_checkpoints, select_checkpoint
from atento.storage.manifest import FileEntry, verify, write_file
from atento.storage.shards import save_shards
from atento.storage.writer import Writers
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


WEIGHTS = {"table": torch.arange(15.0).view(5, 3), "bias": torch.arange(2.0), "one": torch.ones(1, 4)}
COUNTERS = {"table.step": torch.tensor(7.0)}


class Threads:
    """Processes as threads, which wait for each other as the real ones do."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size)
        self.results: list[list[Any]] = []
        self.lock = threading.Lock()

    def on_all_processes(self, rank: int) -> Callable[[Callable[[], Any]], list[Any]]:
        turn = 0

        def do(work: Callable[[], Any]) -> list[Any]:
            nonlocal turn
            with self.lock:
                if len(self.results) == turn:
                    self.results.append([None] * self.size)
            results, turn = self.results[turn], turn + 1
            try:
                results[rank] = work()
            except Exception as error:
                results[rank] = error
            self.barrier.wait(10)
            errors = [result for result in results if isinstance(result, Exception)]
            if errors:
                raise results[rank] if isinstance(results[rank], Exception) else AtentoError(f"process: {errors[0]}")
            return results

        return do


def rows(tensors: dict[str, Tensor], rank: int, size: int) -> dict[str, Tensor]:
    """The rows of a process, as `torch.chunk` divides them; it gives fewer chunks than processes for few rows."""
    parts = {name: tensor.chunk(size) for name, tensor in tensors.items()}
    return {name: part[rank] if rank < len(part) else part[0][:0] for name, part in parts.items()}


def save_in_shards(folder: Path, step: int, size: int = 2, **changes: Tensor) -> list[BaseException | None]:
    """Save a checkpoint in so many threads; how each of them ended."""
    threads, ends = Threads(size), [None] * size
    weights = WEIGHTS | changes

    def work(rank: int) -> None:
        moments = {f"{name}.exp_avg": value / 2 for name, value in weights.items()}
        try:
            parts = {"weights": rows(weights, rank, size), "extra": {"tokenizer.json": b"{}"}}
            parts["optimizer"] = rows(moments, rank, size) | (COUNTERS if rank == 0 else {})
            place = Writers(rank == 0, rank, size, threads.on_all_processes(rank))
            about: Any = {"config": {"network": {}}, "state": {"score": float(step)}, "run_id": "run"}
            save_shards(folder, step, **about, **parts, writers=place)
        except BaseException as error:
            ends[rank] = error  # type: ignore[call-overload]

    workers = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return ends


@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_rows_of_all_shards_are_joined(tmp_path: Path, size: int) -> None:
    assert save_in_shards(tmp_path, 3, size) == [None] * size
    path = newest(tmp_path)
    assert path is not None
    names = {file.name for file in path.iterdir()}
    assert {f"model-{n:05d}-of-{size:05d}.safetensors" for n in range(1, size + 1)} < names
    assert "model.safetensors" not in names
    checkpoint = load_checkpoint(path)
    moments = {f"{name}.exp_avg": value / 2 for name, value in WEIGHTS.items()}
    for tensors, expected in ((checkpoint.weights, WEIGHTS), (checkpoint.optimizer, moments | COUNTERS)):
        assert tensors.keys() == expected.keys()
        assert all(torch.equal(tensors[name], value) for name, value in expected.items())


@pytest.mark.parametrize("file", ["model-00001-of-00002", "model-00002-of-00002", "optimizer-00002-of-00002"])
def test_a_flipped_bit_in_any_shard_is_noticed(tmp_path: Path, file: str) -> None:
    for step in (1, 2):
        assert save_in_shards(tmp_path, step) == [None, None]
    path = tmp_path / "step-00000002" / f"{file}.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 4
    path.write_bytes(content)
    fails(CheckpointError, f"{file}.safetensors was altered", load_checkpoint, path.parent)
    assert newest(tmp_path) == tmp_path / "step-00000001"


def test_a_shard_of_another_checkpoint_is_noticed_and_those_of_shards_are_averaged(tmp_path: Path) -> None:
    assert save_in_shards(tmp_path / "a", 1) == [None, None] and save_in_shards(
        tmp_path / "b", 1, bias=-torch.ones(2)
    ) == [None, None]
    name = "step-00000001/model-00002-of-00002.safetensors"
    (tmp_path / "a" / name).write_bytes((tmp_path / "b" / name).read_bytes())
    fails(CheckpointError, "was altered", load_checkpoint, tmp_path / "a" / "step-00000001")
    (tmp_path / "b" / name).unlink()
    fails(CheckpointError, r"00002-of-00002\.safetensors is", load_checkpoint, tmp_path / "b" / "step-00000001")
    for step in (1, 2):
        assert save_in_shards(tmp_path / "checkpoints", step, bias=torch.full((2,), float(step))) == [None, None]
    averaged = average_run(tmp_path, 2)
    weights = load_checkpoint(averaged.path).weights
    assert torch.equal(weights["bias"], torch.full((2,), 1.5)) and torch.equal(weights["table"], WEIGHTS["table"])
    assert {path.name for path in averaged.path.iterdir()} == {
        *("MANIFEST.json", "config.json", "state.json", "model.safetensors", "optimizer.safetensors", "tokenizer.json")
    }


@pytest.mark.parametrize("rank", [0, 1])
def test_a_full_disk_on_one_process_fails_on_all_and_leaves_the_last_checkpoint(tmp_path, monkeypatch, rank) -> None:
    assert save_in_shards(tmp_path, 1) == [None, None]
    full = f"model-{rank + 1:05d}-of-00002.safetensors"

    def on_a_full_disk(fd: int, name: str, chunks: Any) -> FileEntry:
        if name == full:
            raise OSError(errno.ENOSPC, "No space left on device", name)
        return write_file(fd, name, chunks)

    monkeypatch.setattr(module, "write_file", on_a_full_disk)
    ends = save_in_shards(tmp_path, 2)
    message = rf"cannot save step 2 .*No space left on device \({full}\).*the last good checkpoint is step 1"
    assert isinstance(ends[rank], CheckpointError) and isinstance(ends[1 - rank], AtentoError)
    for end in ends:
        with pytest.raises(AtentoError, match=message):
            raise end  # type: ignore[misc]
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


@pytest.mark.parametrize("early", [False, True])
def test_a_manifest_is_written_after_all_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, early: bool) -> None:
    """A process that ends while it writes leaves no checkpoint; one that reports its files before, a damaged one."""
    written = module._write

    def write(temporary: Path, files: Any) -> list[FileEntry]:
        if not any("-00002-of" in name for name in files):
            return written(temporary, files)
        if not early:
            raise OSError(errno.EPIPE, "the process was killed")
        entries = written(temporary, files)  # the planted bug: what is reported never comes to the disk
        for name in files:
            (temporary / name).unlink()
        return entries

    monkeypatch.setattr(module, "_write", write)
    monkeypatch.setattr(module, "_check_seen", lambda temporary, entries: None)
    save_in_shards(tmp_path, 1)
    if not early:
        assert list(tmp_path.iterdir()) == []
        return
    (broken,) = list_checkpoints(tmp_path)
    fails(CheckpointError, "is missing", verify, broken.path)


def test_a_folder_that_is_not_shared_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second process writes to a disk of its own."""
    written = module._write

    def write(temporary: Path, files: Any) -> list[FileEntry]:
        if any("-00002-of" in name for name in files):
            temporary = tmp_path / "own"
            temporary.mkdir()
        return written(temporary, files)

    monkeypatch.setattr(module, "_write", write)
    assert all("must be on a disk that all machines share" in str(end) for end in save_in_shards(tmp_path / "run", 1))
    assert list((tmp_path / "run").iterdir()) == []
