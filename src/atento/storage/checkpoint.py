"""Checkpoints: a directory for each step, written atomically, verified when read, of one file or several shards."""

import contextlib
import errno
import fcntl
import json
import logging
import math
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from atento.base.errors import CheckpointError, UsageError
from atento.storage.checkpoint_list import STATE, best, clean, discard, is_in_use, list_checkpoints, newest
from atento.storage.manifest import (
    JSON_LIMIT,
    MANIFEST,
    FileEntry,
    Manifest,
    directory,
    is_plain_name,
    read_json,
    read_manifest,
    sync,
    verify,
    write_file,
    write_manifest,
)
from atento.storage.tensorfile import Chunk, byte_size, read_safetensors, safetensors_chunks, to_bytes

__all__ = ["Checkpoint", "best", "clean", "load_checkpoint", "newest", "save_checkpoint"]

CONFIG, WEIGHTS, OPTIMIZER = "config.json", "model.safetensors", "optimizer.safetensors"
CHECKPOINT_FILES = (CONFIG, WEIGHTS, OPTIMIZER, STATE, MANIFEST)
_MARGIN = 1.2  # free space required, as a multiple of what will be written
_FULL = {errno.ENOSPC, errno.EDQUOT}
_BUSY = {errno.EAGAIN, errno.EINTR, errno.EBUSY, errno.ENFILE, errno.EMFILE}
_TRANSIENT = {errno.EIO, errno.ETIMEDOUT, errno.ESTALE, *_BUSY}
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors")  # of a checkpoint that several processes wrote
_PAUSES = (0.1, 0.5, 2.0)  # seconds before each further attempt
T = TypeVar("T")
Files = Mapping[str, list[Chunk]]
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """The content of a verified checkpoint: tensors on the CPU, `config` and `state` as JSON data."""

    step: int
    run_id: str
    config: dict[str, Any]
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    state: dict[str, Any]
    path: Path


def save_checkpoint(
    folder: Path,
    step: int,
    *,
    config: Mapping[str, object],
    weights: Mapping[str, Tensor],
    optimizer: Mapping[str, Tensor],
    state: Mapping[str, object],
    extra: Mapping[str, bytes] | None = None,
    run_id: str = "",
) -> Path:
    """Write `folder/step-00000500/`. At any time either the old state or the new one can be loaded.

    The files are written to `.tmp-<step>-<uuid>` beside it. Each file is fsynced, then the manifest, then the
    directory; one rename commits, and the parent is fsynced. A checkpoint of the same step is replaced only then.

    Args:
        folder: the run's `checkpoints` folder, created if it does not exist.
        config: JSON data, written as `config.json`.
        weights, optimizer: tensors by name, on any device; shared storage is written once for each name.
        state: JSON data. `step` is added; `score` (higher is better, None: not scored) decides `best`.
        extra: further files by name, such as `tokenizer.json`.
        run_id: the run that the checkpoint belongs to; retention deletes no other run's.

    Raises CheckpointError: a value that is not finite, a name or value that cannot be stored, too little free space, or
    the disk failed; the message names path, bytes needed and the last valid step. Nothing is left behind.
    """
    files = json_files(step, config, state, extra or {}) | {
        WEIGHTS: safetensors_chunks(WEIGHTS, weights),
        OPTIMIZER: safetensors_chunks(OPTIMIZER, optimizer),
    }
    target = folder / f"step-{step:08d}"
    refuse_other_run(target, run_id)
    needed = check_space(folder, target, step, [byte_size(chunks) for chunks in files.values()])

    def write() -> Path:
        with temporary_folder(folder, step) as (temporary, fd):
            entries = [write_file(fd, name, to_bytes(chunks)) for name, chunks in files.items()]
            commit(temporary, fd, target, step, run_id, entries)
        return target

    return retried(write, target, step, needed)


def retried(write: Callable[[], T], target: Path, step: int, needed: int) -> T:
    """Write, and try again if the disk fails for a moment or is full.
    Raises CheckpointError: it failed; the message names path, bytes needed and the last valid step.
    """
    for attempt in range(len(_PAUSES) + 1):
        try:
            return write()
        except (OSError, CheckpointError) as error:
            reason = error if isinstance(error, OSError) else error.__cause__
            if not isinstance(reason, OSError):
                raise
            if attempt >= (1 if reason.errno in _FULL else len(_PAUSES) if reason.errno in _TRANSIENT else 0):
                file_note = f" ({reason.filename})" if reason.filename else ""
                raise CheckpointError(
                    f"cannot save step {step} to {target}: {reason.strerror}{file_note}; "
                    f"{needed:,} bytes are needed; {_last_valid(target.parent)}"
                ) from reason
            _log.warning("saving step %d failed (%s), trying again", step, reason.strerror)
            time.sleep(_PAUSES[attempt])
    raise AssertionError("unreachable: the last attempt returns or raises")


