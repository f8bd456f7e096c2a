"""`atento evaluate`: a model scored on labelled data."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atento.cli import completion
from atento.cli.decoding import with_decoding
from atento.cli.gates import hold_gates, parse_gates
from atento.cli.options import AsJson, Device, ModelArgument, Precision, Seed, Threads, check_order, progress, running
from atento.cli.progress import show_batches

if TYPE_CHECKING:
    from atento.metrics import Score


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("evaluate", epilog="Example:  atento evaluate runs/demo valid.tsv --fail-under bleu=25")(
        with_decoding(evaluate, without=("n_best",))
    )


def evaluate(
    model: ModelArgument,
    data: Annotated[
        list[str], typer.Argument(metavar="DATA", help="One file with two columns, or two parallel files.")
    ],
    decoding: dict[str, Any],
    task: Annotated[
        str | None,
        typer.Option(
            help="The task whose metrics are computed, such as translation; the model's own if not given.",
            autocompletion=completion.scored_tasks,
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            help="Metrics, separated by commas; those of the task if not given.",
            autocompletion=completion.metrics,
        ),
    ] = None,
    fail_under: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METRIC=VALUE",
            help="Exit with status 3 if the metric is worse than this; may be repeated.",
            autocompletion=completion.gates,
        ),
    ] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out invalid records, and count them.")] = False,
    device: Device = "auto",
    precision: Precision = "float32",
    seed: Seed = 1,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Decode labelled data and print each score with its 95 % bootstrap interval."""
    from atento.config.tasks import TASKS
    from atento.evaluation import evaluate as score
    from atento.evaluation import task_of
    from atento.metrics import metric_named
    from atento.metrics.table import lower_is_better
    from atento.model import load
    from atento.tasks.table import labels_of, usual_metrics

    check_order(model, *data)
    gates = parse_gates(fail_under)
    requested = [] if metrics is None else metrics.split(",")
    for name in (*requested, *(name for name, _ in gates)):
        metric_named(name)  # before the model is loaded
    options: Any = decoding | {"seed": seed}
    with running(seed, threads):
        loaded = load(model, device=device, precision=precision)
        task = task_of(loaded, task)
        usual = usual_metrics(TASKS[task], labels_of(loaded.network.config))
        names = dict.fromkeys([*(requested or usual), *(name for name, _ in gates)])
        with show_batches("evaluate"):
            scores = score(loaded, data, task, metrics=list(names), skip_bad=skip_bad, say=progress, **options)
    _show(scores, seed, as_json)
    hold_gates(gates, {name: score.value for name, score in scores.items()}, lower_is_better)


def _show(scores: "dict[str, Score]", seed: int, as_json: bool) -> None:
    """Print one line for each score, and the table of a report, or all as one JSON object."""
    from atento.metrics import METRICS, report_table

    records = {}
    for name, score in scores.items():
        low, high = score.interval(seed=seed)
        records[name] = {
            "value": score.value,
            "interval": [low, high],
            "parts": score.parts,
            "settings": score.settings,
        }
        if not as_json:
            typer.echo(score.line((low, high)))
            if METRICS[name].table:
                typer.echo(report_table(score))
    if as_json:
        typer.echo(json.dumps(records, ensure_ascii=False))
