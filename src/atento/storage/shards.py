"""Checkpoints of sharded weights: each process writes the files of its shard, and the first one commits all."""

import os
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from atento.base.errors import CheckpointError
from atento.storage.checkpoint import (
    OPTIMIZER,
    WEIGHTS,
    Files,
    check_space,
    commit,
    json_files,
    part_name,
    refuse_other_run,
    retried,
    temporary_folder,
)
from atento.storage.manifest import FileEntry, directory, write_file
from atento.storage.tensorfile import Chunk, byte_size, safetensors_chunks, to_bytes
from atento.storage.writer import Writers


def save_shards(
    folder: Path,
    step: int,
    *,
    config: Mapping[str, object],
    weights: Mapping[str, Tensor],
    optimizer: Mapping[str, Tensor],
    state: Mapping[str, object],
    extra: Mapping[str, bytes],
    run_id: str,
    writers: Writers,
) -> Path:
    """Write `folder/step-00000500/` on all processes; they share the folder. See `checkpoint.save_checkpoint`.

    The manifest is written after all processes have written their files and synced them to the disk. So a checkpoint is
    complete at any time, whichever process ends.

    Args:
        folder, step, config, state, extra, run_id: as for one process; those of the first process count.
        weights, optimizer: the rows of each tensor that this process has; the first process also has the tensors that
            are not sharded.
        writers: this process among all.

    Raises CheckpointError: on all processes, if any of them fails. Nothing is left behind.
    """
    target = folder / f"step-{step:08d}"
    files: dict[str, list[Chunk]] = {}

    def prepare() -> list[int]:
        nonlocal files
        files = dict(json_files(step, config, state, extra)) if writers.main else {}
        if writers.shard is not None:
            for whole, tensors in ((WEIGHTS, weights), (OPTIMIZER, optimizer)):
                name = part_name(whole, writers.shard, writers.shards)
                files[name] = safetensors_chunks(name, tensors)
        return [byte_size(chunks) for chunks in files.values()]

    sizes = [size for own in writers.on_all_processes(prepare) for size in own]  # of all processes
    with ExitStack() as stack:
        opened: list[tuple[Path, int]] = []

        def begin() -> str:
            if not writers.main:
                return ""
            refuse_other_run(target, run_id)
            needed = check_space(folder, target, step, sizes)
            opened.append(retried(lambda: stack.enter_context(temporary_folder(folder, step)), target, step, needed))
            return opened[0][0].name

        temporary = folder / writers.on_all_processes(begin)[0]  # of the first process

        def write() -> list[list[Any]]:
            entries = retried(lambda: _write(temporary, files), target, step, sum(map(byte_size, files.values())))
            return [[entry.name, entry.size, entry.sha256] for entry in entries]

        entries = [FileEntry(*entry) for own in writers.on_all_processes(write) for entry in own]  # of all processes

        def finish() -> None:
            if writers.main:
                _check_seen(temporary, entries)
                try:
                    commit(*opened[0], target, step, run_id, entries)
                except OSError as error:
                    raise CheckpointError(f"cannot save step {step} to {target}: {error.strerror}") from error

        writers.on_all_processes(finish)
    return target


def _write(temporary: Path, files: Files) -> list[FileEntry]:
    """One attempt to write the files of this process. Raises OSError: it failed; none of them is left behind."""
    with directory(temporary) as fd:
        try:
            return [write_file(fd, name, to_bytes(chunks)) for name, chunks in files.items()]
        except OSError:
            for name in files:
                with suppress(OSError):
                    os.unlink(name, dir_fd=fd)
            raise


def _check_seen(temporary: Path, entries: list[FileEntry]) -> None:
    """Check that this process sees the files of all.
    Raises CheckpointError: it does not see one; the processes have no folder in common.
    """
    for entry in entries:
        path = temporary / entry.name
        if not path.is_file() or path.stat().st_size != entry.size:
            raise CheckpointError(
                f"{path} was written by another process, and the first one does not see it: the run folder must be on "
                "a disk that all machines share"
            )
