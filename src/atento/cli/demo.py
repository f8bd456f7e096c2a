"""`atento demo`: the main job on the embedded micro-world: train, score what was never seen, translate, look."""

from pathlib import Path
from typing import Annotated

import typer

from atento.cli.options import Threads


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("demo", epilog="Example:  atento demo 'The white cat loves my small house.'")(demo)


def demo(
    sentences: Annotated[list[str] | None, typer.Argument(metavar="SENTENCE", help="English of your own.")] = None,
    out: Annotated[Path, typer.Option(metavar="RUN", help="The run folder.")] = Path("runs/demo"),
    steps: Annotated[
        int | None,
        typer.Option(
            min=1, envvar="ATENTO_DEMO_STEPS", help="Fewer updates than the recipe's 1,200, for a quick look."
        ),
    ] = None,
    threads: Threads = None,
) -> None:
    """Learn to translate English to Portuguese from the micro-world, and show what was learnt, in some minutes."""
    from atento.demo import show
    from atento.tasks.run import train

    train("micro-world-en-pt", {} if steps is None else {"training.steps": steps}, out=out, threads=threads)
    for line in show(out, sentences or []):
        typer.echo(line)
