"""Checkpoints of shards: joined when they are read, complete whichever process fails, and averaged as others."""

import errno
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
from atento.storage.checkpoint import load_checkpoint
from atento.storage.checkpoint_list import list_checkpoints, newest
from atento.storage.manifest import FileEntry, verify, write_file
from atento.storage.shards import save_shards
from atento.storage.writer import Writers
from failing import fails

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


def save(folder: Path, step: int, size: int = 2, **changes: Tensor) -> list[BaseException | None]:
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
    assert save(tmp_path, 3, size) == [None] * size
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
        assert save(tmp_path, step) == [None, None]
    path = tmp_path / "step-00000002" / f"{file}.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 4
    path.write_bytes(content)
    fails(CheckpointError, f"{file}.safetensors was altered", load_checkpoint, path.parent)
    assert newest(tmp_path) == tmp_path / "step-00000001"


def test_a_shard_of_another_checkpoint_is_noticed_and_those_of_shards_are_averaged(tmp_path: Path) -> None:
    assert save(tmp_path / "a", 1) == [None, None] and save(tmp_path / "b", 1, bias=-torch.ones(2)) == [None, None]
    name = "step-00000001/model-00002-of-00002.safetensors"
    (tmp_path / "a" / name).write_bytes((tmp_path / "b" / name).read_bytes())
    fails(CheckpointError, "was altered", load_checkpoint, tmp_path / "a" / "step-00000001")
    (tmp_path / "b" / name).unlink()
    fails(CheckpointError, r"00002-of-00002\.safetensors is", load_checkpoint, tmp_path / "b" / "step-00000001")
    for step in (1, 2):
        assert save(tmp_path / "checkpoints", step, bias=torch.full((2,), float(step))) == [None, None]
    averaged = average_run(tmp_path, 2)
    weights = load_checkpoint(averaged.path).weights
    assert torch.equal(weights["bias"], torch.full((2,), 1.5)) and torch.equal(weights["table"], WEIGHTS["table"])
    assert {path.name for path in averaged.path.iterdir()} == {
        *("MANIFEST.json", "config.json", "state.json", "model.safetensors", "optimizer.safetensors", "tokenizer.json")
    }


@pytest.mark.parametrize("rank", [0, 1])
def test_a_full_disk_on_one_process_fails_on_all_and_leaves_the_last_checkpoint(tmp_path, monkeypatch, rank) -> None:
    assert save(tmp_path, 1) == [None, None]
    full = f"model-{rank + 1:05d}-of-00002.safetensors"

    def on_a_full_disk(fd: int, name: str, chunks: Any) -> FileEntry:
        if name == full:
            raise OSError(errno.ENOSPC, "No space left on device", name)
        return write_file(fd, name, chunks)

    monkeypatch.setattr(module, "write_file", on_a_full_disk)
    ends = save(tmp_path, 2)
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
    save(tmp_path, 1)
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
    assert all("must be on a disk that all machines share" in str(end) for end in save(tmp_path / "run", 1))
    assert list((tmp_path / "run").iterdir()) == []
