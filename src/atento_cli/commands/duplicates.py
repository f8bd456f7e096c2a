"""`atento data deduplicate` and `atento data overlap`: repeated texts of one file, and of training and test data."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, redirect_stdout
from itertools import islice, tee
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, TextIO, cast

import typer

from atento.base.errors import DataError, UsageError
from atento.base.terminal import echo
from atento_cli.cluster_option import check_cluster
from atento_cli.completion import words
from atento_cli.options import AsJson, Reading, key_and_value
from atento_cli.output_paths import output_file

if TYPE_CHECKING:
    from atento.text.bulk import TextWorkers
    from atento_cli.corpus.find_duplicates import Duplicate

_SHOWN = 10  # duplicates that the report of a file lists
Near = Annotated[
    float | None,
    typer.Option(
        metavar="SIMILARITY",
        help="Also near-duplicates: the smallest Jaccard similarity of their word n-grams, above 0 to 1, such as 0.8.",
    ),
]
Ngram = Annotated[int, typer.Option(min=1, help="Words of an n-gram of --near.")]
Key = Annotated[
    str | None,
    typer.Option(
        "--text",
        metavar="COLUMN",
        help="Compare this column of a table (.tsv, .csv, .xlsx, .parquet, .tmx ...) by number or name, or this key of "
        "JSON, not lines.",
    ),
]


def deduplicate(
    source: Annotated[str, typer.Argument(metavar="IN", help="File with one text, pair or record a line.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File for what is left, in its order.")],
    near: Near = None,
    ngram: Ngram = 3,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE",
            help="Compute the hashes of --near by workers: local, ray, or ray://HOST:PORT.",
            autocompletion=words("local", "ray", "ray://"),
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Number of workers of --cluster local; one for each CPU.")
    ] = None,
    text: Key = None,
    reading: Reading = None,
    as_json: AsJson = False,
) -> None:
    """Remove lines that repeat an earlier line, and report how many, and which.

    Of a file that has no lines, such as .xlsx, .parquet or .json, OUT has the texts of the column, one a line.
    Lines are equal without the spaces around them. Blank lines stay. The file may be larger than the memory, which has
    about 150 bytes for each line; with --near, the lines that are left must fit into it.
    """
    from atento_cli.corpus.find_duplicates import marked

    _check(near, text, reading, source)
    output_file(out, option="OUT")
    signing = _signing(cluster, workers, near, ngram)
    removed: list[Duplicate] = []
    count = 0
    with signing as started, _written(out) as file:
        # read once: the hashes may be ahead of what is written
        records, compared = tee(_records(source, text, reading))
        for (line, _), duplicate in zip(records, marked((item for _, item in compared), near, ngram, started)):
            count += 1
            if duplicate is None:
                file.write(f"{line}\n")
            else:
                removed.append(duplicate)
    left = count - len(removed)
    report = {"lines": count, "left": left, **_counts(removed)}
    if as_json:
        echo(json.dumps(report))
        return
    echo(
        f"{count:,} lines, {report['equal']:,} equal to an earlier one and {report['near']:,} near-duplicates "
        f"removed, {left:,} left in {out}"
    )
    for duplicate in removed[:_SHOWN]:
        echo(f"  {source}:{duplicate.number} repeats line {duplicate.of} ({duplicate.similarity:.2f})")


def overlap(
    train: Annotated[str, typer.Argument(metavar="TRAIN", help="Training file with one text, pair or record a line.")],
    test: Annotated[str, typer.Argument(metavar="TEST", help="Test file of the same form.")],
    near: Near = None,
    ngram: Ngram = 3,
    shared_ngram: Annotated[
        int, typer.Option(min=1, help="Also count test lines that share an n-gram of so many words with training.")
    ] = 13,
    text: Key = None,
    reading: Reading = None,
    as_json: AsJson = False,
) -> None:
    """Report the test lines that are also in the training data: equal, similar, or with a long n-gram in common.

    The test file must fit into the memory; the training file is read twice, a line at a time.
    """
    from atento_cli.corpus.find_duplicates import seen_ngrams, shared

    _check(near, text, reading, train, test)
    if train == test == "-":
        raise UsageError("standard input can be read once: only one of the files may be `-`")
    kept = list(_records(train, text, reading)) if train == "-" else None  # read twice below

    def train_texts() -> Iterator[tuple[int, str]]:
        return (item for _, item in (_records(train, text, reading) if kept is None else kept))

    test_texts = [item for _, item in _records(test, text, reading) if item[1].strip()]
    repeated = list(shared(train_texts(), test_texts, near, ngram))
    contained = seen_ngrams((line for _, line in train_texts()), [line for _, line in test_texts], shared_ngram)
    report = {"lines": len(test_texts), "shared_ngram": len(contained), **_counts(repeated)}
    if as_json:
        echo(json.dumps(report))
        return
    echo(
        f"of {len(test_texts):,} test lines, {report['equal']:,} are in {train}, {report['near']:,} are similar to a "
        f"line of it, {len(contained):,} share {shared_ngram} words in a row with it"
    )
    for duplicate in repeated[:_SHOWN]:
        echo(f"  {test}:{duplicate.number} repeats {train}:{duplicate.of} ({duplicate.similarity:.2f})")


@contextmanager
def _signing(
    cluster: str | None, workers: int | None, near: float | None, ngram: int
) -> "Iterator[TextWorkers | None]":
    """Start the workers that compute hashes, and end them."""
    from atento_cli.corpus.find_duplicates import signing_processes
    from atento_cli.scale.ray_texts import signing_tasks

    if workers is not None and cluster != "local":
        raise UsageError("--workers is the number of workers of --cluster local")
    if check_cluster(cluster) is None:
        yield None
        return
    if near is None:
        raise UsageError("--cluster computes the hashes of near-duplicates: it needs --near")
    with redirect_stdout(sys.stderr):  # Ray prints to standard output
        started: TextWorkers
        if cluster == "local":
            started = signing_processes(ngram, workers or os.cpu_count() or 1)
        else:
            started = signing_tasks(str(cluster), ngram)
        with closing(started):
            yield started


def _check(near: float | None, column: str | None, reading: list[str] | None, *files: str) -> None:
    from atento_cli.table_columns import is_table

    stated = dict(map(key_and_value, reading or []))
    if column is not None and not any(name == "-" or is_table(name, stated) for name in files):
        what = f"{files[0]} is none" if len(files) == 1 else "neither file is one"
        raise UsageError(f"--text names a column of a table, and {what}: --reading format=tsv (or csv) says otherwise")
    if near is not None and not 0 < near <= 1:
        raise UsageError(f"--near must lie above 0 and be at most 1: got {near:g}")


def _counts(repeated: "list[Duplicate]") -> dict[str, object]:
    equal = sum(duplicate.equal for duplicate in repeated)
    first = [
        {"line": duplicate.number, "of": duplicate.of, "similarity": round(duplicate.similarity, 4)}
        for duplicate in repeated[:_SHOWN]
    ]
    return {"equal": equal, "near": len(repeated) - equal, "first": first}


def _lines(name: str, encoding: str | None = None) -> Iterator[str]:
    """Yield the lines of a file, .gz too, or of standard input."""
    from atento.data.files.source_lines import iter_lines, open_binary

    if name == "-":
        yield from iter_lines(sys.stdin.buffer, "standard input")
        return
    with open_binary(Path(name).expanduser(), name, streamed=True, encoding=encoding) as stream:
        yield from iter_lines(stream, name)


class _AsFile:
    """Lines as the open file that readers of tables take."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines

    def readline(self, _: int) -> bytes:
        """Return the next line; at the end, no bytes."""
        line = next(self._lines, None)
        return b"" if line is None else f"{line}\n".encode()


