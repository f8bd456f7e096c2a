"""`atento classify`: a label for each line, with its probability."""

import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
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
    name = display_name(file)
    bad: list[str] | None = [] if skip_bad else None
    whole = None if file == "-" else read_lines(file, bad=bad)
    if whole is not None and pairs:
        whole = list(_checked(whole, name, bad))
    with running(seed, threads):
        loaded = load(model, device=device, precision=precision)
        loaded.classifications([])  # whether it classifies is known before the first line is read
        announce_stdin(file)
        lines = iter_lines(sys.stdin.buffer, name, bad=bad) if whole is None else iter(whole)
        if whole is None and pairs:
            lines = _checked(lines, name, bad)
        size = 1 if whole is None and sys.stdin.isatty() else WINDOW
        with show_batches("classify"):
            while window := list(itertools.islice(lines, size)):
                _show(loaded, window, pairs, as_json)
    if bad:
        progress(f"warning: {counted(len(bad), 'bad line')} left empty, first: {bad[0]}")


def _show(loaded: "Model", lines: Sequence[str], pairs: bool, as_json: bool) -> None:
    """The labels of some lines."""
    texts = [line for line in lines if line.strip()]
    found = iter(loaded.classifications([_pair(line) for line in texts] if pairs else texts))
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


def _checked(lines: Iterable[str], name: str, bad: list[str] | None) -> Iterator[str]:
    """The lines, each of two texts with a tab between or blank; a bad one becomes a blank one where `bad` is a list.

    Raises:
        DataError: a line has another number of texts.
    """
    from atento.errors import DataError, counted

    for number, line in enumerate(lines, 1):
        texts = line.split("\t")
        if len(texts) == 2 or not line.strip():
            yield line
            continue
        what = f"{name}:{number}: --pairs takes two texts with a tab between: got {counted(len(texts), 'text')}"
        if bad is None:
            raise DataError(what)
        bad.append(what)
        yield ""


def _pair(line: str) -> tuple[str, str]:
    """The two texts of a checked line."""
    first, second = line.split("\t")
    return first, second
