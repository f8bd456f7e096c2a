"""`atento score`: a metric on files, with its bootstrap interval and a paired test against another system."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atento.cli.command_progress import announce_stdin
from atento.cli.completion import metrics, words
from atento.cli.options import AsJson, check_seed
from atento.cli.score_gates import hold_gates, parse_gates
from atento.terminal import echo

if TYPE_CHECKING:
    from atento.metrics import PairedTest, Score
    from atento.metrics.metric_table import Metric

EPILOG = (
    "Examples:  atento score bleu output.pt reference.pt --interval --against other.pt; "
    "atento score f1 predicted.txt labels.txt --fail-under f1=0.5; "
    "atento score entity-f1 predicted.conll right.conll --scheme IOB2; "
    "atento score squad answers.json questions.json --language pt; "
    "atento score ndcg@10 my.run judgements.qrels --interval"
)


Average = Annotated[
    str | None,
    typer.Option(
        help="Average of F1 over labels: macro, micro, weighted or binary.",
        autocompletion=words("macro", "micro", "weighted", "binary"),
    ),
]
Positive = Annotated[str | None, typer.Option(metavar="LABEL", help="The label of --average binary.")]
Scheme = Annotated[
    str | None,
    typer.Option(
        help="Read tags strictly as IOB1, IOB2, BIOES or BILOU; any scheme if not given.",
        autocompletion=words("IOB1", "IOB2", "BIOES", "BILOU"),
    ),
]
Language = Annotated[
    str | None, typer.Option(metavar="CODE", help="Language whose articles squad leaves out: en or pt.")
]
Columns = Annotated[bool, typer.Option("--columns", help="Files of tags have columns, whatever their name.")]


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("score", epilog=EPILOG)(score)


def score(
    metric: Annotated[
        str,
        typer.Argument(
            metavar="METRIC",
            help="Of text: bleu, chrf, ter, rouge, token-f1, f1-bleu-rouge, exact-match. Of labels: accuracy, f1, "
            "matthews, report; calibration-error (label, tab, probability); subset-accuracy, multilabel-f1 (labels "
            "separated by |). Of tags: entity-f1, tag-accuracy. Of answers: squad. Of numbers: pearson, spearman. Of "
            "rankings: ndcg (also ndcg@10), map, mrr, recall@10.",
            autocompletion=metrics,
        ),
    ],
    hypotheses: Annotated[
        str,
        typer.Argument(
            metavar="HYPOTHESES",
            help="The output of the system, one item a line; - is standard input. Tags: a sentence a line, or columns "
            "in a file named .conll, the tag last. Answers: also JSON of ids and answers. Rankings: a run of TREC, or "
            ".jsonl of query, document and score.",
        ),
    ],
    references: Annotated[
        list[str],
        typer.Argument(
            metavar="REFERENCES",
            help="What is right, in the same order; for text one or more files, each a reference set; for squad also "
            "SQuAD's JSON; for rankings one file, qrels of TREC or .jsonl of query, document and grade.",
        ),
    ],
    interval: Annotated[bool, typer.Option("--interval", help="Also print the 95 % bootstrap interval.")] = False,
    against: Annotated[
        str | None, typer.Option(metavar="OTHER", help="Output of another system, for a paired bootstrap test.")
    ] = None,
    fail_under: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Exit with status 3 if the metric, or the part of it with that name, is worse; may be repeated.",
        ),
    ] = None,
    average: Average = None,
    positive: Positive = None,
    scheme: Scheme = None,
    language: Language = None,
    columns: Columns = False,
    samples: Annotated[int, typer.Option(min=1, help="Number of bootstrap samples.")] = 1000,
    seed: Annotated[int, typer.Option(metavar="SEED", callback=check_seed, help="Seed of the bootstrap.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Score outputs against references. Item N of the hypotheses belongs to item N of every reference file."""
    from atento.errors import UsageError
    from atento.metrics import METRICS, metric_named, paired_test

    metric_named(metric)
    row, gates = METRICS[metric], parse_gates(fail_under)
    options = {"average": average, "positive": positive, "scheme": scheme, "language": language}
    scorer = _with_options(metric, row, {name: value for name, value in options.items() if value is not None})
    names = [hypotheses, *references, *([] if against is None else [against])]
    if names.count("-") > 1:
        raise UsageError("standard input can be read once: only one of the files may be `-`")
    announce_stdin(*names)
    right, (predictions, *others) = _read(row, names, len(references), columns, scheme, metric)
    if others:
        test = paired_test(scorer, predictions, others[0], right, samples, seed)
        result = test.first
    else:
        test, result = None, scorer(predictions, right)
    values = {metric: result.value} | result.parts
    for name, _ in gates:
        if name not in values:
            raise UsageError(f"--fail-under: {metric} has no part {name!r}; it has {', '.join(values)}")
    _show(metric, result, test, against, _Bootstrap(interval, samples, seed), as_json)
    hold_gates(gates, values, lambda _: row.better == "lower")


