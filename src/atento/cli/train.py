"""`atento train`: a recipe in, a run folder out."""

import json
import shlex
from dataclasses import asdict
from typing import Annotated

import typer

from atento.cli import completion
from atento.cli.options import AsJson, Device, Threads, TrainingPrecision, TrainingSeed


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("train", epilog="Example:  atento train micro-world-en-pt training.steps=500 --out runs/first")(train)


def train(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            help="A YAML file, the name of a shipped recipe, or a run folder to go on with.",
            autocompletion=completion.recipes,
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="key=value", help="Changes, such as training.steps=1000.", autocompletion=completion.overrides
        ),
    ] = None,
    out: Annotated[str | None, typer.Option(metavar="RUN", help="The run folder; runs/NAME if not given.")] = None,
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="RUN@STEP", help="Begin at a checkpoint of another run: a step, best or last."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Move a folder that stands in the way aside.")] = False,
    device: Device = "auto",
    precision: TrainingPrecision = None,
    seed: TrainingSeed = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Train what the recipe says. An unfinished run goes on exactly where it stopped.

    Ctrl-C, SIGTERM and SIGUSR1 save a checkpoint after the step under way; the exit status is then 75, and the same
    command goes on.
    """
    from atento.config.tasks import verb_of
    from atento.runs.train import train as run

    done = run(
        recipe,
        overrides or [],
        out=out,
        force=force,
        device=device,
        precision=precision,
        seed=seed,
        threads=threads,
        from_=from_,
    )
    if as_json:
        typer.echo(json.dumps(asdict(done) | {"folder": str(done.folder)}, ensure_ascii=False))
    if done.already_finished:
        return
    best = "" if done.best is None else f", best validation score {done.best:.2f} at step {done.best_step}"
    typer.echo(f"finished {done.folder} at step {done.step}{best}", err=True)
    lines = [f"  atento {words.format(run=shlex.quote(str(done.folder)))}" for words in _NEXT[verb_of(done.task)]]
    typer.echo("\n".join(["next:", *lines, f"  atento runs show {shlex.quote(str(done.folder))}"]), err=True)


_NEXT: dict[str | None, tuple[str, ...]] = {  # by the verb of the task
    "translate": ("translate {run} FILE", "attend {run} TEXT --out page.html", "evaluate {run} FILE.tsv"),
    "summarize": ("summarize {run} FILE", "evaluate {run} FILE.tsv"),
    "generate": ("generate {run} FILE --top-p 0.9", "generate {run} FILE --beam 4"),
    "classify": ("classify {run} FILE", "evaluate {run} FILE.tsv"),
    "fill": ("fill {run} FILE", "embed {run} FILE", "similarity {run} PAIRS.tsv"),
    "embed": ("embed {run} FILE", "similarity {run} PAIRS.tsv"),
}
