"""A text file to documents: its lines, its paragraphs, the parts between blank lines, or the file as one text."""

from collections.abc import Iterator
from pathlib import Path

from atento.config.recipe import SourceConfig
from atento.data.files.paragraphs import Line, paragraphs
from atento.data.files.source_lines import open_binary, scan
from atento.errors import DataError


def documents(source: SourceConfig, name: str, folder: Path, *, streamed: bool = False) -> Iterator[Line]:
    """Yield the texts of one text file with the number of their first line: lines, paragraphs or documents.

    Args:
        source: how to read the file.
        name: the file.
        folder: what a relative name is relative to.
        streamed: the texts are not kept, so that the file may be larger than the memory.
    """

    def lines() -> Iterator[Line]:
        path = folder / Path(name).expanduser()
        with open_binary(path, name, streamed=streamed, encoding=source.encoding) as stream:
            for number, line in enumerate(scan(stream, name), start=1):
                yield line if isinstance(line, DataError) else (number, line)

    if source.paragraphs:
        return paragraphs(lines)
    return lines() if source.documents == "lines" else joined_lines(lines(), source.documents == "file")


def joined_lines(lines: Iterator[Line], whole_file: bool) -> Iterator[Line]:
    """Join the lines between blank lines, or all lines of a file, with line ends; yield the first line's number.

    Bad lines are yielded as they come, and the lines around them are joined.
    """
    first, texts = 0, list[str]()
    for line in lines:
        if isinstance(line, DataError):
            yield line
            continue
        number, text = line
        if text.strip() or (whole_file and texts):
            first = first if texts else number
            texts.append(text)
        elif texts:
            yield first, "\n".join(texts)
            texts = []
    if texts:
        yield first, "\n".join(texts).rstrip("\n")
