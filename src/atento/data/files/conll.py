"""Columns of words and tags, a word a line and a blank line between sentences: CoNLL-2002 and 2003, CoNLL-U."""

import re
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from atento.base.errors import DataError
from atento.data.files.source_lines import LINE_LIMIT, scan

_DOCUMENT = "-DOCSTART-"  # the first column of the line that begins a document
_COMMENT = "# "  # of CoNLL-U; a hash may be a word too
_OF_CONLLU = re.compile(r"# *(?:newdoc\b|newpar\b|[\w.:-]+ *= )")  # comments that CoNLL-U names, and `# key = value`
_MARK = re.compile(r"[a-z]{2,3}:")  # of a language, before the words of WikiANN
_SPACES = re.compile(r" +")  # a no-break space stands in words


def sentences_in(
    stream: BinaryIO, name: str, columns: Sequence[int], *, universal: bool = False
) -> Iterator[tuple[int, list[tuple[str, ...]]] | DataError]:
    """Read a file of words in columns, separated by tabs or by spaces: (number of the first line, the strings of each
    column) of each sentence; a broken sentence is yielded as its error.

    Comments at the beginning of a sentence, lines that begin with -DOCSTART-, and blank lines are not words.

    Args:
        columns: one for each field, by number: from 0, or from -1 at the end.
        universal: the file is CoNLL-U: every line that begins with a hash is a comment, and lines with a range of
            words (1-2) or an empty word (1.1) in their first column are left out.
    """
    begin = size = width = 0  # the first line of the sentence, and its characters; the columns of the file
    words: list[list[str]] = []
    error: DataError | None = None
    numbers: list[int] = []
    tabs = False  # the columns of the file are separated by tabs

    def sentence() -> Iterator[tuple[int, list[tuple[str, ...]]] | DataError]:
        if error is not None:
            yield error
        elif words:
            yield begin, [tuple(word[number] for word in words) for number in numbers]

    for line_number, line in enumerate(scan(stream, name), start=1):
        if isinstance(line, DataError):
            error = error or line
            continue
        blank = not line or line.isspace()
        fields = [""] if blank else line.split("\t") if "\t" in line else _SPACES.split(line.strip(" "))
        if blank or fields[0] == _DOCUMENT:
            yield from sentence()  # the sentence up to here
            words, size, error = [], 0, None
        elif universal and not fields[0].isdigit():
            continue  # a comment, a range of words or an empty word
        elif error is None and (universal or words or not _is_comment(line, fields, width, tabs)):
            if not width:
                width, tabs = len(fields), "\t" in line
                numbers = _numbers(columns, width, f"{name}:{line_number}")
            begin = begin if words else line_number  # the first line with a word
            size += len(line)
            problem = _problem(fields, numbers, width, size)
            error = DataError(f"{name}:{line_number}: {problem}") if problem else None
            words.append(fields)
    yield from sentence()


def without_marks(sentences: Sequence[tuple[str, ...]]) -> tuple[list[tuple[str, ...]], str | None]:
    """Words without the mark of a language that stands before each of them in the files of WikiANN, such as `pt:casa`.

    Returns:
        The sentences, and the mark; None: not every word has the same one, and the sentences are unchanged.
    """
    match = _MARK.match(sentences[0][0]) if sentences else None
    if match is None:
        return list(sentences), None
    mark = match[0]
    if any(len(word) == len(mark) or not word.startswith(mark) for words in sentences for word in words):
        return list(sentences), None
    return [tuple(word[len(mark) :] for word in words) for words in sentences], mark


def _is_comment(line: str, fields: list[str], width: int, tabs: bool) -> bool:
    """Whether a line at the beginning of a sentence is a comment and not the word "#", which has its columns."""
    if not line.startswith(_COMMENT) or "\t" in line:
        return False
    if not width:  # the first line: a word "#" has the tag "O"
        return fields[-1] != "O"
    return tabs or len(fields) != width or _OF_CONLLU.match(line) is not None


def _numbers(columns: Sequence[int], width: int, where: str) -> list[int]:
    """The columns from 0, in a file with `width` columns.
    Raises DataError: there is no such column, or it is the same for two fields.
    """
    count = f"{width} column{'s'[: width > 1]}"
    for column in columns:
        if not -width <= column < width:
            raise DataError(f"{where}: {count}, and column {column} is requested; columns are counted from 0")
    numbers = [column % width for column in columns]  # -1 is the last column
    if len(set(numbers)) < len(numbers):
        raise DataError(f"{where}: {count}, and a word and its tag must stand in two")
    return numbers


def _problem(fields: list[str], numbers: list[int], width: int, size: int) -> str | None:
    """What is wrong with the line of a word in a sentence of `size` characters."""
    if len(fields) != width:
        return f"{len(fields)} column{'s'[: len(fields) > 1]}, and the first word of the file has {width}"
    for number in numbers:
        if not fields[number]:
            return f"column {number} is empty"
    if size > LINE_LIMIT:
        return f"the sentence is longer than {LINE_LIMIT // 2**20} MiB; a blank line ends a sentence"
    return None
