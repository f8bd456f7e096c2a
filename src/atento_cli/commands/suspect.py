"""`atento suspect`: labels that are likely wrong; `atento suggest`: unlabelled texts that are worth a label."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from atento.base.terminal import write
from atento_cli import completion, options
from atento_cli.command_progress import show_batches
from atento_cli.commands.evaluate import columns_given
from atento_cli.lines import file_lines, one_line
from atento_cli.output_paths import output_file

Run = Annotated[str, typer.Argument(metavar="RUN", help="A run folder.", autocompletion=completion.runs)]


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("suspect", epilog="Example:  atento suspect runs/topics --features --out suspects.tsv")(suspect)
    app.command("suggest", epilog="Example:  atento suggest runs/topics unlabelled.txt --top 50")(suggest)


def suspect(
    run: Run,
    folds: Annotated[int, typer.Option(metavar="N", min=2, help="Number of folds.")] = 5,
    features: Annotated[
        bool, typer.Option("--features", help="Do not train: fit a linear classifier on vectors of the run's network.")
    ] = False,
    top: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="How many labels; as many as seem wrong if not given.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="A file for the lines.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Move the runs of earlier folds aside.")] = False,
    device: options.Device = "auto",
    precision: options.TrainingPrecision = None,
    seed: options.TrainingSeed = None,
    threads: options.Threads = None,
    as_json: options.AsJson = False,
) -> None:
    """Find labels of a run's training data that are likely wrong: of texts, of pairs of texts, of words.

    The recipe is trained once for each fold of the data, and each record is judged by the run that did not learn from
    it. A line has the probability of the given label, the place, the given and the likely label, and the text.
    """
    from atento.storage.atomic_files import write_atomically
    from atento_cli.labels.suspect_labels import suspect as find

    if out is not None:
        output_file(out)
    found = find(
        run,
        folds=folds,
        features=features,
        top=top,
        say=options.progress,
        force=force,
        device=device,
        precision=precision,
        seed=seed,
        threads=threads,
    )
    lines = "".join(_lines(found, as_json))
    write(lines) if out is None else write_atomically(out, lines)


def _lines(found: Iterable[Any], as_json: bool) -> Iterator[str]:
    """A line for each result: score, place, labels and texts."""
    for one in found:
        row = {name: value for name, value in asdict(one).items() if value or name == "score"}  # what such records have
        texts = [one_line(row[name]) for name in ("given", "likely", "word", "text", "pair") if name in row]
        line = "\t".join([f"{one.score:.4f}", f"{one.source}:{one.line}", *texts])
        yield f"{json.dumps(row, ensure_ascii=False) if as_json else line}\n"


@options.with_options()
def suggest(
    run: Run,
    pool: Annotated[str, typer.Argument(metavar="POOL", help="A file of texts, one a line, or a table; - for lines.")],
    shared: options.ModelOptions,
    top: Annotated[int, typer.Option(metavar="N", min=1, help="How many texts.")] = 100,
    columns: Annotated[
        str | None, typer.Option(metavar="FIELD=COLUMN,...", help="Columns of a table, such as text=question.")
    ] = None,
    reading: options.Reading = None,
) -> None:
    """Order unlabelled texts so that labels of the first ones teach the model most.

    They are those that it is unsure of, each unlike the ones before it. A line has a score, the place and the text.
    """
    named, keys = columns_given(columns) if columns else None, dict(map(options.key_and_value, reading or []))
    with shared.loaded(run) as loaded, show_batches("suggest"):
        from atento_cli.labels.next_labels import suggest as choose

        given = file_lines(pool) if pool == "-" else pool
        found = choose(loaded, given, top=top, columns=named, reading=keys, say=options.progress)
    if pool == "-":
        found = [replace(one, source="standard input", line=one.line + 1) for one in found]
    write("".join(_lines(found, shared.as_json)))
