"""The checkpoints in a folder: listed, the newest or best selected and verified, leftovers removed. Needs no torch."""

import contextlib
import errno
import fcntl
import logging
import os
import re
import shutil
import uuid
from pathlib import Path
from typing import Literal, NamedTuple

from atento.base.errors import CheckpointError
from atento.storage.manifest import Manifest, read_json, read_manifest, verify

STATE = "state.json"
_STEP = re.compile(r"step-(\d{8,})(\.old)?")  # `.old`: while the same step is saved again
_LEFTOVER = re.compile(r"\.tmp-\d+-[0-9a-f]{32}|\.trash-step-\d{8,}(\.old)?-[0-9a-f]{32}")
_log = logging.getLogger(__name__)


class CheckpointFolder(NamedTuple):
    """A checkpoint directory with the step and the manifest it states; the manifest is None where it is damaged."""

    step: int
    path: Path
    manifest: Manifest | None


class SelectedCheckpoint(NamedTuple):
    """The checkpoint of a run that is used as its model, and why."""

    path: Path
    kind: Literal["best", "last", "averaged"]


def select_checkpoint(run: Path) -> SelectedCheckpoint | None:
    """The checkpoint that `load` reads of a run: the best, else the last; the averaged one where its score is higher.

    Only verified checkpoints count. A damaged one is reported once and not renamed.

    Returns:
        None where no checkpoint verifies.

    Raises:
        CheckpointError: the system does not allow reading.
    """
    reported: set[Path] = set()
    scored = best(run / "checkpoints", rename_damaged=False, reported=reported)
    path = scored or newest(run / "checkpoints", rename_damaged=False, reported=reported)
    if path is None:
        return None
    averaged = newest(run / "averaged", rename_damaged=False, reported=reported)
    if averaged is not None and _quality(averaged) > _quality(path):
        return SelectedCheckpoint(averaged, "averaged")
    return SelectedCheckpoint(path, "last" if scored is None else "best")


def _quality(path: Path, manifest: Manifest | None = None) -> list[float]:
    """The score of a verified checkpoint and what decides between equal ones; empty where it has none."""
    state = read_json(path, manifest or read_manifest(path), STATE)
    return [state["score"], *state.get("ties", [])] if isinstance(state.get("score"), int | float) else []


def newest(
    folder: Path, *, run_id: str | None = None, rename_damaged: bool = True, reported: set[Path] | None = None
) -> Path | None:
    """The checkpoint of the highest step that verifies; None where there is none.

    A checkpoint that another process replaces during the listing may be missed; a second listing catches it.

    Args:
        folder: the folder of checkpoints.
        run_id: only checkpoints of this run; None: of any.
        rename_damaged: rename a damaged checkpoint to `.bad`, besides reporting it. False for readers.
        reported: damaged checkpoints that were reported; those found here are added and not reported again.

    Raises:
        CheckpointError: the system does not allow reading, so that nothing is known of the checkpoints.
    """
    reported = set() if reported is None else reported
    candidates = list_checkpoints(folder, run_id)
    selected = _first_valid(candidates, rename_damaged, reported)
    lowest = selected.step if selected else 0
    later = [item for item in list_checkpoints(folder, run_id) if item not in candidates and item.step >= lowest]
    selected = _first_valid(later, rename_damaged, reported) or selected
    return selected.path if selected else None


def best(
    folder: Path, *, run_id: str | None = None, rename_damaged: bool = True, reported: set[Path] | None = None
) -> Path | None:
    """The checkpoint with the highest `score` in its state; None where none has a score.

    Of equal scores the highest `ties` decide, one after another; the earliest of those that are equal in all.
    Manifests and states are verified, and the whole content of the selected checkpoint alone. The arguments are those
    of `newest`.
    """
    reported = set() if reported is None else reported
    scored: list[tuple[list[float], int, CheckpointFolder]] = []
    for item in list_checkpoints(folder, run_id):
        try:
            quality = _quality(item.path, item.manifest or verify(item.path))
        except CheckpointError as error:
            _skip(item.path, error, rename_damaged, reported)
            continue
        if quality:
            scored.append((quality, -item.step, item))
    scored.sort(key=lambda one: one[:2], reverse=True)  # the highest first, of equals the earliest
    selected = _first_valid([item for *_, item in scored], rename_damaged, reported)
    return selected.path if selected else None


