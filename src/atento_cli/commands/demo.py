"""`atento demo`: train a translator on the micro-world, score it on unseen sentences, translate and draw attention."""

import json
from pathlib import Path
from typing import Annotated

import typer

from atento.base.terminal import echo
from atento_cli.options import AsJson, Device, Threads, TrainingPrecision, TrainingSeed, running

_MINUTES = 4.0  # of updates at most; start, scores and translations take one more on processors without AVX-512
# Where products take longer, the same tokens in twice the updates: after 1.5 million targets BLEU 78 instead of 60.
_SMALLER = {"training.steps": 2400, "training.batch_tokens": 2048}


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("demo", epilog="Example:  atento demo 'The white cat loves my small house.'")(demo)


def demo(
    sentences: Annotated[
        list[str] | None, typer.Argument(metavar="SENTENCE", help="An English sentence to translate.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="RUN", help="The run folder.")] = Path("runs/demo"),
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            envvar="ATENTO_DEMO_STEPS",
            help="Training steps; if not given, as many as the machine takes in 4 minutes, 1,200 at most (2,400 of "
            "half the size where it has no fast bfloat16).",
        ),
    ] = None,
    device: Device = "auto",
    precision: TrainingPrecision = None,
    seed: TrainingSeed = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Train a small English-Portuguese translator on the micro-world in a few minutes, and show what it learned."""
    from atento.base.precision import best_precision, resolve_device
    from atento.runs.train import train
    from atento_cli.demo import results, show

    overrides: dict[str, object] = {"training.minutes": _MINUTES} if steps is None else {"training.steps": steps}
    if steps is None and best_precision(resolve_device(device)) == "float32":
        overrides |= _SMALLER
    run = train("micro-world-en-pt", overrides, out=out, device=device, precision=precision, seed=seed, threads=threads)
    with running(seed or 1, threads):
        record = {"steps": run.step, **results(out, sentences or [], device=device)}
    if as_json:
        echo(json.dumps(record, ensure_ascii=False))
        return
    for line in show(record):
        echo(line)
