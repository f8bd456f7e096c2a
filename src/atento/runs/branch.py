"""A new run that begins at a checkpoint of another one: `--from RUN@STEP`."""

from dataclasses import dataclass
from pathlib import Path

from atento.config.network import NetworkConfig, by_key
from atento.errors import UsageError
from atento.models.configuration import network_config
from atento.models.migration import migrated
from atento.runs.record import is_run
from atento.storage.catalogue import best, list_checkpoints, newest
from atento.storage.checkpoint import load_checkpoint
from atento.storage.manifest import read_manifest
from atento.training.loop import Run, restore, save

_FREE = ("dropout", "attention.dropout", "feed_forward.dropout")  # what may differ from the other run's network


@dataclass(frozen=True)
class BranchPoint:
    """Where a run begins: a checkpoint of another run, as it was named and as what it is."""

    said: str
    path: Path
    step: int
    run_id: str

    def to_dict(self) -> dict[str, str | int]:
        """What `run.json` keeps."""
        return {"run_id": self.run_id, "step": self.step}


def branch_point(said: str) -> BranchPoint:
    """The checkpoint that `RUN@STEP` names; STEP is a number, `best` or `last`.

    Raises:
        UsageError: not of that form, no run, or no such checkpoint; names those that there are.
        CheckpointError: its manifest is damaged.
    """
    run, at, step = said.rpartition("@")
    if not at or not run or not (step.isdecimal() or step in ("best", "last")):
        raise UsageError(f"--from must be RUN@STEP, such as runs/mine@500, runs/mine@best or @last: got {said!r}")
    if not is_run(Path(run)):
        raise UsageError(f"--from {said}: {run} is not a run")
    folder = Path(run) / "checkpoints"
    path: Path | None = folder / f"step-{int(step):08d}" if step.isdecimal() else None
    if not step.isdecimal():
        path = (best if step == "best" else newest)(folder, rename_damaged=False)
    if path is None or not path.is_dir():
        there = ", ".join(str(item.step) for item in reversed(list_checkpoints(folder))) or "none"
        raise UsageError(f"--from {said}: there is no such checkpoint; there are those of steps: {there}")
    manifest = read_manifest(path)
    return BranchPoint(said, path, manifest.step, manifest.run_id)


def check_network(point: BranchPoint, wanted: NetworkConfig) -> None:
    """Raises UsageError: the network there is another than the recipe's (dropout aside); names the difference."""
    there = by_key(network_config(migrated(load_checkpoint(point.path).config, {}, str(point.path))[0], point.path))
    different = [
        f"network.{key}: {there[key]} -> {value}"
        for key, value in by_key(wanted).items()
        if key not in _FREE and there[key] != value
    ]
    if different:
        raise UsageError(
            f"--from {point.said}: its network is not the recipe's: {'; '.join(different[:3])}"
            f"{' ...' if len(different) > 3 else ''}"
        )


def begin_at(run: Run, point: BranchPoint) -> None:
    """Bring a new run to the checkpoint: weights, optimiser, step; and save it as the run's own first one.

    The place in the data follows from the step. What was best there is forgotten: those weights stay in the other run.

    Raises:
        UsageError: `training.steps` is not above that step. CheckpointError: damaged, or it cannot be saved.
    """
    if point.step >= run.steps:
        raise UsageError(f"--from {point.said}: `training.steps` must be above {point.step}: got {run.steps}")
    restore(run, point.path)
    progress = run.progress
    progress.score, progress.score_step, progress.best, progress.best_step = None, -1, None, 0
    progress.stale, progress.finished, progress.seconds = 0, False, 0.0
    save(run)
