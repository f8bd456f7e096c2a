"""Files and folders written whole: a reader sees the old one or the new one."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from atento.errors import AtentoError, CheckpointError, TrainingError, UsageError


def write_whole(path: Path, text: str) -> None:
    """Write a small file atomically.

    Raises:
        TrainingError: the file cannot be written.
    """
    try:
        with replacement(path) as partial:
            partial.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise TrainingError(f"{path} cannot be written: {error.strerror}") from error


def write_output(path: Path, content: str | bytes) -> None:
    """Write a file that a user named; a disk that is full leaves the old one.

    Raises:
        AtentoError: it cannot be written.
    """
    with output(path) as partial:
        partial.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)


@contextmanager
def output(path: Path) -> Iterator[Path]:
    """`replacement` of a file that a user named. Raises AtentoError: it cannot be written."""
    try:
        with replacement(path) as partial:
            yield partial
    except OSError as error:
        raise AtentoError(f"could not write {str(path)!r}: {error.strerror}") from error


@contextmanager
def replacement(path: Path) -> Iterator[Path]:
    """A path beside a file, to be written in the `with` block; then it replaces the file, or is deleted if that failed.

    What is no regular file (a pipe, a device) is written itself, and so is a file in a folder that is locked.
    """
    target = path.resolve()  # of a link, what it points to
    if path.exists() and not (path.is_file() and os.access(target.parent, os.W_OK)):
        yield path
        return
    partial = target.with_name(f".{target.name}-{os.getpid()}")
    try:
        yield partial
        partial.replace(target)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise


@contextmanager
def whole_folder(directory: Path, kind: str = "model folder") -> Iterator[Path]:
    """A folder beside a new one, to be filled in the `with` block; then it takes its name, or is deleted on failure.

    Args:
        directory: the folder to write; it must be empty or not exist.
        kind: what it is, for messages.

    Raises:
        UsageError: the folder exists and is not empty. AtentoError: it cannot be written.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError(f"{directory} exists already; give another folder")
    temporary = directory.with_name(f".{directory.name}-{os.getpid()}")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        if directory.exists():
            directory.rmdir()
        temporary.rename(directory)
    except (OSError, CheckpointError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise AtentoError(f"the {kind} {directory} cannot be written: {reason}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
