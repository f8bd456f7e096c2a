"""Sources of several files: of a folder or a pattern; two parallel files; folders of texts, one for each label."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import zip_longest
from pathlib import Path

from atento.base.errors import DataError, RecipeError
from atento.config.recipe import SourceConfig
from atento.config.tables.formats import COMPRESSED, FORMATS, format_of
from atento.config.tables.task_spec import Field
from atento.data.files.source_lines import open_binary, read_text, scan
from atento.data.files.source_records import Column, Row
from atento.metrics.label_counts import class_name

UNLABELLED = "unsup"  # of IMDb: reviews without a label


def labelled_files(
    folder: Path, name: str, fields: tuple[Field, ...], encoding: str | None
) -> Iterator[tuple[int, list[str]] | DataError]:
    """Yield the number of each file, from 1, with its text and the name of its folder, in the order of `fields`.

    The files are in the order of their names, so that the first ones are of all labels.
    Raises DataError: there is no folder of text files in `folder`.
    """
    if not folder.is_dir():
        what = "is a file" if folder.exists() else f"no such folder (looked for {folder.absolute()})"
        raise DataError(f"{name}: {what}; a table ends in .tsv, .csv, .xlsx, .jsonl or .json")
    endings = tuple(f"{ending}{packed}" for ending in FORMATS["text"].endings for packed in ("", *COMPRESSED))
    files = sorted(
        (
            file
            for part in folder.iterdir()
            if part.is_dir() and part.name != UNLABELLED
            for file in part.iterdir()
            if file.name.endswith(endings) and file.is_file()
        ),
        key=lambda file: (file.name, file.parent.name),  # by name, so that labels are mixed
    )
    if not files:
        raise DataError(
            f"{name}: has no folder of text files for each label, such as {name}/pos and {name}/neg with files that "
            f"end in {', '.join(endings)}"
        )
    for number, file in enumerate(files, start=1):
        shown = f"{name}/{file.relative_to(folder)}"
        try:
            with open_binary(file, shown, encoding=encoding) as stream:
                text = read_text(stream, shown)
        except DataError as error:
            yield error
            continue
        values = {"text": text.rstrip("\r\n"), "label": class_name(file.parent.name)}
        yield number, [values[field.name] for field in fields]


def two_files(
    source: Column | None, target: Column | None, folder: Path, files: ExitStack, encoding: str | None = None
) -> tuple[tuple[str, ...], Iterator[Row]]:
    """Return the names of the two files and their rows; the files are open until `files` closes them.
    Raises RecipeError: a side is missing. DataError: while reading, a bad line, or files of unequal length.
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


_WILD = "*?["


def source_files(source: SourceConfig, folder: Path, fields: Sequence[Field] = (Field("text"),)) -> list[str]:
    """Return the names of the files of a source, in alphabetical order, as its `file` writes them.

    Of a folder: the files whose names end in .txt, or in the ending of `format`, compressed or not, in its folders
    too. Of a pattern (`corpus/*.jsonl`, `**` for any folders): the files that match it. A folder of labels, for records
    with these fields, is one source.
    Raises DataError: there is no such file.
    """
    name = str(source.file)
    path = folder / Path(name).expanduser()
    if path.is_dir() and format_of(name, source.format, fields) == "folders":
        return [name]
    if path.is_dir():
        endings = FORMATS[source.format or "text"].endings
        accepted = tuple(f"{ending}{packed}" for ending in endings for packed in ("", *COMPRESSED))
        names = sorted(
            str(Path(name) / file.relative_to(path))
            for file in path.rglob("*")
            if file.is_file() and file.name.endswith(accepted)
        )
        if not names:
            raise DataError(f"{name}: the folder holds no file that ends in {', '.join(accepted)}")
        return names
    if not any(letter in name for letter in _WILD) or path.exists():  # a name may have such letters itself
        return [name]
    absolute = Path(name).expanduser()
    base, pattern = folder, name
    if absolute.is_absolute():  # `glob` takes no absolute pattern
        base = Path(absolute.anchor)
        pattern = str(absolute.relative_to(base))
    matches = sorted(file for file in base.glob(pattern) if file.is_file())
    if not matches:
        raise DataError(f"{name}: no file matches")
    return [str(file if absolute.is_absolute() else file.relative_to(folder)) for file in matches]
