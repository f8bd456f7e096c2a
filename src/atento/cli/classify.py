"""`atento classify`: a label for each line, with its probability."""

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from atento.cli.lines import input_lines, windows
from atento.cli.options import (
    AsJson,
    Device,
    ModelArgument,
    Precision,
    Seed,
    Threads,
    check_order,
    progress,
    running,
)
from atento.cli.progress import announce_stdin, show_batches

if TYPE_CHECKING:
    from atento.model import Model


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("classify", epilog="Example:  atento classify MODEL reviews.txt")(classify)


def classify(
    model: ModelArgument,
    file: Annotated[str, typer.Argument(metavar="FILE", help="One text a line; - is standard input.")] = "-",
    pairs: Annotated[
        bool, typer.Option("--pairs", help="Each line holds two texts with a tab between, for a model of pairs.")
    ] = False,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="A bad line becomes an empty line instead of an error.")
    ] = False,
    device: Device = "auto",
    precision: Precision = "float32",
    seed: Seed = 1,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Print the most probable label of each line and its probability; an empty line stays empty.

    With --json, print the probability of every label.
    """
    from atento.errors import counted
    from atento.model import load

    check_order(model, file)
    bad: list[str] | None = [] if skip_bad else None
    lines = input_lines(file, bad, _two_texts if pairs else None)
    with running(seed, threads):
        loaded = load(model, device=device, precision=precision)
        loaded.classifications([])  # whether it classifies is known before the first line is read
        announce_stdin(file)
        with show_batches("classify"):
            for window in windows(lines, from_stdin=file == "-"):
                _show(loaded, window, pairs, as_json)
    if bad:
        progress(f"warning: {counted(len(bad), 'bad line')} left empty, first: {bad[0]}")


def _show(loaded: "Model", lines: Sequence[str], pairs: bool, as_json: bool) -> None:
    """The labels of some lines."""
    texts = [line for line in lines if line.strip()]
    results = iter(loaded.classifications([_pair(line) for line in texts] if pairs else texts))
    for line in lines:
        labels = next(results) if line.strip() else []
        if as_json:
            records = [{"name": label.name, "probability": label.probability} for label in labels]
            sys.stdout.write(json.dumps({"text": line, "labels": records}, ensure_ascii=False) + "\n")
        elif labels:
            sys.stdout.write(f"{labels[0].name}\t{labels[0].probability:.4f}\n")
        else:
            sys.stdout.write("\n")
    sys.stdout.flush()


def _two_texts(line: str, position: str) -> None:
    """Raises DataError: the line has another number of texts than two."""
    from atento.errors import DataError, counted

    texts = line.split("\t")
    if len(texts) != 2:
        raise DataError(f"{position}: --pairs takes two texts with a tab between: got {counted(len(texts), 'text')}")


def _pair(line: str) -> tuple[str, str]:
    """The two texts of a checked line."""
    first, second = line.split("\t")
    return first, second
