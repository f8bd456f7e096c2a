"""Check output paths before any work: folder, permissions and file name extension."""

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from atento.base.errors import MissingPartError, UsageError, install_hint


def output_file(path: str | Path, endings: Sequence[str] = (), option: str = "--out") -> Path:
    """Check the path of an output file. An existing file will be replaced.

    Args:
        path: the path that the user gave.
        endings: allowed extensions, in any case; empty allows any.
        option: the option to name in messages; empty names the path alone.

    Raises MissingPartError: a picture needs a package. UsageError: the folder does not exist or is not writable, the
    path is a folder, or the extension is wrong.
    """
    target = Path(path)
    name = f"{option} {path}".strip()
    if not str(path):
        raise UsageError(f"{option} must name a file: got an empty name")
    if endings and target.suffix.lower() not in endings:
        either = endings[0] if len(endings) == 1 else f"{', '.join(endings[:-1])} or {endings[-1]}"
        raise UsageError(f"{option} must end in {either}: got {str(path)!r}")
    if target.suffix.lower() == ".png" and ".png" in endings and not _has_matplotlib():
        raise MissingPartError(f"{name}: a PNG picture needs matplotlib: {install_hint('plot')}; .svg needs nothing")
    if _kind(target, name) == "folder":
        raise UsageError(f"{name} cannot be written: it is a folder, and a file is needed")
    parent = _kind(target.parent, name)
    if parent != "folder":
        reason = "there is no folder" if parent is None else "it is no folder:"
        raise UsageError(f"{name} cannot be written: {reason} {target.parent}")
    _refuse_locked(target if target.exists() else target.parent, name)
    return target


def output_folder(path: str | Path, option: str = "--out", *, new: bool = False) -> Path:
    """Check the path of an output folder, which may not exist yet.

    Args:
        path: the path that the user gave.
        option: the option to name in messages; empty names the path alone.
        new: whether the folder must not exist, or be empty.

    Raises UsageError: the path is a file, is not writable, or is not empty with `new`.
    """
    target, name = Path(path), f"{option} {path}".strip()
    if not str(path):
        raise UsageError(f"{option} must name a folder: got an empty name")
    existing = next(path for path in (target, *target.absolute().parents) if _kind(path, name) is not None)
    if _kind(existing, name) != "folder":
        raise UsageError(f"{name} cannot be written: {existing} is a file, and a folder is needed")
    _refuse_locked(existing, name)
    if new and existing == target and any(target.iterdir()):
        raise UsageError(f"{name} must be a new or empty folder: nothing is overwritten")
    return target


def _kind(path: Path, name: str) -> str | None:
    """ "folder", "file" (anything else that exists), or None if nothing exists."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:  # name too long, not permitted, or with a NUL
        raise UsageError(f"{name} cannot be written: {getattr(error, 'strerror', None) or error}") from None
    return "folder" if path.is_dir() else "file"


def _refuse_locked(path: Path, name: str) -> None:
    """Raises UsageError if an existing path is not writable, or a folder cannot be entered."""
    if not os.access(path, os.W_OK | (os.X_OK if path.is_dir() else 0)):
        raise UsageError(f"{name} cannot be written: no permission to write to {path}")


def _has_matplotlib() -> bool:
    try:
        return find_spec("matplotlib.backends.backend_agg") is not None
    except ImportError:
        return False
