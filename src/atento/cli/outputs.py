"""Where a command will write, checked before any work: the folder, the permissions and the ending of the name."""

import os
from collections.abc import Sequence
from pathlib import Path

from atento.errors import UsageError


def output_file(path: str | Path, endings: Sequence[str] = (), option: str = "--out") -> Path:
    """The path of a file that is written at the end of the work. A file that is already there will be replaced.

    Args:
        path: what the user gave.
        endings: the name must end in one of these, in any case of letters; none: any name.
        option: what the message calls it; empty: by its path alone.

    Raises:
        UsageError: no such folder, no permission, a folder of that name, another ending.
    """
    target = Path(path)
    name = f"{option} {path}".strip()
    if not str(path):
        raise UsageError(f"{option} must name a file: got an empty name")
    if endings and target.suffix.lower() not in endings:
        raise UsageError(f"{option} must end in {_either(endings)}: got {str(path)!r}")
    if _kind(target, name) == "folder":
        raise UsageError(f"{name} cannot be written: it is a folder, and a file is needed")
    parent = _kind(target.parent, name)
    if parent != "folder":
        what = "there is no folder" if parent is None else "it is no folder:"
        raise UsageError(f"{name} cannot be written: {what} {target.parent}")
    _refuse_locked(target if target.exists() else target.parent, name)
    return target


def output_folder(path: str | Path, option: str = "--out", *, new: bool = False) -> Path:
    """The path of a folder that is written to; it and the folders above it are made where they are missing.

    Args:
        path: what the user gave.
        option: what the message calls it; empty: by its path alone.
        new: the folder must not exist, or be empty: nothing in it is ever replaced.

    Raises:
        UsageError: a file stands in the way, no permission, or files are in the folder where it must be new.
    """
    target, name = Path(path), f"{option} {path}".strip()
    if not str(path):
        raise UsageError(f"{option} must name a folder: got an empty name")
    there = next(one for one in (target, *target.absolute().parents) if _kind(one, name) is not None)
    if _kind(there, name) != "folder":
        raise UsageError(f"{name} cannot be written: {there} is a file, and a folder is needed")
    _refuse_locked(there, name)
    if new and there == target and any(target.iterdir()):
        raise UsageError(f"{name} must be a new or empty folder: nothing is overwritten")
    return target


def _kind(path: Path, name: str) -> str | None:
    """ "folder", "file" (or what else is no folder), None where nothing is."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:  # too long, not allowed, a NUL
        raise UsageError(f"{name} cannot be written: {getattr(error, 'strerror', None) or error}") from None
    return "folder" if path.is_dir() else "file"


def _refuse_locked(path: Path, name: str) -> None:
    """What is there must let itself be written to: a folder also be entered."""
    if not os.access(path, os.W_OK | (os.X_OK if path.is_dir() else 0)):
        raise UsageError(f"{name} cannot be written: no permission to write to {path}")


def _either(endings: Sequence[str]) -> str:
    return endings[0] if len(endings) == 1 else f"{', '.join(endings[:-1])} or {endings[-1]}"
