"""`atento data mine`: hard negatives of pairs of queries and documents, by an encoder and perhaps a ranker."""

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from atento.base.errors import DataError, UsageError
from atento.base.terminal import echo
from atento_cli.command_progress import show_batches
from atento_cli.commands.evaluate import columns_given
from atento_cli.options import ModelOptions, Reading, key_and_value, progress, warn, with_options
from atento_cli.output_paths import output_file

EPILOG = "Example:  atento data mine pairs.tsv --encoder runs/encoder --negatives 5 --margin 0.05 --out triples.jsonl"


@with_options()
def mine(
    pairs: Annotated[
        str,
        typer.Argument(
            metavar="PAIRS",
            help="A table (.tsv, .csv, .xlsx, .jsonl ...) with the columns query and positive, anchor and positive, or "
            "text and pair; without a header line the first two columns. Of a .parquet file, name them by --columns.",
        ),
    ],
    encoder: Annotated[
        str, typer.Option(metavar="MODEL", help="Finds documents near to each query by the cosine of vectors.")
    ],
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="A .tsv or .jsonl file of query, positive and negative. Replaced.")
    ],
    shared: ModelOptions,
    corpus: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Documents to search, one a line; those of the pairs if not given."),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(metavar="FIELD=COLUMN,...", help="Columns by number or name, such as query=1,positive=a.text."),
    ] = None,
    reading: Reading = None,
    ranker: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="A model of pairs that scores what the encoder finds, for the margins."),
    ] = None,
    negatives: Annotated[int, typer.Option(metavar="N", min=1, help="The most negatives of a pair.")] = 1,
    within: Annotated[
        int, typer.Option(metavar="N", min=1, help="A negative is among the N documents nearest to the query.")
    ] = 100,
    skip: Annotated[int, typer.Option(metavar="N", min=0, help="Leave out the N nearest of these.")] = 0,
    margin: Annotated[
        float, typer.Option(metavar="M", help="A negative scores at least M lower than the positive.")
    ] = 0.0,
    relative_margin: Annotated[
        float, typer.Option(metavar="R", help="A negative scores at most (1 - R) times the positive; 0.05 is usual.")
    ] = 0.0,
) -> None:
    """Find hard negatives: documents near to a query that do not answer it.

    The file can be the training data of a ranker, or of an encoder with the columns query, positive and negative as
    text, pair and negative. Pairs without a negative within the margins are left out, and counted.
    """
    from atento.model import load
    from atento.tasks.hard_negatives import Mining, mined
    from atento_cli.lines import file_lines

    mining = Mining(negatives, within, skip, margin, relative_margin)
    output_file(out, (".tsv", ".jsonl"))
    records = _pairs(
        pairs, None if columns is None else columns_given(columns), dict(map(key_and_value, reading or []))
    )
    documents = [] if corpus is None else [line for line in file_lines(corpus) if line.strip()]
    with shared.loaded(encoder) as loaded, show_batches("mine"):
        judge = None if ranker is None else load(ranker, shared.device, shared.precision)
        triples = [
            (query, positive, negative)
            for query, positive, found in mined(loaded, records, documents, mining, judge)
            for negative in found or [""]  # "": a pair without negatives, counted below
        ]
    kept = [triple for triple in triples if triple[2]]
    if records and not kept:
        raise DataError(f"{pairs}: no pair has a negative within the margins, behind the first {mining.skip} documents")
    check_cells(out, kept)
    write_rows(out, ("query", "positive", "negative"), kept)
    alone = len(triples) - len(kept)
    if alone:
        progress(f"warning: {alone:,} of {len(records):,} pairs have no negative within the margins")
    report = {"pairs": len(records), "triples": len(kept), "without": alone}
    echo(json.dumps(report) if shared.as_json else f"{len(kept):,} triples of {len(records):,} pairs in {out}")


def _pairs(path: str, columns: dict[str, int | str] | None, reading: dict[str, Any]) -> list[tuple[str, str]]:
    """Queries and right documents of a file. Raises DataError, UsageError: names file and line."""
    from atento.config.recipe import SourceConfig
    from atento.config.tables.formats import DATASETS, FORMATS, format_of, rule_of_endings
    from atento.config.tables.task_spec import Field
    from atento.data.files.dialect import first_of
    from atento.data.records.labelled_data import reading_of
    from atento.data.records.reader import read_records

    fields = (Field("text"), Field("pair"))
    form = format_of(path, reading.get("format"), fields)
    first: Sequence[str] = ()
    if dataset := path.endswith(DATASETS):
        if columns is None:
            raise UsageError(f"{path}: name its columns by --columns query=NAME,positive=NAME")
    elif form is None or not FORMATS[form].table:
        raise UsageError(f"PAIRS {rule_of_endings(path, fields)}")
    else:
        # without a header these are data
        first = first_of(SourceConfig(file=path, **reading_of(path, reading)), form)
    names = columns or {name: name for name in first}
    usual = (("query", "positive"), ("anchor", "positive"), ("text", "pair"))
    named = [pair for pair in usual if {*pair} <= names.keys()]
    if not named and (columns or form is None or not FORMATS[form].by_number):
        pairs = ", nor ".join(map(" and ".join, usual))
        raise UsageError(f"{path} has no columns {pairs}: got {', '.join(names)}")
    text, pair = (names[name] for name in named[0]) if named else (0, 1)
    place = SourceConfig(dataset=path) if dataset else SourceConfig(file=path, **reading_of(path, reading))
    records = read_records(replace(place, text=text, pair=pair), fields)
    warn(records.warnings())
    return list(zip(records["text"], records["pair"]))


def check_cells(out: Path, rows: Iterable[Sequence[str]], option: str = "--out") -> None:
    """Raises UsageError: a text does not fit into a .tsv file."""
    # without quotes, as readers of .tsv files expect
    if out.suffix.lower() == ".tsv" and any(sign in text for row in rows for text in row for sign in "\t\n\r"):
        raise UsageError(f"{option} {out}: a text has a tab or a line end, which a .tsv file cannot hold: write .jsonl")


def write_rows(out: Path, names: Sequence[str], rows: Iterable[Sequence[str | int]]) -> None:
    """Write rows with these columns in the format of the file's ending, .tsv or .jsonl."""
    from atento.storage.atomic_files import output

    with output(out) as partial, partial.open("w", encoding="utf-8", newline="\n") as file:
        if out.suffix.lower() == ".jsonl":
            file.writelines(f"{json.dumps(dict(zip(names, row)), ensure_ascii=False)}\n" for row in rows)
        else:
            table = csv.writer(file, delimiter="\t", quoting=csv.QUOTE_NONE, quotechar=None, lineterminator="\n")
            table.writerows(chain([names], rows))
