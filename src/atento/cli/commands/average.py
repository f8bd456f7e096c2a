"""`atento average`: the mean of a run's last checkpoints."""

import json
from pathlib import Path
from typing import Annotated

import typer

from atento.cli.completion import runs
from atento.cli.options import AsJson
from atento.errors import counted
from atento.terminal import echo


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("average", epilog="Example:  atento average runs/demo --last 5")(average)


def average(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder.", autocompletion=runs)],
    last: Annotated[
        int | None, typer.Option(min=1, help="Number of checkpoints; 5, or all if there are fewer, if not given.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Average the weights of the last checkpoints of a run, and print the folder of the averaged model."""
    from atento.storage.average_weights import average_run

    averaged = average_run(Path(run), last or 5)
    if len(averaged.names) < (last or 2):  # the mean of one is that one, so also without --last
        asked = "" if last is None else f", and --last is {last:,}"
        echo(f"warning: {run} has {counted(len(averaged.names), 'checkpoint')} to average{asked}", err=True)
    echo(f"averaged {counted(len(averaged.names), 'checkpoint')}: {', '.join(averaged.names)}", err=True)
    if averaged.skipped:
        skipped = ", ".join(averaged.skipped)
        echo(
            f"left out, because the recipe does not schedule them or checkpoints after them are gone: {skipped}",
            err=True,
        )
    record = {"path": str(averaged.path), "checkpoints": averaged.names, "skipped": averaged.skipped}
    echo(json.dumps(record) if as_json else str(averaged.path))