def list_checkpoints(folder: Path, run_id: str | None = None) -> list[CheckpointFolder]:
    """Every checkpoint directory, the highest step first; links and other names are ignored.

    Args:
        folder: the folder of checkpoints.
        run_id: only checkpoints of this run, and those whose manifest is damaged, whose step is that of their name.

    Raises:
        CheckpointError: the system does not allow reading.
    """
    items: list[tuple[int, bool, CheckpointFolder]] = []
    for path in _directories(folder):
        name = _STEP.fullmatch(path.name)
        if name is None:
            continue
        manifest = None
        try:
            manifest = read_manifest(path)
        except CheckpointError as error:
            _is_damaged(error)
        if run_id is None or manifest is None or manifest.run_id == run_id:
            step = manifest.step if manifest else int(name[1])
            items.append((step, name[2] is None, CheckpointFolder(step, path, manifest)))
    return [item for _, _, item in sorted(items, key=lambda item: item[:2], reverse=True)]


def clean(folder: Path) -> list[str]:
    """Remove leftovers of killed processes, and complete an interrupted replacement; call it under the `RunLock`.

    A directory that a living process still writes is locked by it and stays.

    Returns:
        The names removed.
    """
    removed = []
    for path in _directories(folder):
        name = _STEP.fullmatch(path.name)
        if name is not None and name[2]:
            replacement = folder / f"step-{name[1]}"
            if not replacement.exists():
                path.rename(replacement)
                continue
            try:
                verify(replacement)
            except CheckpointError:
                continue  # the old one may be the only valid one of this step
            discard(path)
        elif _LEFTOVER.fullmatch(path.name) and not is_in_use(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            continue
        removed.append(path.name)
    return removed


def discard(path: Path) -> None:
    """Delete a checkpoint. It is renamed first, so that no process reads a partly deleted one; `clean` removes
    leftovers.
    Raises OSError: it cannot be renamed, and is unchanged.
    """
    trash = path.with_name(f".trash-{path.name}-{uuid.uuid4().hex}")
    path.rename(trash)
    try:
        shutil.rmtree(trash)
    except OSError as error:
        _log.warning("%s could not be deleted (%s); the next start tries again", trash, error.strerror)


def is_in_use(path: Path) -> bool:
    """Whether a living process writes or reads this checkpoint directory."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # a file system without locks: the RunLock alone must do
    finally:
        os.close(fd)
    return False


def _directories(folder: Path) -> list[Path]:
    """The directories of a folder, links left out."""
    try:
        if not folder.is_dir():
            return []
        return [path for path in sorted(folder.iterdir()) if path.is_dir() and not path.is_symlink()]
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read ({error.strerror})") from error


def _first_valid(
    candidates: list[CheckpointFolder], rename_damaged: bool, reported: set[Path]
) -> CheckpointFolder | None:
    for item in candidates:
        try:
            verify(item.path)
            return item
        except CheckpointError as error:
            _skip(item.path, error, rename_damaged, reported)
    return None


def _is_damaged(error: CheckpointError) -> bool:
    """Whether the content is damaged; False if the disk failed. Raises the error if it shows neither."""
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.errno != errno.EIO:
        raise error  # too many open files, no permission: to continue with an older one would be a guess
    return not isinstance(cause, OSError)


def _skip(path: Path, error: CheckpointError, rename_damaged: bool, reported: set[Path]) -> None:
    """Report once a checkpoint that does not verify and, if its content is damaged, rename it to `.bad`."""
    if not path.is_dir():
        return  # retention deleted it meanwhile
    damaged = _is_damaged(error)
    if path not in reported:
        reported.add(path)
        _log.warning("%s; it is skipped", error)
    if not (damaged and rename_damaged):
        return
    number = 0
    while (bad := path.with_name(f"{path.name}.bad{number or ''}")).exists():
        number += 1
    try:
        verify(path)  # a valid replacement may have taken this name meanwhile
    except CheckpointError:
        with contextlib.suppress(OSError):  # a folder that is read-only
            path.rename(bad)
