"""`atento glue`: a model fine-tuned and scored on the tasks of GLUE, or of its Portuguese table."""

import json
import math
from typing import Annotated

import typer

from atento.base.errors import UsageError, nearest
from atento.base.terminal import echo
from atento_cli import completion
from atento_cli.options import AsJson, Device, ModelArgument, Threads, TrainingPrecision, progress
from atento_cli.score_gates import hold_gates, parse_gates


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("glue", epilog="Example:  atento glue glue_data microsoft/MiniLM --tasks rte,mrpc --seeds 1,2,3")(glue)


def glue(
    data: Annotated[str, typer.Argument(metavar="DATA_DIR", help="A folder with a folder for each task.")],
    model: ModelArgument,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="key=value",
            help="Changes of every recipe, such as training.epochs=1.",
            autocompletion=completion.overrides,
        ),
    ] = None,
    table: Annotated[str, typer.Option(help="glue, or pt for the Portuguese sets.")] = "glue",
    tasks: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Tasks, separated by commas; all that are there if not given.")
    ] = None,
    seeds: Annotated[
        str, typer.Option(metavar="SEEDS", help="Seeds of training, separated by commas; scores are their means.")
    ] = "1",
    out: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="The folder of the runs; runs/glue-MODEL if not given.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Move existing run folders aside.")] = False,
    fail_under: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="Exit with status 3 if the average or a task is worse than this, in percent."
        ),
    ] = None,
    device: Device = "auto",
    precision: TrainingPrecision = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Fine-tune MODEL on each task of GLUE from local files; print each score with its 95 % interval, and the average.

    Each task is a run folder. The same command resumes what was stopped and does not train again what is finished.
    Predictions for test files without labels are written to FOLDER/submission.
    """
    from atento_cli.suites.run_suite import glue as run
    from atento_cli.suites.suite_table import rows_named, suite_named

    suite = suite_named(table)
    gates = [(name.lower(), limit) for name, limit in parse_gates(fail_under)]
    names = ["average", *([f"average-without-{suite.without}".lower()] if suite.without else [])]
    names += [row.name.lower() for row in rows_named(suite, tasks)]
    for name, _ in gates:
        if name not in names:
            raise UsageError(f"--fail-under: unknown name {name!r}{nearest(name, names)}")
    result = run(
        data,
        model,
        overrides or [],
        table=table,
        tasks=tasks,
        seeds=_numbers(seeds),
        out=out,
        force=force,
        device=device,
        precision=precision,
        threads=threads,
        say=progress,
    )
    echo(json.dumps(result.to_dict(), ensure_ascii=False) if as_json else str(result))
    if result.submission:
        progress(f"predictions for test files: {result.submission[0].parent}")
    missing = dict.fromkeys(names, math.nan)  # no gate is held by a task without files
    hold_gates(gates, missing | result.values, lambda name: False)


def _numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise UsageError(f"--seeds takes whole numbers with commas between them, such as 1,2,3: got {text!r}") from None
