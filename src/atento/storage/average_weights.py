"""Checkpoint averaging: the mean of the last weights of a run, often better than each of them."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atento.base.errors import UsageError
from atento.base.limits import read_plain
from atento.storage.checkpoint import is_own, load_checkpoint, save_checkpoint
from atento.storage.checkpoint_list import list_checkpoints


@dataclass(frozen=True)
class AveragedCheckpoint:
    """An averaged checkpoint."""

    path: Path  # its folder
    names: tuple[str, ...]  # the checkpoints averaged, newest first
    # checkpoints that were left out although they are newer than the oldest of them, or there are fewer than were asked
    # for
    skipped: tuple[str, ...]
    score: float | None  # its validation score; None: it was not validated


def average_run(
    run: Path, last: int, *, score: Callable[[dict[str, Tensor]], Sequence[float]] | None = None
) -> AveragedCheckpoint:
    """Average the weights of the last checkpoints of a run into `RUN/averaged/` (Vaswani et al. 2017, 6.1).

    Checkpoints between those that the recipe schedules (a stop, a best one) are skipped, so that the average does not
    depend on whether a run was stopped. So is one that was kept as the best when those behind it were deleted. Sums
    are computed in float64, with the newest checkpoint and one more in memory at a time.

    Args:
        last: how many checkpoints.
        score: validates the averaged weights, so that `select_checkpoint` can select them: the score, then those that
            decide between equal ones.

    Raises UsageError: the run has no checkpoint. CheckpointError: one of them is damaged.
    """
    all_paths = [item.path for item in list_checkpoints(run / "checkpoints")]  # the newest first
    in_a_row: list[Path] = []  # up to the first gap, where the recipe schedules one that is not there
    for path in all_paths:
        newer, older = _state(in_a_row[-1]) if in_a_row else {}, _state(path)
        every = newer.get("checkpoint_every")
        if every is not None and newer["step"] - older.get("step", newer["step"]) > every:
            break
        in_a_row.append(path)
    paths = ([path for path in in_a_row if _state(path).get("scheduled", True)] or in_a_row)[:last]
    if not paths:
        raise UsageError(f"{run} has no checkpoint to average")
    total: dict[str, Tensor] = {}
    newest = load_checkpoint(paths[0])
    for path in paths:
        for name, value in (newest if path == paths[0] else load_checkpoint(path)).weights.items():
            total[name] = value.double() if name not in total else total[name] + value.double()  # in float64
    weights = {name: (value / len(paths)).to(newest.weights[name].dtype) for name, value in total.items()}
    mean_score, *ties = [None] if score is None else score(weights)
    files = {path.name: read_plain(path) for path in newest.path.iterdir() if not is_own(path.name)}
    state = {"score": mean_score, "ties": ties, "averaged": [path.name for path in paths]}
    with torch.no_grad():
        path = save_checkpoint(
            run / "averaged",
            newest.step,
            config=newest.config,
            weights=weights,
            optimizer={},
            state=state,
            extra=files,
            run_id=newest.run_id,
        )
    until = all_paths.index(paths[-1]) if len(paths) == last else len(all_paths)  # those behind were not asked for
    skipped = tuple(folder.name for folder in all_paths[:until] if folder not in paths)
    return AveragedCheckpoint(path, tuple(folder.name for folder in paths), skipped, mean_score)


def _state(path: Path) -> dict[str, Any]:
    """The state of a checkpoint; empty for a damaged one, which is refused when it is read."""
    try:
        state = json.loads(read_plain(path / "state.json"))
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}