def load_checkpoint(path: Path) -> Checkpoint:
    """Verify a checkpoint and read it, with its tensors on the CPU. Never falls back to another checkpoint.
    Raises CheckpointError: truncated, altered, incomplete or malformed; names the file and what is wrong.
    """
    with directory(path) as fd:
        with contextlib.suppress(OSError):  # a shared lock: retention does not delete what is being read
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        manifest = verify(path)
        config, state = (read_json(path, manifest, name) for name in (CONFIG, STATE))
        if state.get("step") != manifest.step:
            raise CheckpointError(
                f"checkpoint {path}: {STATE} says step {state.get('step')}, {MANIFEST} {manifest.step}"
            )
        weights, optimizer = (read_parts(path, fd, manifest, name) for name in (WEIGHTS, OPTIMIZER))
    return Checkpoint(manifest.step, manifest.run_id, config, weights, optimizer, state, path)


def is_own(name: str) -> bool:
    """Whether a file of a checkpoint is written by `save_checkpoint` itself, and none of its `extra` files."""
    return name in CHECKPOINT_FILES or _PART.fullmatch(name) is not None


def refuse_other_run(target: Path, run_id: str) -> None:
    """Raises CheckpointError: a checkpoint of this step is there and belongs to another run."""
    if not target.exists():
        return
    try:
        owner = read_manifest(target).run_id
    except CheckpointError:
        return  # damaged: it may be replaced
    if owner != run_id:
        raise CheckpointError(
            f"{target} belongs to another run ({owner!r}, this one is {run_id!r}); it is not replaced"
        )


def json_files(
    step: int, config: Mapping[str, object], state: Mapping[str, object], extra: Mapping[str, bytes]
) -> dict[str, list[Chunk]]:
    """The files without tensors as the chunks they are made of, all checked before anything is written."""
    if step < 0:
        raise CheckpointError(f"`step` must not be negative: got {step}")
    if state.get("step", step) != step:
        raise CheckpointError(f"`state['step']` must be the step that is saved: got {state['step']} and {step}")
    score = state.get("score")
    if score is not None and (isinstance(score, bool) or not isinstance(score, int | float)):
        raise CheckpointError(f"`state['score']` must be a number or None: got {score!r}")
    for name in extra:
        if not is_plain_name(name) or is_own(name):
            raise CheckpointError(
                f"extra file {name!r}: the name must match [A-Za-z0-9._-]+ and be none of a checkpoint's own"
            )
    return {
        CONFIG: [_json_bytes(CONFIG, dict(config))],
        STATE: [_json_bytes(STATE, {"score": None, **state, "step": step})],
        **{name: [content] for name, content in extra.items()},
    }


def _json_bytes(name: str, value: dict[str, object]) -> bytes:
    """The value as JSON; only tuples come back as something else, lists. Raises CheckpointError."""
    try:
        _check_plain(value, "")
        content = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False).encode("utf-8") + b"\n"
    except RecursionError:
        raise CheckpointError(f"{name} cannot be written: it is nested too deeply") from None
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{name} cannot be written: {error}") from None
    if len(content) > JSON_LIMIT:
        raise CheckpointError(f"{name} cannot be written: it has {len(content)} bytes, more than {JSON_LIMIT}")
    return content


