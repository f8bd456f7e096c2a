"""The texts of a data source, a small part in memory at a time, so that a corpus may be larger than memory."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

from atento.base.errors import DataError, RecipeError
from atento.config.recipe import SourceConfig
from atento.config.tables.formats import format_of
from atento.data.files.hub import dataset_rows
from atento.data.files.paragraphs import documents, looks_wrapped
from atento.data.files.several_files import source_files
from atento.data.files.source_lines import open_binary, scan_many
from atento.data.records.reader import TEXT, file_rows, read_records

_SAMPLED_FILES, _SAMPLED_LINES = 8, 20_000  # by which `wrapped_file` judges a source
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
        return iter(read_records(source, TEXT, folder)["text"])
    texts: Iterator[str] = chain.from_iterable(_parts(source, folder, refused))
    if source.prefix:
        texts = map(source.prefix.__add__, texts)
    return islice(texts, source.count)


def _parts(source: SourceConfig, folder: Path, refused: Refused | None) -> Iterator[list[str]]:
    """Yield the texts of a source that are not blank, several at a time."""
    for part in _rows(source, folder):
        if not isinstance(part, DataError):
            yield [text for text in part if text and not text.isspace()]
        elif refused is None:
            raise part
        else:
            refused(part)


def _rows(source: SourceConfig, folder: Path) -> Iterator[list[str] | DataError]:
    """The texts of all files of a source, and the errors of its broken records."""
    if source.dataset is not None:
        yield from _texts(dataset_rows(source, TEXT, folder)[1])
        return
    for name in source_files(source, folder):
        form = format_of(name, source.format, TEXT)
        if form is None:
            raise RecipeError(f"`file: {name}` is in no format of texts")
        if form == "text" and source.documents == "lines" and not source.paragraphs:  # many lines at a time
            path = folder / Path(name).expanduser()
            with open_binary(path, name, streamed=True, encoding=source.encoding) as stream:
                yield from scan_many(stream, name)
        elif form == "text":
            read = documents(source, name, folder, streamed=True)
            yield from (row if isinstance(row, DataError) else [row[1]] for row in read)
        else:
            with ExitStack() as files:
                yield from _texts(file_rows(replace(source, file=name), form, TEXT, folder, files, streamed=True)[1])


def _texts(rows: Iterable[tuple[int, list[object]] | DataError]) -> Iterator[list[str] | DataError]:
    """The texts of rows of one field."""
    return (row if isinstance(row, DataError) else [str(row[1][0] or "")] for row in rows)


def wrapped_file(source: SourceConfig, folder: Path) -> str | None:
    """Return the name of a file of a source whose lines seem to be broken inside sentences; of many, few are read."""
    if source.file is None or source.paragraphs or source.documents != "lines":
        return None
    for name in source_files(source, folder)[:_SAMPLED_FILES]:  # few of many
        if format_of(name, source.format, TEXT) == "text":
            read = islice(documents(source, name, folder, streamed=True), _SAMPLED_LINES)
            lines = [row for row in read if not isinstance(row, DataError) and row[1].strip()]
            if looks_wrapped([text for _, text in lines], [number for number, _ in lines]):
                return name
    return None


def reading_options(source: SourceConfig) -> Mapping[str, object]:
    """Return what decides the texts of a source besides the content of its files."""
    names = ("dataset", "split", "text", "prefix", "world", "count", "seed", "paragraphs", "documents", "format")
    stated = {name: getattr(source, name) for name in ("delimiter", "encoding", "sheet")}
    reading = {name: value for name, value in stated.items() if value is not None}
    return {name: getattr(source, name) for name in names} | reading
