"""The texts of a data source one at a time, in memory for one text, so that a corpus may be larger than memory."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from atento.config.formats import format_of
from atento.config.recipe import SourceConfig
from atento.data.documents import documents
from atento.data.hub import dataset_rows
from atento.data.records import TEXT, file_rows, read_records
from atento.data.source_files import source_files
from atento.data.values import Converter
from atento.errors import DataError, RecipeError

Refused = Callable[[DataError], None]


def texts_of(source: SourceConfig, folder: Path, refused: Refused | None = None) -> Iterator[str]:
    """Yield the texts of a source, as `read_records` returns them.

    Args:
        source: files, a data set or the micro-world.
        folder: what relative paths are relative to.
        refused: called with the error of each broken record, which is left out; None: it is raised.

    Raises:
        DataError: names file, line and rule.
    """
    if source.world is not None:
        yield from read_records(source, TEXT, folder)["text"]
        return
    blank = Converter(TEXT).blank
    remaining = source.count
    for row in _rows(source, folder):
        if isinstance(row, DataError):
            if refused is None:
                raise row
            refused(row)
        elif not blank(row[1]):
            yield source.prefix + str(row[1][0])
            if remaining is not None:
                remaining -= 1
                if not remaining:
                    return


def _rows(source: SourceConfig, folder: Path) -> Iterator[tuple[int, list[Any]] | DataError]:
    """The rows of all files of a source."""
    if source.dataset is not None:
        yield from dataset_rows(source, TEXT, folder)[1]
        return
    for name in source_files(source, folder):
        form = format_of(name, source.format, TEXT)
        if form == "text":
            yield from (
                row if isinstance(row, DataError) else (row[0], [row[1]])
                for row in documents(source, name, folder, streamed=True)
            )
            continue
        if form is None:
            raise RecipeError(f"`file: {name}` is in no format of texts")
        with ExitStack() as files:
            yield from file_rows(replace(source, file=name), form, TEXT, folder, files, streamed=True)[1]


def reading_options(source: SourceConfig) -> Mapping[str, Any]:
    """Return what decides the texts of a source besides the content of its files."""
    names = ("dataset", "split", "text", "prefix", "world", "count", "seed", "paragraphs", "documents", "format")
    return {name: getattr(source, name) for name in names}
