"""Small files written whole: a reader sees the old text or the new one."""

import os
from pathlib import Path

from atento.errors import TrainingError


def write_whole(path: Path, text: str) -> None:
    """Write a small file atomically.

    Raises:
        TrainingError: the file cannot be written.
    """
    partial = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8", newline="\n")
        partial.replace(path)
    except OSError as error:
        raise TrainingError(f"{path} cannot be written: {error.strerror}") from error
