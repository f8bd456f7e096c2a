"""`atento bench`: the project's measurements beside its peers, ratios last."""

import json
from typing import Annotated

import typer

from atento.cli.options import AsJson, Threads


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("bench", epilog="Example:  atento bench training --seconds 60")(bench)


def bench(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Which; all if not given.")] = None,
    seconds: Annotated[float, typer.Option(min=1, help="How long each side is measured.")] = 30.0,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Measure, each peer beside us in the same run. Times of a shared machine are noisy: trust the ratios."""
    from atento.bench import BENCHES
    from atento.errors import UsageError, nearest
    from atento.precision import threads as thread_scope

    if name is not None and name not in BENCHES:
        raise UsageError(f"unknown measurement {name!r}{nearest(name, list(BENCHES))}")
    for chosen in [name] if name else list(BENCHES):
        with thread_scope(threads):
            for row in BENCHES[chosen](seconds):
                typer.echo(
                    json.dumps(row, ensure_ascii=False) if as_json else "\t".join(f"{k} {v}" for k, v in row.items())
                )
