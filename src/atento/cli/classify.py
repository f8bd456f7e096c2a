"""`atento classify`: a label for each line, with its probability."""

import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

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
    from atento.tasks.classification import Label

WINDOW = 1024  # lines worked on at a time


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
    from atento.data.source_lines import display_name, iter_lines, read_lines
    from atento.errors import counted
    from atento.model import load

    check_order(model, file)
    bad: list[str] | None = [] if skip_bad else None
    whole = None if file == "-" else read_lines(file, bad=bad)
    with running(seed, threads):
        loaded = load(model, device=device, precision=precision)
        loaded.classifications([])  # whether it classifies is known before the first line is read
        announce_stdin(file)
        lines = iter_lines(sys.stdin.buffer, "standard input", bad=bad) if whole is None else iter(whole)
        size = 1 if whole is None and sys.stdin.isatty() else WINDOW
        with show_batches("classify"):
            done = 0
            while window := list(itertools.islice(lines, size)):
                _show(loaded, window, done, display_name(file), pairs, as_json)
                done += len(window)
    if bad:
        progress(f"warning: {counted(len(bad), 'bad line')} left empty, first: {bad[0]}")


def _show(loaded: "Model", lines: Sequence[str], before: int, name: str, pairs: bool, as_json: bool) -> None:
    """The labels of some lines, of which `before` have been shown."""
    real = [line for line in lines if line.strip()]
    if pairs:
        texts = [_pair(line, f"{name}:{before + number}") for number, line in enumerate(lines, 1) if line.strip()]
        found: Iterator[list[Label]] = iter(loaded.classifications(texts))
    else:
        found = iter(loaded.classifications(real))
    for line in lines:
        labels = next(found) if line.strip() else []
        if as_json:
            shown = [{"name": label.name, "probability": label.probability} for label in labels]
            sys.stdout.write(json.dumps({"text": line, "labels": shown}, ensure_ascii=False) + "\n")
        elif labels:
            sys.stdout.write(f"{labels[0].name}\t{labels[0].probability:.4f}\n")
        else:
            sys.stdout.write("\n")
    sys.stdout.flush()


def _pair(line: str, place: str) -> tuple[str, str]:
    """The two texts of a line.

    Raises:
        DataError: it has not two.
    """
    from atento.errors import DataError, counted

    texts = line.split("\t")
    if len(texts) != 2:
        raise DataError(f"{place}: --pairs takes two texts with a tab between: got {counted(len(texts), 'text')}")
    return texts[0], texts[1]