@dataclass(frozen=True)
class _Bootstrap:
    """Whether an interval is printed; the samples and the seed of it and of the paired test."""

    interval: bool
    samples: int
    seed: int


def _show(
    metric: str, score: "Score", test: "PairedTest | None", against: str | None, bootstrap: _Bootstrap, as_json: bool
) -> None:
    """Print a score, and the test against another system, as lines or as one JSON object."""
    from atento.metrics import METRICS, report_table

    line, record = _formatted(metric, score, bootstrap)
    lines = [line, *([report_table(score)] if METRICS[metric].table else [])]
    if test is not None:
        other_line, record["against"] = _formatted(metric, test.second, bootstrap)
        record["against"] |= {
            "difference": test.difference,
            "p_value": test.p_value,
            "samples": bootstrap.samples,
            "seed": bootstrap.seed,
        }
        lines += [f"{other_line} ({against})", str(test)]
    echo(json.dumps(record, ensure_ascii=False) if as_json else "\n".join(lines))


def _with_options(name: str, metric: "Metric", options: dict[str, object]) -> "Callable[..., Score]":
    """The metric with the options of the command.

    Raises:
        UsageError: the metric has no such option.
    """
    from atento.errors import UsageError

    for option in options:
        if option not in signature(metric.score).parameters:
            raise UsageError(f"--{option} has no effect on {name}")
    return partial(metric.score, **options)


def _read(
    metric: "Metric", names: list[str], n_references: int, columns: bool, scheme: str | None, name: str
) -> tuple[Any, list[list[Any]]]:
    """The references as the metric takes them, and the predictions of one system or two.

    Raises:
        UsageError: several files of references for a metric that takes one. DataError: names file and line.
    """
    from atento.errors import UsageError
    from atento.tasks.ranking_files import read_rankings
    from atento.tasks.score_files import check_tags, in_order_of, read_items

    if columns and metric.outputs != "tags":
        raise UsageError(f"--columns has no effect on {name}")
    paths = names[1 : 1 + n_references]
    if metric.scores("rankings"):
        if n_references > 1:
            raise UsageError(f"{name} takes one file of grades: got {n_references}")
        return read_rankings(names[1], [names[0], *names[2:]], lambda text: echo(f"warning: {text}", err=True))
    references = [read_items(path, metric.outputs, reference=True, columns=columns) for path in paths]
    several = metric.outputs == "texts" or (metric.outputs == "answers" and references[0].ids is None)
    if len(references) > 1 and not several:
        raise UsageError(f"{name} takes one file of references: got {len(references)}")
    for reference_set in references[1:]:
        in_order_of(references[0], reference_set)
    if not references[0].values:
        raise UsageError(f"there is nothing to score: {references[0].name} is empty")
    systems = []
    for path in (names[0], *names[1 + n_references :]):
        systems.append(in_order_of(references[0], read_items(path, metric.outputs, columns=columns)))
        if metric.outputs == "tags":
            check_tags(systems[-1], references[0], scheme, of_entities=name == "entity-f1")
    right = [reference.values for reference in references] if several else references[0].values
    return right, [system.values for system in systems]


def _formatted(metric: str, score: "Score", bootstrap: _Bootstrap) -> tuple[str, dict[str, Any]]:
    """A score as a line and as a JSON object, both with the interval if it is requested."""
    record: dict[str, object] = {
        "metric": metric,
        "value": score.value,
        "parts": score.parts,
        "settings": score.settings,
    }
    if not bootstrap.interval:
        return score.line(), record
    low, high = score.interval(samples=bootstrap.samples, seed=bootstrap.seed)
    record["interval"] = {"level": 0.95, "low": low, "high": high, "samples": bootstrap.samples, "seed": bootstrap.seed}
    return score.line((low, high)), record
