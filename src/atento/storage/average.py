"""Checkpoint averaging: the mean of the last weights of a run, often better than any one of them."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from atento.errors import UsageError
from atento.storage.catalogue import found
from atento.storage.checkpoint import load_checkpoint, save_checkpoint


@dataclass(frozen=True)
class Averaged:
    """An averaged model: where it lies, of which checkpoints, newest first, and its validation score if it was scored.

    `passed_over` are younger than the oldest of them and left out.
    """

    path: Path
    names: tuple[str, ...]
    passed_over: tuple[str, ...]
    score: float | None


def average_run(run: Path, last: int, *, score: Callable[[dict[str, Tensor]], float] | None = None) -> Averaged:
    """Average the weights of the run's `last` checkpoints into `RUN/averaged/` (Vaswani et al. 2017, 6.1).

    Those between the recipe's own steps (a stop, a best one) are passed over, so that a run that was stopped has the
    same average as one that was not. Sums are made in float64, one checkpoint in memory at a time. `score` judges the
    mean weights, so that `best` may choose them.

    Raises:
        UsageError: the run has no checkpoint. CheckpointError: one of them is damaged.
    """
    every = [item.path for item in found(run / "checkpoints")]
    paths = ([path for path in every if _scheduled(path)] or every)[:last]
    if not paths:
        raise UsageError(f"{run} has no checkpoint to average")
    total: dict[str, Tensor] = {}
    newest = load_checkpoint(paths[0])
    for path in paths:
        for name, value in load_checkpoint(path).weights.items():
            total[name] = value.double() if name not in total else total[name] + value.double()
    weights = {name: (value / len(paths)).to(newest.weights[name].dtype) for name, value in total.items()}
    judged = None if score is None else score(weights)
    own = {"config.json", "model.safetensors", "optimizer.safetensors", "state.json", "MANIFEST.json"}
    files = {path.name: path.read_bytes() for path in newest.path.iterdir() if path.name not in own}
    state = {"score": judged, "averaged": [path.name for path in paths]}
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
    others = tuple(one.name for one in every[: every.index(paths[-1])] if one not in paths)
    return Averaged(path, tuple(one.name for one in paths), others, judged)


def _scheduled(path: Path) -> bool:
    """Whether the recipe asked for this checkpoint; a damaged one counts, for it to be refused when it is read."""
    try:
        return bool(json.loads((path / "state.json").read_bytes()).get("scheduled", True))
    except (OSError, ValueError, AttributeError):
        return True
