"""Small checkpoints, what lies in a folder, and system calls that fail."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from atento.storage.checkpoint import save_checkpoint


def save(
    folder: Path, step: int, score: float | None = None, run_id: str = "r", fill: float | None = None, **state: object
) -> Path:
    """A small checkpoint whose every weight is the step (or `fill`)."""
    parts = {"weights": {"w": torch.full((30,), float(step) if fill is None else fill)}, "optimizer": {}}
    state |= {"score": score}
    return save_checkpoint(folder, step, config={"d_model": 8}, state=state, run_id=run_id, **parts)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def failing(name: str, code: int, when: Callable[[int], bool], patch: pytest.MonkeyPatch) -> list[int]:
    """Make a system call fail on the calls that `when` chooses (counted from 0); the list grows with each call."""
    real, calls = getattr(os, name), []

    def call(*args, **kwargs):
        calls.append(len(calls))
        if when(calls[-1]):
            raise OSError(code, os.strerror(code))
        return real(*args, **kwargs)

    patch.setattr(os, name, call)
    return calls
