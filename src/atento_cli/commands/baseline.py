"""`atento baseline`: what a simple learner reaches on the data of a recipe, in seconds."""

import json

import typer

from atento.base.terminal import echo
from atento_cli.options import AsJson, Overrides, RecipeArgument, progress


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("baseline", epilog="Example:  atento baseline micro-world-number")(baseline)


def baseline(recipe: RecipeArgument, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Fit simple learners to the training data of a recipe, and score them on its validation and test data.

    The splits, the metrics and the intervals are those of `atento train`. By task: the most frequent label, or TF-IDF
    with logistic regression; overlap of words, or TF-IDF with ridge regression; the most frequent tag of each word; the
    words of a context nearest to the question; a copy of the source.
    """
    from atento.runs.baseline_scores import baseline as fit

    result = fit(recipe, overrides or [], say=progress)
    if as_json:
        echo(json.dumps(result.to_dict(), ensure_ascii=False))
        return
    echo(str(result))
    if result.missing:
        progress(f"warning: {result.missing}")
