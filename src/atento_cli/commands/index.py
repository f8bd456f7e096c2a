"""`atento index` and `atento find`: an index of own texts, and the lines in it that answer a query."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from atento.base.errors import DataError, UsageError, counted
from atento.base.terminal import echo, write
from atento_cli.command_progress import Progress, show_batches
from atento_cli.completion import indexes, models
from atento_cli.lines import file_lines, one_line
from atento_cli.options import ModelArgument, ModelOptions, Reading, key_and_value, running, with_options
from atento_cli.output_paths import output_folder

if TYPE_CHECKING:
    from atento.retrieval.index_folder import Document


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    make = "atento index texts.txt MODEL --out my-index"
    app.command("index", epilog=f"Example:  {make}")(index)
    app.command("find", epilog=f"Example:  {make}; atento find my-index 'the cat' --hybrid --top 5")(find)


@with_options()
def index(
    corpus: Annotated[
        str, typer.Argument(metavar="CORPUS", help="A file of lines, or a table with --columns; - is standard input.")
    ],
    model: ModelArgument,
    out: Annotated[Path, typer.Option(metavar="I", help="The folder of the index.", autocompletion=indexes)],
    shared: ModelOptions,
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...", help="Columns of a table: that of the texts, and those to show and filter by."
        ),
    ] = None,
    reading: Reading = None,
    vectors: Annotated[
        Literal["float32", "int8"], typer.Option(help="How vectors are stored; int8 is a quarter of the size.")
    ] = "float32",
    add: Annotated[bool, typer.Option("--add", help="Add the lines to an index.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Take lines with these texts out of an index.")] = False,
) -> None:
    """Make an index of lines, to be searched by `atento find`; it is written whole or not at all.

    Blank lines are left out. Later lines need the model that made the index.
    """
    if add and remove:
        raise UsageError("--add and --remove exclude each other")
    if (add or remove) and vectors != "float32":
        raise UsageError("--vectors is for a new index: it excludes --add and --remove")
    documents = _documents(corpus, columns, reading or [])
    output_folder(out)
    with shared.loaded(model) as loaded, Progress("index") as progress:
        from atento.retrieval.text_index import Index

        if remove:
            opened = Index(out, loaded)
            number, done = opened.remove([one.text for one in documents]), "removed"
        elif add:
            opened = Index(out, loaded)
            number, done = opened.add(documents, report=progress.share), "added"
        else:
            opened = Index.create(documents, loaded, out, vectors=vectors, report=progress.share)
            number, done = len(opened), "added"
    report = {"index": str(out), done: number, "lines": len(opened)}
    echo(json.dumps(report) if shared.as_json else f"{done} {counted(number, 'line')}: {out} has {len(opened):,}")


def _documents(corpus: str, columns: str | None, reading: Sequence[str]) -> "list[Document]":
    """The lines of a file that are not blank. Raises DataError: there are none, or one cannot be read; names it."""
    from atento.data.files.source_lines import display_name
    from atento.retrieval.index_folder import Document
    from atento_cli.table_columns import table_rows

    names, documents, source = [] if columns is None else columns.split(","), [], display_name(corpus)
    if names or reading:
        rows = table_rows(corpus, names, dict(map(key_and_value, reading)))
    else:
        rows = enumerate(file_lines(corpus), 1)
    for line, row in rows:
        if isinstance(row, DataError):
            raise row
        text, *cells = row.split("\t") if len(names) > 1 else [row]
        if text.strip():
            documents.append(Document(text, line, source, dict(zip(names[1:], cells))))
    if not documents:
        raise DataError(f"{source}: an index needs at least one line with text: got none")
    return documents


@with_options()
def find(
    folder: Annotated[Path, typer.Argument(metavar="I", help="The folder of an index.", autocompletion=indexes)],
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What to search for; - reads queries, one a line.")],
    shared: ModelOptions,
    by_words: Annotated[
        bool, typer.Option("--words", help="Find lines by their words (BM25), without a model.")
    ] = False,
    hybrid: Annotated[bool, typer.Option("--hybrid", help="Find by vectors and by words, joined by rank.")] = False,
    top: Annotated[int, typer.Option(metavar="N", min=1, help="The most lines of a query.")] = 10,
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN=VALUE", help="Find lines with this value alone; of several of a column, any."),
    ] = None,
    rerank: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="A ranker that orders the first lines anew.", autocompletion=models),
    ] = None,
    within: Annotated[
        int, typer.Option(metavar="N", min=1, help="Lines of each ranking that are joined and ordered anew.")
    ] = 100,
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="The model of the index, where it has moved.", autocompletion=models),
    ] = None,
) -> None:
    """Print the lines of an index that answer a query: score, place and text, the best first.

    The score is the cosine of vectors; with --words BM25, with --hybrid the sum of 1 / (60 + rank), with --rerank the
    number of the ranker.
    """
    if by_words and hybrid:
        raise UsageError("--words and --hybrid exclude each other")
    from atento.retrieval.index_folder import read_state

    made_by = read_state(folder).model
    queries = [query] if query != "-" else file_lines("-")
    for line, text in enumerate(queries, 1):
        if not text.strip():
            raise DataError(f"{f'standard input:{line}: ' if query == '-' else ''}the query is empty: give words")
    values: dict[str, list[str]] = {}
    for item in where or []:
        column, equals, value = item.partition("=")
        if not equals:
            raise UsageError(f"--where has the form COLUMN=VALUE: got {item!r}")
        values.setdefault(column, []).append(value)
    with running(shared.seed, shared.threads) if by_words else shared.loaded(model or made_by) as loaded:
        from atento.model import load
        from atento.retrieval import By
        from atento.retrieval.text_index import Index

        opened = Index(folder, loaded)
        ranker = None if rerank is None else load(rerank, shared.device, shared.precision)
        by: By = "words" if by_words else "both" if hybrid else "vectors"
        with show_batches("find"):
            found = opened.find(queries, top=top, by=by, where=values, rerank=ranker, within=within)
    for number, (text, hits) in enumerate(zip(queries, found)):
        if shared.as_json:
            write(json.dumps({"query": text, "hits": [asdict(hit) for hit in hits]}, ensure_ascii=False) + "\n")
            continue
        write("\n" if number else "")
        for hit in hits:
            write(f"{hit.score:.4f}\t{hit.source}:{hit.line}\t{one_line(hit.text)}\n")
