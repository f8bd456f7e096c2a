"""The folder of a command that is refused: what the command has made is removed again."""

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from atento.errors import UsageError


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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
