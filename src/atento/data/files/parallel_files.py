"""Two parallel files to pairs: line N of one belongs to line N of the other."""

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import zip_longest
from pathlib import Path

from atento.data.files.source_lines import open_binary, scan
from atento.data.files.source_records import Column, Row
from atento.errors import DataError, RecipeError


def two_files(
    source: Column | None, target: Column | None, folder: Path, files: ExitStack, encoding: str | None = None
) -> tuple[tuple[str, ...], Iterator[Row]]:
    """Return the names of the two files and their rows; the files are open until `files` closes them.

    Raises:
        RecipeError: a side is missing. DataError: while reading, a bad line, or files of unequal length.
    """
    if not isinstance(source, str) or not isinstance(target, str):
        raise RecipeError(
            "a data source needs `source` and `target` (two parallel files), or `file` with two columns, or `world`: "
            f"got source {source!r} and target {target!r}"
        )
    source_file, target_file = (
        files.enter_context(open_binary(folder / Path(name).expanduser(), name, encoding=encoding))
        for name in (source, target)
    )
    return (source, target), _aligned(scan(source_file, source), scan(target_file, target), source, target)


def _aligned(
    source_lines: Iterator[str | DataError], target_lines: Iterator[str | DataError], source: str, target: str
) -> Iterator[Row]:
    """Pair line N of one file with line N of the other; unequal lengths are an error once both have been counted."""
    for number, (source_line, target_line) in enumerate(zip_longest(source_lines, target_lines), start=1):
        if source_line is None or target_line is None:
            longer = target_lines if source_line is None else source_lines
            total = number + sum(1 for _ in longer)  # to the end, for the message
            counts = (number - 1, total) if source_line is None else (total, number - 1)
            raise DataError(
                f"{source} has {counts[0]} lines and {target} has {counts[1]}, and line N of one must correspond to "
                f"line N of the other: {target if source_line is None else source}:{number} has no partner"
            )
        if isinstance(source_line, DataError):
            yield source_line
        elif isinstance(target_line, DataError):
            yield target_line
        else:
            yield number, [source_line, target_line]
