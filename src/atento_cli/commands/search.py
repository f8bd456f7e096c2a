"""`atento search`: a recipe and a space of values in, runs and the best recipe out."""

import json
import shlex
from typing import Annotated

import typer

from atento.base.terminal import echo
from atento_cli import completion
from atento_cli.options import AsJson, Device, Overrides, Seed, Threads, TrainingPrecision


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        "search", epilog="Example:  atento search micro-world-en-pt --space space.yaml --trials 9 --strategy halving"
    )(search)


def search(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE", help="A YAML file, or the name of a shipped recipe.", autocompletion=completion.recipes
        ),
    ],
    space: Annotated[
        str, typer.Option(metavar="FILE", help="YAML: a key -> a list of choices, or {low, high, log, integer, step}.")
    ],
    overrides: Overrides = None,
    trials: Annotated[
        int | None, typer.Option(metavar="N", help="Number of trials; not needed for a whole grid.")
    ] = None,
    strategy: Annotated[
        str,
        typer.Option(
            help="random; grid: all combinations in order; halving: the best go on.",
            autocompletion=completion.words("random", "grid", "halving"),
        ),
    ] = "random",
    eta: Annotated[int, typer.Option(metavar="N", help="halving: each rung lets 1/N of the trials go on.")] = 3,
    out: Annotated[
        str | None, typer.Option(metavar="DIR", help="The folder of the search; runs/NAME-search if not given.")
    ] = None,
    seed: Seed = 1,
    device: Device = "auto",
    precision: TrainingPrecision = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Search the values of recipe keys. An unfinished search is resumed exactly where it stopped.

    Each trial is a run of its own. Ctrl-C, SIGTERM and SIGUSR1 save the present trial and exit with status 75. Run the
    same command to resume. --seed draws the values; the seed of training is the recipe's.
    """
    from atento_cli.search.run_search import search as run

    result = run(
        recipe,
        space,
        trials=trials,
        overrides=overrides or [],
        strategy=strategy,
        seed=seed,
        eta=eta,
        out=out,
        device=device,
        precision=precision,
        threads=threads,
    )
    echo(json.dumps(result.to_dict(), ensure_ascii=False) if as_json else str(result))
    best, folder = result.best, shlex.quote(str(result.folder))
    assert best is not None
    equal = sum(trial.state == best.state and trial.score == best.score for trial in result.trials)
    first = f" (of {equal} with this score, by the next ones)" if equal > 1 else ""
    lines = [
        f"best: {best.name}{first}, {result.metric} {best.score:.6g} at step {best.step:,}",
        f"picture: {folder}/search.html",
        "next:",
        f"  atento runs show {folder}/{best.name}",
        f"  atento train {folder}/best.yaml",
    ]
    echo("\n".join(lines), err=True)
