"""Which checkpoints may go: the oldest beyond `keep`, and only when the newest is proved good."""

import logging
from collections.abc import Collection
from pathlib import Path

from atento.errors import UsageError
from atento.storage.catalogue import best, discard, found, is_in_use, newest
from atento.storage.manifest import read_manifest

_log = logging.getLogger(__name__)


def retain(folder: Path, keep: int, protect: Collection[int] = frozenset(), *, run_id: str | None = None) -> list[int]:
    """Delete checkpoints beyond the `keep` newest of one run; the steps deleted, oldest first.

    The newest that verifies, the best that verifies, the steps of `protect` and what is being read are never deleted,
    so up to `keep` + 1 + len(protect) stay. Order is that of the manifests' steps; names and times decide nothing.
    A checkpoint that cannot be deleted is a warning and stays.

    Args:
        folder: the run's `checkpoints` folder.
        run_id: whose checkpoints; None: those of the run that the newest belongs to. Another's are never touched.

    Raises:
        UsageError: `keep` is below 1.
        CheckpointError: the system does not let us read.
    """
    if keep < 1:
        raise UsageError(f"`keep` must be at least 1: got {keep}")
    last = newest(folder, run_id=run_id, set_aside=False)
    if last is None:
        return []  # nothing proved good: whatever is there may be all there is
    run = read_manifest(last).run_id
    first = best(folder, run_id=run, set_aside=False)
    ours = [item for item in found(folder, run) if item.manifest is not None and not item.path.name.endswith(".old")]
    deleted = []
    for item in reversed(ours[keep:]):
        if item.path in (last, first) or item.step in protect or is_in_use(item.path):
            continue
        try:
            discard(item.path)
        except OSError as error:
            _log.warning("%s could not be deleted (%s)", item.path, error.strerror)
        else:
            deleted.append(item.step)
    return deleted
