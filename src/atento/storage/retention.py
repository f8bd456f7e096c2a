"""Retention: the oldest checkpoints beyond `keep` are deleted, once the newest has been verified."""

import logging
from collections.abc import Collection
from pathlib import Path

from atento.errors import UsageError
from atento.storage.catalogue import best, discard, is_in_use, list_checkpoints, newest
from atento.storage.manifest import read_manifest

_log = logging.getLogger(__name__)


def retain(folder: Path, keep: int, protect: Collection[int] = frozenset(), *, run_id: str | None = None) -> list[int]:
    """Delete checkpoints of one run beyond the `keep` newest, and return their steps, oldest first.

    The newest that verifies, the best that verifies, the steps of `protect` and checkpoints that are being read are
    retained, so that up to `keep` + 1 + len(protect) remain. The order is that of the steps in the manifests; names and
    times are not used. A checkpoint that cannot be deleted is retained with a warning.

    Args:
        folder: the run's `checkpoints` folder.
        keep: how many of the newest to retain.
        protect: steps to retain.
        run_id: whose checkpoints; None: those of the run that the newest belongs to. Others are never deleted.

    Raises:
        UsageError: `keep` is below 1.
        CheckpointError: the system does not allow reading.
    """
    if keep < 1:
        raise UsageError(f"`keep` must be at least 1: got {keep}")
    last = newest(folder, run_id=run_id, rename_damaged=False)
    if last is None:
        return []  # none verifies, so none may be deleted
    run = read_manifest(last).run_id
    first = best(folder, run_id=run, rename_damaged=False)
    checkpoints = [
        item
        for item in list_checkpoints(folder, run)
        if item.manifest is not None and not item.path.name.endswith(".old")
    ]
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
