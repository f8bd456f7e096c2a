"""The run folder: create it or move it aside, read its end event, write its environment."""

import json
import platform
import shlex
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from atento.base.errors import DataError, UsageError
from atento.base.version import __version__
from atento.storage.atomic_files import write_atomically
from atento.storage.lock import RunLock
from atento.training.metrics_log import read_journal

OUTPUTS = "test-outputs.jsonl"  # outputs for the test records, and the right ones
# Files that a command writes before `run.json`; one that was refused or killed early leaves them.
_EARLY_FILES = (".lock", "train.log", "recipe.yaml", ".recipe.yaml-", ".run.json-")


def clear_folder(folder: Path, force: bool, used: Iterable[Path] = ()) -> Path | None:
    """Check that the run folder is free or holds a run; `make_folder` makes it.

    Args:
        force: move an existing folder aside, to `FOLDER.old-1`.
        used: the files of the recipe and its data. A folder that holds one of them is never moved. The current
            directory is moved only if it is a run.

    Returns:
        Where the old folder was moved to; None: nothing was moved.

    Raises UsageError: the folder cannot be moved, or holds something else than a run.
    """
    aside = None
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"the run folder {folder} is a file; give another with --out")
    if force and folder.exists() and any(not path.name.startswith(_EARLY_FILES) for path in folder.iterdir()):
        current = [] if (folder / "run.json").exists() else [Path.cwd()]  # a run may be moved from inside
        for path in (*current, *used):
            if path.resolve().is_relative_to(folder.resolve()):
                raise UsageError(f"--force does not move {folder}: {path} is in it. Give another folder with --out")
        with RunLock(folder):  # refused while another process trains there
            pass
        try:
            aside = next(p for n in range(1, 10_000) if not (p := folder.with_name(f"{folder.name}.old-{n}")).exists())
            folder.rename(aside)
        except OSError as error:
            raise UsageError(f"{folder} cannot be moved to {folder.name}.old-1: {error.strerror}") from None
    if folder.exists() and not (folder / "run.json").exists():
        foreign = [path.name for path in folder.iterdir() if not path.name.startswith(_EARLY_FILES)]
        if foreign:
            raise UsageError(
                f"{folder} holds files and is not a run; give another folder with --out, or --force to move it aside"
            )
    return aside


def make_folder(folder: Path) -> None:
    """Make the run folder. Raises UsageError: it cannot be created."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"the run folder {folder} cannot be created: {error.strerror}") from None


def end_event(folder: Path) -> dict[str, object] | None:
    """Return the event `end`, which is written after averaging and testing; None: the run has not ended."""
    try:
        events = read_journal(folder / "metrics.jsonl")
    except DataError:
        return None  # with a damaged journal, averaging and testing are repeated
    return events[-1] if events and events[-1]["event"] == "end" else None


def scores_on_test(end: Mapping[str, Any]) -> dict[str, float] | None:
    """Return the test scores of an `end` event by name; None: it has none."""
    return {name.removeprefix("test_"): value for name, value in end.items() if name.startswith("test_")} or None


def write_environment(folder: Path, **sizes: int) -> None:
    """Write `env.json`: versions, command, machine and sizes of the last start."""
    facts = {
        "atento": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()}-{platform.release()}-{platform.machine()}",
        "command": shlex.join(sys.argv),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        **sizes,
    }
    write_atomically(folder / "env.json", json.dumps(facts, indent=2) + "\n")


def write_outputs(folder: Path, outputs: Sequence[object], gold: Sequence[object]) -> None:
    """Write the outputs for the test records of a run, with the right ones, one JSON object a line."""
    lines = (json.dumps({"output": output, "right": right}, ensure_ascii=False) for output, right in zip(outputs, gold))
    write_atomically(folder / OUTPUTS, "".join(f"{line}\n" for line in lines))
