"""`atento data deduplicate` and `atento data overlap`: repeated texts of one file, and of training and test data."""

import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, redirect_stdout
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from atento.cli.cluster_option import check_cluster
from atento.cli.completion import words
from atento.cli.options import AsJson
from atento.cli.output_paths import output_file
from atento.errors import DataError, UsageError
from atento.terminal import echo

if TYPE_CHECKING:
    from atento.data.corpus.find_duplicates import Duplicate
    from atento.text.text_workers import TextWorkers

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
        "--text", metavar="COLUMN", help="Compare this key of a .jsonl file or column number of a .tsv file, not lines."
    ),
]


def deduplicate(
    source: Annotated[str, typer.Argument(metavar="IN", help="File with one text, pair or record a line.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File for the lines that are left, in their order.")],
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
    as_json: AsJson = False,
) -> None:
    """Remove lines that repeat an earlier line, and report how many, and which.

    Lines are equal without the spaces around them. Blank lines stay. The file may be larger than the memory, which has
    about 150 bytes for each line; with --near, the lines that are left must fit into it.
    """
    from atento.data.corpus.find_duplicates import marked

    _check(near)
    output_file(out, option="OUT")
    signing = _signing(cluster, workers, near, ngram)
    removed: list[Duplicate] = []
    count = 0
    with signing as started, _written(out) as file:
        lines, compared = tee(_lines(source))  # read once: the hashes may be ahead of what is written
        for line, duplicate in zip(lines, marked(_texts(compared, source, text), near, ngram, started)):
            count += 1
            if duplicate is None:
                file.write(f"{line}\n")
            else:
                removed.append(duplicate)
    left = count - len(removed)
    report = {"lines": count, **_counts(removed), "left": left, "first": _first(removed)}
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
    as_json: AsJson = False,
) -> None:
    """Report the test lines that are also in the training data: equal, similar, or with a long n-gram in common.

    The test file must fit into the memory; the training file is read twice, a line at a time.
    """
    from atento.data.corpus.find_duplicates import seen_ngrams, shared

    _check(near)
    if train == test == "-":
        raise UsageError("standard input can be read once: only one of the files may be `-`")
    train_lines = list(_lines(train)) if train == "-" else None  # read twice below

    def train_texts() -> Iterator[tuple[int, str]]:
        return _texts(_lines(train) if train_lines is None else train_lines, train, text)

    test_texts = [item for item in _texts(_lines(test), test, text) if item[1].strip()]
    repeated = list(shared(train_texts(), test_texts, near, ngram))
    contained = seen_ngrams((line for _, line in train_texts()), [line for _, line in test_texts], shared_ngram)
    report = {"lines": len(test_texts), **_counts(repeated), "shared_ngram": len(contained), "first": _first(repeated)}
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
    from atento.data.corpus.find_duplicates import signing_processes
    from atento.scale.ray_texts import signing_tasks

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


def _check(near: float | None) -> None:
    if near is not None and not 0 < near <= 1:
        raise UsageError(f"--near must lie above 0 and be at most 1: got {near:g}")


def _counts(repeated: "list[Duplicate]") -> dict[str, int]:
    equal = sum(duplicate.equal for duplicate in repeated)
    return {"equal": equal, "near": len(repeated) - equal}


def _first(repeated: "list[Duplicate]") -> list[dict[str, object]]:
    return [
        {"line": duplicate.number, "of": duplicate.of, "similarity": round(duplicate.similarity, 4)}
        for duplicate in repeated[:_SHOWN]
    ]


def _lines(name: str) -> Iterator[str]:
    """Yield the lines of a file, .gz too, or of standard input."""
    from atento.data.files.source_lines import iter_lines, open_binary

    if name == "-":
        yield from iter_lines(sys.stdin.buffer, "standard input")
        return
    with open_binary(Path(name).expanduser(), name, streamed=True) as stream:
        yield from iter_lines(stream, name)


def _texts(lines: Iterable[str], name: str, column: str | None) -> Iterator[tuple[int, str]]:
    """The number of each line, from 1, and the text that is compared.

    Raises:
        DataError: a line has no such column.
    """
    is_json = name.removesuffix(".gz").endswith(".jsonl")
    if column is not None and not is_json and not column.isdecimal():
        raise UsageError(f"--text must be the number of a column, from 0, except for .jsonl files: got {column!r}")
    for number, line in enumerate(lines, start=1):
        if column is None or not line.strip():
            yield number, line
            continue
        try:
            value = json.loads(line)[column] if is_json else line.split("\t")[int(column)]
        except (ValueError, LookupError, TypeError):
            raise DataError(f"{name}:{number}: has no text {column!r}") from None
        yield number, value if isinstance(value, str) else json.dumps(value)


@contextmanager
def _written(path: Path) -> Iterator[TextIO]:
    """Open a file that replaces `path` at the end, so that IN and OUT may be the same; a device is written to."""
    from atento.storage.whole_file import output

    with output(path) as partial, partial.open("w", encoding="utf-8", newline="\n") as file:
        yield file
