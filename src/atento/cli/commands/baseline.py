"""`atento baseline`: what a simple learner reaches on the data of a recipe, in seconds."""

import json
from typing import Annotated

import typer

from atento.cli import completion
from atento.cli.options import AsJson, progress
from atento.terminal import echo


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("baseline", epilog="Example:  atento baseline micro-world-number")(baseline)


def baseline(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE", help="A YAML file, or the name of a shipped recipe.", autocompletion=completion.recipes
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="key=value", help="Overrides, such as training.seed=2.", autocompletion=completion.overrides
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fit simple learners to the training data of a recipe, and score them on its validation and test data.

    The splits, the metrics and the intervals are those of `atento train`. By task: the most frequent label, or TF-IDF
    with logistic regression; overlap of words, or TF-IDF with ridge regression; the most frequent tag of each word; the
    words of a context nearest to the question; a copy of the source.
    """
    from atento.runs.simple_baseline import baseline as fit

    result = fit(recipe, overrides or [], say=progress)
    if as_json:
        echo(json.dumps(result.to_dict(), ensure_ascii=False))
        return
    echo(str(result))
    if result.missing:
        progress(f"warning: {result.missing}")