def _check_plain(value: object, where: str) -> None:
    """Raises ValueError: NaN, infinity, or a key that is not text, which JSON would change silently."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"`{where}` is not finite: {value}")
    if isinstance(value, Mapping | list | tuple):
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            if isinstance(value, Mapping) and not isinstance(key, str):
                raise ValueError(f"the key {key!r} in `{where}` is not text")
            _check_plain(item, f"{where}.{key}" if where else str(key))


def check_space(folder: Path, target: Path, step: int, sizes: Sequence[int]) -> int:
    """The bytes that files of these sizes need. Raises CheckpointError: there is too little free space."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        block = max(os.statvfs(folder).f_frsize, 1)
        needed, free = sum(-(-size // block) * block for size in sizes) + 2 * block, _free_bytes(folder)
        if free is not None and free < needed * _MARGIN:
            clean(folder)  # leftovers of a killed process may take the space
            free = _free_bytes(folder)
    except OSError as error:
        raise CheckpointError(
            f"cannot save step {step} to {target}: {error.strerror}; {_last_valid(folder)}"
        ) from error
    if free is not None and free < needed * _MARGIN:
        raise CheckpointError(
            f"cannot save step {step} to {target}: {math.ceil(needed * _MARGIN):,} bytes are needed "
            f"({_MARGIN} times the checkpoint) and {free:,} are free; {_last_valid(folder)}"
        )
    return needed


def _free_bytes(folder: Path) -> int | None:
    """Bytes that can still be written there; None where the file system does not say."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize if status.f_blocks else None


def _last_valid(folder: Path) -> str:
    """The part of an error message that names the last valid checkpoint; changes nothing and never fails."""
    try:
        path = newest(folder, rename_damaged=False)
        return (
            f"the last good checkpoint is step {read_manifest(path).step}" if path else "there is no earlier checkpoint"
        )
    except (CheckpointError, OSError):
        return "the earlier checkpoints cannot be read now"


@contextlib.contextmanager
def temporary_folder(folder: Path, step: int) -> Iterator[tuple[Path, int]]:
    """A folder for the files of a checkpoint and its descriptor; deleted if it is not committed."""
    temporary = folder / f".tmp-{step}-{uuid.uuid4().hex}"
    try:
        temporary.mkdir()
        with directory(temporary) as fd:
            with contextlib.suppress(OSError):  # held until this process ends: `clean` checks it
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield temporary, fd
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def commit(temporary: Path, fd: int, target: Path, step: int, run_id: str, entries: Sequence[FileEntry]) -> None:
    """Write the manifest of all files, and let the folder have its name.
    Raises OSError: it failed; the checkpoint of before is there.
    """
    old = target.with_name(target.name + ".old")
    try:
        write_manifest(temporary, step=step, run_id=run_id, entries=entries)
        sync(fd)
        if target.exists():  # two renames; `list_checkpoints` knows both names, so one of them is always there
            if old.exists():
                discard(target)
            else:
                target.rename(old)
        temporary.rename(target)
        with directory(target.parent) as parent:
            sync(parent)
    except BaseException:
        if old.exists() and not target.exists():
            with contextlib.suppress(OSError):  # `newest` finds it under either name
                old.rename(target)
        raise
    if old.exists():
        with contextlib.suppress(OSError):
            discard(old)


def prune(folder: Path, keep: int, protect: Collection[int] = frozenset(), *, run_id: str | None = None) -> list[int]:
    """Delete checkpoints of one run beyond the `keep` newest, and return their steps, oldest first.

    The newest that verifies, the best that verifies, the steps of `protect` and checkpoints that are being read are
    retained, so that up to `keep` + 1 + len(protect) remain. The order is that of the steps in the manifests; names and
    times are not used. A checkpoint that cannot be deleted is retained with a warning.

    Args:
        folder: the run's `checkpoints` folder.
        keep: how many of the newest to retain.
        protect: steps to retain.
        run_id: whose checkpoints; None: those of the run that the newest belongs to. Others are never deleted.

    Raises UsageError: `keep` is below 1. CheckpointError: the system does not allow reading.
    """
    if keep < 1:
        raise UsageError(f"`keep` must be at least 1: got {keep}")
    last = newest(folder, run_id=run_id, rename_damaged=False)
    if last is None:
        return []  # none verifies, so none may be deleted
    run = read_manifest(last).run_id
    first = best(folder, run_id=run, rename_damaged=False)
    found = list_checkpoints(folder, run)
    checkpoints = [item for item in found if item.manifest is not None and not item.path.name.endswith(".old")]
    deleted = []
    for item in reversed(checkpoints[keep:]):
        if item.path in (last, first) or item.step in protect or is_in_use(item.path):
            continue
        try:
            discard(item.path)
        except OSError as error:
            _log.warning("%s could not be deleted (%s)", item.path, error.strerror)
        else:
            deleted.append(item.step)
    return deleted


def part_name(name: str, shard: int, shards: int) -> str:
    """The name of the file of a shard, counted from 0: `model-00001-of-00002.safetensors` of `model.safetensors`."""
    return f"{name.removesuffix('.safetensors')}-{shard + 1:05d}-of-{shards:05d}.safetensors"


def read_parts(path: Path, directory_fd: int, manifest: Manifest, name: str) -> dict[str, Tensor]:
    """The tensors of `name`, or of the files of all shards of it.

    A tensor of all files is divided: each has some of its rows, in order. A tensor of the first file alone is whole.
    Raises CheckpointError: neither is part of the checkpoint, one of the files is missing, or a file is malformed.
    """
    if manifest.entry(name) is not None:
        return read_safetensors(path, directory_fd, name)
    matches = [match for entry in manifest.files if (match := _PART.fullmatch(entry.name))]
    counts = {int(match[3]) for match in matches if f"{match[1]}.safetensors" == name}
    files = [part_name(name, shard, shards) for shards in sorted(counts)[:1] for shard in range(shards)]
    for file in files:
        if manifest.entry(file) is None or len(counts) > 1:
            raise CheckpointError(f"checkpoint {path}: the shards of {name} are not complete: {file} is missing")
    if not files:
        raise CheckpointError(
            f"checkpoint {path}: {name} is not part of it; a checkpoint has it, or a file for each of its shards"
        )
    first, *others = (read_safetensors(path, directory_fd, file) for file in files)
    for file, tensors in zip(files[1:], others):
        if unexpected := sorted(tensors.keys() - first.keys()):
            raise CheckpointError(f"checkpoint {path}: {file} has the tensor {unexpected[0]!r}, and {files[0]} has not")
    joined = {}
    for key, tensor in first.items():
        rows = [tensors[key] for tensors in others if key in tensors]
        if len(rows) not in (0, len(others)):
            raise CheckpointError(f"checkpoint {path}: the tensor {key!r} is missing in some of the files of {name}")
        try:
            joined[key] = torch.cat([tensor, *rows]) if rows else tensor
        except RuntimeError as error:
            raise CheckpointError(f"checkpoint {path}: the rows of {key!r} do not fit together: {error}") from None
    return joined
