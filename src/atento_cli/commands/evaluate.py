"""`atento evaluate`: a model scored on labelled data."""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atento.base.errors import UsageError
from atento.base.terminal import echo
from atento_cli import completion
from atento_cli.command_progress import show_batches
from atento_cli.commands.text_commands import SourceLanguage, TargetLanguage
from atento_cli.decoding_options import with_decoding
from atento_cli.options import Head, ModelArgument, ModelOptions, check_order, key_and_value, progress, with_options
from atento_cli.output_paths import output_file
from atento_cli.score_gates import hold_gates, parse_gates

if TYPE_CHECKING:
    from collections.abc import Collection

    from atento.metrics import Score
    from atento.tasks.calibrating import Confidence


Data = Annotated[
    list[str],
    typer.Argument(metavar="DATA", help="One file with columns, or parallel files: sources, targets, more references."),
]
Language = Annotated[
    str | None, typer.Option(help="For answers: the language whose articles do not count, en or pt; en if not given.")
]
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="FIELD=COLUMN,...",
        help="Columns of DATA by number or name, such as text=1,label=2. If not given: the fields named in its first "
        "line, else the columns of the recipe, else their order.",
    ),
]
SkipBad = Annotated[
    bool | None,
    typer.Option("--skip-bad/--no-skip-bad", help="Leave out invalid records, and count them; else as in training."),
]
Reading = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="How DATA is read where not as in training: format, delimiter, decimal, encoding, separator, sheet.",
    ),
]
Calibrate = Annotated[
    bool,
    typer.Option(
        "--calibrate",
        help="Fit the probabilities of a classifier to DATA, and keep temperature and thresholds with the model.",
    ),
]
Reliability = Annotated[
    str | None,
    typer.Option(metavar="FILE.svg", help="Draw how often a classifier is right, by the probability that it gives."),
]
FailUnder = Annotated[
    list[str] | None,
    typer.Option(
        metavar="METRIC=VALUE",
        help="Exit with status 3 if the metric is worse than this; may be repeated.",
        autocompletion=completion.gates,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("evaluate", epilog="Example:  atento evaluate runs/demo valid.tsv --fail-under bleu=25")(
        with_decoding(evaluate, without=("n_best",))
    )


@with_options()
def evaluate(
    model: ModelArgument,
    data: Data,
    decoding: dict[str, object],
    shared: ModelOptions,
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
            help="Metrics, separated by commas; those of the task if not given.", autocompletion=completion.metrics
        ),
    ] = None,
    columns: Columns = None,
    report: Annotated[
        bool, typer.Option("--report", help="Also print precision, recall and F1 of each label, and what was confused.")
    ] = False,
    confusion: Annotated[
        str | None, typer.Option(metavar="FILE", help="Draw the confusion matrix of the labels: FILE.svg or .png.")
    ] = None,
    calibrate: Calibrate = False,
    reliability: Reliability = None,
    fail_under: FailUnder = None,
    language: Language = None,
    source_language: SourceLanguage = None,
    target_language: TargetLanguage = None,
    skip_bad: SkipBad = None,
    reading: Reading = None,
    head: Head = None,
) -> None:
    """Decode labelled data and print each score with its 95 % bootstrap interval."""
    from atento import evaluation
    from atento.config.tables.tasks import verb_of
    from atento.metrics import metric_named
    from atento.metrics.metric_table import lower_is_better
    from atento.tasks.task_model import for_head, labels_of

    check_order(model, *data)
    chosen = None if columns is None else columns_given(columns)
    picture = None if confusion is None else output_file(confusion, (".svg", ".png"), "--confusion")
    drawn = None if reliability is None else output_file(reliability, (".svg",), "--reliability")
    gates = parse_gates(fail_under)
    requested: list[str | None] = [None] if metrics is None else [*metrics.split(",")]
    for name in filter(None, [*requested, *(name for name, _ in gates)]):
        metric_named(name)  # before the model is loaded
    stated = None if reading is None else dict(key_and_value(item) for item in reading)
    languages = {"source_language": source_language, "target_language": target_language}
    options: Any = decoding | {name: given for name, given in languages.items() if given is not None}
    options |= {"seed": shared.seed, "reading": stated}
    with shared.loaded(model) as loaded:
        loaded = for_head(loaded, head, verb_of(task))
        if calibrate or drawn is not None:
            loaded.classify([])  # a model of another task is refused before any work
        task = evaluation.task_of(loaded, task)
        labels = labels_of(loaded.network.config)
        also = [*_tables(task, labels, report=report, confusion=confusion is not None), *(name for name, _ in gates)]
        with show_batches("evaluate"):
            options |= {"metrics": [*requested, *also], "columns": chosen, "language": language, "skip_bad": skip_bad}
            scores = evaluation.evaluate(loaded, data, task, say=progress, **options)
        worth = partial(evaluation.calibrate, fit=calibrate, columns=chosen, skip_bad=skip_bad, reading=stated)
        found = worth(loaded, data) if calibrate or drawn is not None else None
    # what was computed is printed before anything is written, which may fail
    _show(scores, shared.seed, shared.as_json, matrix=report, confidence=found)
    if picture is not None:
        _draw(scores, picture, f"{model} on {' '.join(data)}")
    if found is not None:
        _keep(found, drawn, loaded.path if calibrate else None, f"{model} on {' '.join(data)}")
    hold_gates(gates, {name: score.value for name, score in scores.items()}, lower_is_better)


