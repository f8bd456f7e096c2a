"""`atento similarity`: how similar the two texts of each line are."""

import json
from typing import TYPE_CHECKING, Any

import typer

from atento.cli.cluster_option import with_cluster
from atento.cli.commands.embed import Layer, Pooling
from atento.cli.explain_option import ExplainOptions
from atento.cli.options import ModelArgument, with_options
from atento.errors import DataError
from atento.terminal import write

if TYPE_CHECKING:
    from atento.model import Model


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("similarity", epilog="Example:  atento similarity MODEL pairs.tsv")(with_cluster(similarity))


@with_options(file="Two texts per line, separated by a TAB; - is standard input.")
def similarity(model: ModelArgument, shared: ExplainOptions, layer: Layer = None, pooling: Pooling = None) -> None:
    """Print how similar the two texts of each line are; an empty line stays empty.

    A regression model prints its number, for lines with one text too if it was trained on single texts; other models
    print the cosine of the vectors of the texts, from -1 to 1.
    """
    chosen = {"layer": layer, "pooling": pooling}
    options = {option: value for option, value in chosen.items() if value is not None}
    excluded = {f"--{option}": value for option, value in chosen.items()}
    if shared.explains("similarity", model, _texts, excluded=excluded, check=_one_or_two_texts):
        return
    shared.answer(
        "similarity",
        model,
        lambda loaded, lines, *_: _show(loaded, lines, options, shared.as_json),
        ready=lambda loaded: loaded,
        check=_one_or_two_texts,
        model_check=_lacks_a_text,
    )


def _one_or_two_texts(line: str, position: str) -> None:
    """Raises DataError: the line has more texts than two."""
    count = line.count("\t") + 1
    if count > 2:
        raise DataError(f"{position}: a line must have two texts separated by a TAB: got {count}")


def _texts(line: str) -> str | tuple[str, str]:
    """The text, or the two texts, of a checked line."""
    first, *second = line.split("\t")
    return (first, second[0]) if second else first


def _lacks_a_text(loaded: "Model", line: str) -> str | None:
    """Why the model cannot compare the texts of a line; None: it can."""
    from atento.tasks.regression import has_regression_head

    learned = loaded.config.get("pairs") if has_regression_head(loaded) else True
    if learned is None or learned == ("\t" in line):
        return None
    needed = "needs a second one behind a TAB, because the model compares two"
    return needed if learned else "has a TAB, and the model reads single texts"


def _show(loaded: "Model", lines: list[str], options: dict[str, Any], as_json: bool) -> None:
    """Write the numbers of some lines; those with one text and those with two are computed together."""
    texts = [line.split("\t") for line in lines]
    numbers: dict[int, float] = {}
    for count in (1, 2):
        rows = [row for row, line in enumerate(lines) if line.strip() and len(texts[row]) == count]
        if rows:
            columns = [[texts[row][side] for row in rows] for side in range(count)]
            numbers |= dict(zip(rows, loaded.similarity(*columns, **options)))
    for row, parts in enumerate(texts):
        number = numbers.get(row)
        if as_json:
            write(json.dumps({"texts": parts, "similarity": number}, ensure_ascii=False) + "\n")
        else:
            write("\n" if number is None else f"{number:.6f}\n")
