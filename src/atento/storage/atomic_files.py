"""Files and folders written whole: a reader sees the old one or the new one; a refused command leaves no folder."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import get_native_id

from atento.base.errors import AtentoError, CheckpointError, TrainingError, UsageError


def write_atomically(path: Path, text: str) -> None:
    """Write a small file atomically. Raises TrainingError: the file cannot be written."""
    try:
        with atomic_file(path) as partial:
            partial.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise TrainingError(f"{path} cannot be written: {error.strerror}") from error


def write_output(path: Path, content: str | bytes) -> None:
    """Write a file that a user named; a disk that is full leaves the old one.
    Raises AtentoError: it cannot be written.
    """
    with output(path) as partial:
        partial.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)


@contextmanager
def output(path: Path) -> Iterator[Path]:
    """`atomic_file` of a file that a user named. Raises AtentoError: it cannot be written."""
    try:
        with atomic_file(path) as partial:
            yield partial
    except OSError as error:
        raise AtentoError(f"could not write {str(path)!r}: {error.strerror}") from error


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """A path beside a file, to be written in the `with` block; then it replaces the file, or is deleted if that failed.

    What is no regular file (a pipe, a device) is written itself, and so is a file in a folder that is locked.
    """
    target = path.resolve()  # of a link, what it points to
    if path.exists() and not (path.is_file() and os.access(target.parent, os.W_OK)):
        yield path
        return
    partial = target.with_name(f".{target.name}-{get_native_id()}")  # no other thread of any process has it
    try:
        yield partial
        partial.replace(target)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise


@contextmanager
def atomic_folder(directory: Path, kind: str = "model folder") -> Iterator[Path]:
    """A folder beside a new one, to be filled in the `with` block; then it takes its name, or is deleted on failure.

    Args:
        directory: the folder to write; it must be empty or not exist.
        kind: what it is, for messages.

    Raises UsageError: the folder exists and is not empty. AtentoError: it cannot be written.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError(f"{directory} exists already; give another folder")
    temporary = directory.with_name(f".{directory.name}-{get_native_id()}")
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


class NewFolder:
    """A context manager that removes a folder and its content if the work in it is refused before it has begun.

    Nothing is removed from a folder that had content before. A folder that was there, but empty, stays.

    Args:
        folder: the folder, which need not exist yet. What is there now is not removed; make the object before the
            folder, and enter it under the lock of the folder.
        begun: whether the folder has a result of the work, which counts for more than a refusal.
    """

    def __init__(self, folder: Path, begun: Callable[[], bool]) -> None:
        self.folder, self._begun = folder.absolute(), begun
        self._missing = [path for path in (self.folder, *self.folder.parents) if not path.exists()]
        self._is_new = bool(self._missing) or (folder.is_dir() and not any(folder.iterdir()))

    def __enter__(self) -> "NewFolder":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        status = getattr(error, "exit_status", None)  # also of the error of another process
        if self._is_new and status == UsageError.exit_status and not self._begun():
            self.remove()

    def remove(self) -> None:
        """Remove what is in the folder, and the folders that were not there."""
        with suppress(OSError):  # the refusal is what the user must know
            for path in self.folder.iterdir():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink()
            for path in self._missing:
                path.rmdir()