def _records(name: str, column: str | None, reading: list[str] | None) -> Iterator[tuple[str, tuple[int, str]]]:
    """Each record as it is written, with the number of its first line, from 1, and the text that is compared.

    The line that names the columns is a record with a blank text. Of a file without lines, the text is the record.
    Raises DataError: a record has no such column. UsageError: a column must be named.
    """
    from atento.config.recipe import SourceConfig
    from atento.config.tables.formats import format_of
    from atento.config.tables.task_spec import Field
    from atento.data.files.dialect import sniffed
    from atento.data.files.source_lines import display_name
    from atento.data.files.source_records import rows_in
    from atento.data.records.labelled_data import reading_of
    from atento.data.records.values import Converter, at_key
    from atento_cli.table_columns import is_table, table_rows

    stated = dict(map(key_and_value, reading or []))
    form = format_of(name, stated.get("format"), ())
    if name != "-" and not is_table(name, stated):
        column = None  # the other file is the table
    if form not in ("tsv", "csv", "jsonl") and is_table(name, stated):
        if column is None:
            raise UsageError(f"{name}: has no lines: name the column of its texts by --text")
        for number, cell in table_rows(name, [column], stated):
            if isinstance(cell, DataError):
                raise cell
            yield cell, (number, cell)
        return
    chosen = int(column) if column is not None and column.isdecimal() else column
    source = SourceConfig(file=name, **reading_of(name, stated))
    if name != "-" and chosen is not None:
        source = sniffed(source, str(form), (), Path(), [chosen])
    lines, read = tee(_lines(name, source.encoding))
    if column is None or form == "jsonl":
        numbered = enumerate(lines, start=1)
        for number, line in numbered:
            while form == "csv" and line.count('"') % 2 and (more := next(numbered, None)):  # a quoted cell goes on
                line += f"\n{more[1]}"
            try:
                value = line if column is None or not line.strip() else at_key(json.loads(line), column)
            except ValueError as error:
                raise DataError(f"{display_name(name)}:{number}: has no text {column!r}: {error}") from None
            yield line, (number, value if isinstance(value, str) else json.dumps(value))
        return
    assert chosen is not None
    rows = rows_in(
        "csv" if form == "csv" else "tsv", cast(BinaryIO, _AsFile(read)), display_name(name), [chosen],
        Converter((Field("text"),)), delimiter=source.delimiter,
    )  # fmt: skip
    begin, text = 1, ""
    for row in rows:
        if isinstance(row, DataError):
            raise row
        if row[0] > begin:  # a quoted cell may hold line ends
            yield "\n".join(islice(lines, row[0] - begin)), (begin, text)
        begin, text = row[0], str(row[1][0])
    if rest := list(lines):
        yield "\n".join(rest), (begin, text)


@contextmanager
def _written(path: Path) -> Iterator[TextIO]:
    """Open a file that replaces `path` at the end, so that IN and OUT may be the same; a device is written to."""
    from atento.storage.atomic_files import output

    with output(path) as partial, partial.open("w", encoding="utf-8", newline="\n") as file:
        yield file