def columns_given(text: str) -> "dict[str, int | str]":
    """The columns of `--columns`: text=1,label=2."""
    columns: dict[str, int | str] = {}
    for item in text.split(","):
        name, equals, column = (part.strip() for part in item.partition("="))
        if not (name and equals and column):
            raise UsageError(f"--columns has the form FIELD=COLUMN,..., such as source=en,target=pt: got {item!r}")
        columns[name] = int(column) if column.isdecimal() else column
    return columns


def _tables(task: str, labels: "Collection[str]", *, report: bool, confusion: bool) -> list[str]:
    """The metric that has the table of these labels of a task, if a report or a confusion matrix is to be made.
    Raises UsageError: the outputs of the task have no such table.
    """
    from atento.config.tables.tasks import TASKS
    from atento.metrics import METRICS
    from atento.tasks.split_evaluation import usual_metrics

    if not report and not confusion:
        return []
    outputs = TASKS[task].outputs
    tables = [name for name, metric in METRICS.items() if metric.table and metric.outputs == outputs]
    if confusion and outputs != "classes":
        raise UsageError(f"--confusion draws one label an example: got task {task}, whose outputs are {outputs}")
    if not tables:
        raise UsageError(f"--report is for labels and tags: got task {task}, whose outputs are {outputs}")
    usual = usual_metrics(TASKS[task], labels)
    return [name for name in tables if name in usual] or tables[-1:]


def _keep(found: "Confidence", picture: Path | None, folder: Path | None, title: str) -> None:
    """Draw what the probabilities of a classifier are worth, and keep it with the model of a folder, if given."""
    from atento.inspection.figures.classifier_figures import reliability_svg
    from atento.storage.atomic_files import write_output
    from atento.tasks.calibrating import keep_confidence

    if picture is not None:
        low, high = found.after.interval()
        error = f"calibration error {found.after.value:.3f} [{low:.3f}, {high:.3f}]"
        write_output(picture, reliability_svg(found.answers.tolist(), found.right.tolist(), error, title))
        echo(f"wrote {picture}", err=True)
    if folder is not None:
        keep_confidence(folder, found.config)


def _draw(scores: "dict[str, Score]", path: Path, title: str) -> None:
    from atento.inspection.figures.classifier_figures import confusion_png, confusion_svg
    from atento.metrics import confusion_of
    from atento.storage.atomic_files import write_output

    matrix = confusion_of(scores["report"])
    drawn = confusion_png if path.suffix.lower() == ".png" else confusion_svg
    write_output(path, drawn(matrix.labels, matrix.counts, title))
    echo(f"wrote {path}", err=True)


def _show(
    scores: "dict[str, Score]", seed: int, as_json: bool, *, matrix: bool, confidence: "Confidence | None"
) -> None:
    """Print one line for each score, and the table of a report, or all as one JSON object.

    `confidence` is printed behind them. `matrix` adds the confusion matrix to a report of labels.
    """
    from atento.metrics import METRICS, confusion_of, report_table

    records: dict[str, dict[str, object]] = {}
    lines: set[str] = set()
    for name, score in scores.items():
        low, high = score.interval(seed=seed)
        records[name] = {
            "value": score.value,
            "interval": [low, high],
            "parts": score.parts,
            "settings": score.settings,
        }
        if not as_json:
            prefix = name.partition("[")[2].removesuffix("]")
            line = f"{prefix} {score.line((low, high))}" if prefix else score.line((low, high))
            if line not in lines:  # the value of a report is the accuracy
                echo(line)
            lines.add(line)
            if name in METRICS and METRICS[name].table:
                echo(report_table(score))
        if matrix and name == "report":
            counts = confusion_of(score)
            records[name]["confusion"] = counts.to_dict()
            if not as_json:
                echo(f"\n{counts}")
    if confidence is not None and not as_json:
        echo("\n".join([confidence.line(), *confidence.table()]))
    if as_json:
        facts = {} if confidence is None else {"confidence": confidence.to_dict()}
        echo(json.dumps(records | facts, ensure_ascii=False))
