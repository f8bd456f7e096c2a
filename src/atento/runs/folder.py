"""The folder of a run: made or moved aside, what its last start was, whether it has ended."""

import json
import platform
import shlex
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

import atento
from atento.errors import DataError, UsageError
from atento.runs.run_identity import write_whole
from atento.storage.lock import RunLock
from atento.training.journal import read_journal

# What stands in a folder before `run.json` makes it a run: left by a command that was refused or killed early.
BEFORE_THE_RUN = (".lock", "train.log", "recipe.yaml", ".recipe.yaml-", ".run.json-")


def open_folder(folder: Path, force: bool, used: Iterable[Path] = ()) -> Path | None:
    """Make sure of a folder for the run; where the old one was moved to, if it was.

    Args:
        force: move what stands in the way aside.
        used: the recipe and its data: a folder that holds one of them is never moved, nor is the current directory
            where it is no run.

    Raises:
        UsageError: it cannot be made, or holds something else than a run.
    """
    aside = None
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"the run folder {folder} is a file; give another with --out")
    if force and folder.exists() and any(not path.name.startswith(BEFORE_THE_RUN) for path in folder.iterdir()):
        stood_in = [] if (folder / "run.json").exists() else [Path.cwd()]  # one may stand in a run and move it
        for place in (*stood_in, *used):
            if place.resolve().is_relative_to(folder.resolve()):
                raise UsageError(f"--force does not move {folder}: {place} is in it. Give another folder with --out")
        with RunLock(folder):  # refused while another process trains there
            pass
        try:
            aside = next(p for n in range(1, 10_000) if not (p := folder.with_name(f"{folder.name}.old-{n}")).exists())
            folder.rename(aside)
        except OSError as error:
            raise UsageError(f"{folder} cannot be moved to {folder.name}.old-1: {error.strerror}") from None
    if folder.exists() and not (folder / "run.json").exists():
        strange = [path.name for path in folder.iterdir() if not path.name.startswith(BEFORE_THE_RUN)]
        if strange:
            raise UsageError(
                f"{folder} holds files and is not a run; give another folder with --out, or --force to move it aside"
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"the run folder {folder} cannot be made: {error.strerror}") from None
    return aside


def end_event(folder: Path) -> dict[str, Any] | None:
    """The event that says that averaging and testing are done too; a run may be killed before that."""
    try:
        events = read_journal(folder / "metrics.jsonl")
    except DataError:
        return None  # a damaged journal says nothing; what comes last is done again
    return events[-1] if events and events[-1]["event"] == "end" else None


def scores_on_test(end: Mapping[str, Any]) -> dict[str, float] | None:
    """The scores on the test data by name, of an `end` event; None where there are none."""
    scores = {name.removeprefix("test_"): value for name, value in end.items() if name.startswith("test_")}
    return scores or None


def write_environment(folder: Path, **sizes: int) -> None:
    """Versions, command, machine and sizes of the last start, for whoever reads the run later."""
    facts = {
        "atento": atento.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "command": shlex.join(sys.argv),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        **sizes,
    }
    write_whole(folder / "env.json", json.dumps(facts, indent=2) + "\n")
