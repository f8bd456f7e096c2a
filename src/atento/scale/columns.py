"""The texts of columns: keys of JSONL, numbers of TSV, and names of Parquet, joined by a tab as commands read them."""

import json
import re
from collections.abc import Sequence

from atento.errors import DataError, UsageError
from atento.scale.line_blocks import Parse

_PACKED = (".gz", ".zst")
_LINE_END = re.compile("\r\n|\r|\n")


def ending(name: str) -> str:
    """The extension of a file, without that of its compression, in lower case."""
    name = name.lower()
    for packed in _PACKED:
        name = name.removesuffix(packed)
    return name[name.rfind(".") :] if "." in name.rsplit("/", 1)[-1] else ""


def parser(name: str, columns: Sequence[str]) -> Parse | None:
    """The function that takes the columns out of a line of that file; None: the line is the text.

    Raises:
        UsageError: the file has no columns, or a column of a .tsv file is no number.
    """
    if not columns or ending(name) == ".parquet":
        return None
    if ending(name) in (".jsonl", ".json"):
        return lambda line, position: joined(_values(line, position, columns))
    if ending(name) != ".tsv":
        raise UsageError(f"--columns is for .jsonl, .tsv and .parquet files: got {name}")
    for column in columns:
        if not column.isdecimal():
            raise UsageError(f"--columns of a .tsv file are numbers, from 0: got {column!r}")
    numbers = [int(column) for column in columns]
    return lambda line, position: joined(_fields(line, position, numbers))


def joined(values: Sequence[str | None]) -> str:
    """Texts on one line with tabs between; line ends in them, and tabs in one of several, become spaces."""
    texts = ["" if value is None else _LINE_END.sub(" ", value) for value in values]
    return texts[0] if len(texts) == 1 else "\t".join(text.replace("\t", " ") for text in texts)


def _values(line: str, position: str, columns: Sequence[str]) -> list[str]:
    """The strings of an object's keys. Raises DataError: no object, or a key has none."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{position}: the line is not JSON: {error}") from None
    fields = record if isinstance(record, dict) else {}
    for column in columns:
        if not isinstance(fields.get(column), str):
            raise DataError(f"{position}: the line must be an object with a string at the key {column!r}")
        if "\0" in fields[column]:
            raise DataError(f"{position}: a NUL character at the key {column!r}")
    return [fields[column] for column in columns]


def _fields(line: str, position: str, numbers: Sequence[int]) -> list[str]:
    """The columns of a row. Raises DataError: it has fewer."""
    fields = line.split("\t")
    if max(numbers) >= len(fields):
        raise DataError(f"{position}: there is no column {max(numbers)}: the line has {len(fields)}, counted from 0")
    return [fields[number] for number in numbers]
