"""Which checkpoints a folder holds: `newest` and `best` from verified manifests, left-overs cleaned. No torch."""

import contextlib
import errno
import fcntl
import logging
import os
import re
import shutil
import uuid
from pathlib import Path
from typing import NamedTuple

from atento.errors import CheckpointError
from atento.storage.manifest import Manifest, read_json, read_manifest, verify

STATE = "state.json"
_STEP = re.compile(r"step-(\d{8,})(\.old)?")  # `.old`: while the same step is saved again
_LEFT_OVER = re.compile(r"\.tmp-\d+-[0-9a-f]{32}|\.trash-step-\d{8,}(\.old)?-[0-9a-f]{32}")
_log = logging.getLogger(__name__)


class Found(NamedTuple):
    """A checkpoint directory as its manifest tells it; `manifest` None where that cannot be read."""

    step: int
    path: Path
    manifest: Manifest | None


class Choice(NamedTuple):
    """The checkpoint of a run that is used as its model, and what it is: best, last or averaged."""

    path: Path
    word: str


def chosen(run: Path) -> Choice | None:
    """What `load` takes of a run folder: its best checkpoint, else its last; the averaged one where it scores higher.

    Nothing is renamed. A damaged checkpoint is reported once. None: there is no checkpoint that verifies.

    Raises:
        CheckpointError: the system does not let us read.
    """
    told: set[Path] = set()
    top = best(run / "checkpoints", set_aside=False, told=told)
    path = top or newest(run / "checkpoints", set_aside=False, told=told)
    if path is None:
        return None
    averaged = newest(run / "averaged", set_aside=False, told=told)
    if averaged is not None and _score(averaged) > _score(path):
        return Choice(averaged, "averaged")
    return Choice(path, "last" if top is None else "best")


def _score(path: Path) -> float:
    """The score of a verified checkpoint; minus infinity where it has none."""
    score = read_json(path, read_manifest(path), STATE).get("score")
    return float(score) if isinstance(score, int | float) else float("-inf")


def newest(
    folder: Path, *, run_id: str | None = None, set_aside: bool = True, told: set[Path] | None = None
) -> Path | None:
    """The checkpoint of the highest step that verifies, or None: the word `last`.

    One that is being replaced while we look may slip between two names of a listing: a second look catches it.

    A damaged one is reported, renamed `.bad` (unless `set_aside` is False, for those who only look) and the next older
    taken. With `run_id`, only that run's. `told` collects what was reported, so that a second search says nothing new.

    Raises:
        CheckpointError: the system does not let us read, so nothing can be said of what is there.
    """
    told = set() if told is None else told
    items = found(folder, run_id)
    choice = _first_sound(items, set_aside, told)
    least = choice.step if choice else 0
    come = [item for item in found(folder, run_id) if item not in items and item.step >= least]
    choice = _first_sound(come, set_aside, told) or choice
    return choice.path if choice else None


def best(
    folder: Path, *, run_id: str | None = None, set_aside: bool = True, told: set[Path] | None = None
) -> Path | None:
    """The checkpoint with the highest `score` in its state, the earliest of equals, or None where none is scored.

    Only manifests, states and the choice itself are verified; a damaged choice is treated as by `newest`.
    """
    told = set() if told is None else told
    scored: list[tuple[float, Found]] = []
    for item in found(folder, run_id):
        try:
            score = read_json(item.path, item.manifest or verify(item.path), STATE).get("score")
        except CheckpointError as error:
            _pass_over(item.path, error, set_aside, told)
            continue
        if isinstance(score, int | float):
            scored.append((score, item))
    scored.sort(key=lambda pair: (-pair[0], pair[1].step))
    choice = _first_sound([item for _, item in scored], set_aside, told)
    return choice.path if choice else None


def found(folder: Path, run_id: str | None = None) -> list[Found]:
    """Every checkpoint directory, the highest step of its manifest first; links and other names are passed over.

    With `run_id`, those of that run, and those whose manifest is damaged (by the step in their name).

    Raises:
        CheckpointError: the system does not let us read.
    """
    items: list[tuple[int, bool, Found]] = []
    for path in _directories(folder):
        named = _STEP.fullmatch(path.name)
        if named is None:
            continue
        manifest = None
        try:
            manifest = read_manifest(path)
        except CheckpointError as error:
            _is_damaged(error)
        if run_id is None or manifest is None or manifest.run_id == run_id:
            step = manifest.step if manifest else int(named[1])
            items.append((step, named[2] is None, Found(step, path, manifest)))
    return [item for _, _, item in sorted(items, key=lambda item: item[:2], reverse=True)]


def clean(folder: Path) -> list[str]:
    """Remove what killed runs left half done and finish a replacement cut short; for the start, under the `RunLock`.

    A directory that a living process still writes is locked by it and stays. Returns the names removed.
    """
    removed = []
    for path in _directories(folder):
        named = _STEP.fullmatch(path.name)
        if named is not None and named[2]:
            whole = folder / f"step-{named[1]}"
            if not whole.exists():
                path.rename(whole)
                continue
            try:
                verify(whole)
            except CheckpointError:
                continue  # the old one may be the only good one of this step
            discard(path)
        elif _LEFT_OVER.fullmatch(path.name) and not is_in_use(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            continue
        removed.append(path.name)
    return removed


def discard(path: Path) -> None:
    """Delete a checkpoint so that it is never seen half deleted: renamed first; what stays of it, `clean` removes.

    Raises:
        OSError: it could not even be renamed, and stands as it was.
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


def _first_sound(items: list[Found], set_aside: bool, told: set[Path]) -> Found | None:
    for item in items:
        try:
            verify(item.path)
            return item
        except CheckpointError as error:
            _pass_over(item.path, error, set_aside, told)
    return None


def _is_damaged(error: CheckpointError) -> bool:
    """Whether the checkpoint is at fault; False where the disk failed. Raises where the reason says nothing of it."""
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.errno != errno.EIO:
        raise error  # too many open files, no permission: going on with an older one would be a guess
    return not isinstance(cause, OSError)


def _pass_over(path: Path, error: CheckpointError, set_aside: bool, told: set[Path]) -> None:
    """Report a checkpoint that does not verify, once, and, if its content is at fault, rename it `.bad`."""
    if not path.is_dir():
        return  # retention took it away while we looked
    damaged = _is_damaged(error)
    if path not in told:
        told.add(path)
        _log.warning("%s; it is passed over for another checkpoint", error)
    if not (damaged and set_aside):
        return
    number = 0
    while (aside := path.with_name(f"{path.name}.bad{number or ''}")).exists():
        number += 1
    try:
        verify(path)  # a replacement may have come under this name meanwhile: then it is not the one at fault
    except CheckpointError:
        with contextlib.suppress(OSError):  # a folder that may only be read
            path.rename(aside)
