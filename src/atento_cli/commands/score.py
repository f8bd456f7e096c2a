"""`atento score`: a metric on files, with its bootstrap interval and a paired test against another system."""

import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atento.base.errors import UsageError, counted
from atento.base.terminal import echo
from atento_cli.command_progress import announce_stdin, show_batches
from atento_cli.completion import metrics, models, words
from atento_cli.lines import table_warning
from atento_cli.options import AsJson, Reading, check_seed, key_and_value, running, with_options
from atento_cli.score_gates import hold_gates, parse_gates

if TYPE_CHECKING:
    from atento.metrics import PairedTest, Score
    from atento.metrics.metric_table import Metric
    from atento.tasks.score_files import Rows

EPILOG = (
    "Examples:  atento score bleu output.pt reference.pt --interval --against other.pt; "
    "atento score f1 predicted.txt labels.txt --fail-under f1=0.5; "
    "atento score entity-f1 predicted.conll right.conll --scheme IOB2; "
    "atento score squad answers.json questions.json --language pt; "
    "atento score ndcg@10 my.run judgements.qrels --interval; "
    "atento score bertscore output.pt reference.pt --model micro-world-mlm"
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
Tokenize = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="What splits words: 13a, intl, zh, char, ja-mecab, ko-mecab or none of bleu; tercom or char of ter; "
        "unicode or rouge-score of rouge. By the script of the references if not given.",
        autocompletion=words("13a", "intl", "zh", "char", "ja-mecab", "ko-mecab", "none", "tercom", "unicode"),
    ),
]
Language = Annotated[str | None, typer.Option(metavar="CODE", help="Articles that squad leaves out: en or pt.")]
Columns = Annotated[bool, typer.Option("--columns", help="Files of tags have columns, whatever their name.")]
Column = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="The column of the files that are tables, by name or number; repeated, one for each of them in turn.",
    ),
]


@dataclass(frozen=True)
class LearnedOptions:
    """The options of learned metrics."""

    model: Annotated[
        str | None,
        typer.Option("--model", metavar="FOLDER", help="The model of a learned metric.", autocompletion=models),
    ] = None
    source: Annotated[
        str | None, typer.Option("--source", metavar="FILE", help="The source of each output, where a model reads it.")
    ] = None
    layer: Annotated[
        int | None, typer.Option(help="Layer whose vectors bertscore compares: 0 is the first, -1 the last.")
    ] = None
    idf: Annotated[
        bool, typer.Option("--idf", help="Weigh tokens of bertscore by their inverse document frequency.")
    ] = False

    def given(self) -> dict[str, object]:
        """Those that are not their default."""
        return {name: value for name, value in vars(self).items() if value is not None and value is not False}


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("score", epilog=EPILOG)(score)


@with_options()
def score(
    metric: Annotated[
        str,
        typer.Argument(
            metavar="METRIC",
            help="Of text: bleu, chrf, ter, rouge, rouge1, rouge2, token-f1, f1-bleu-rouge, exact-match. Of labels: "
            "accuracy, f1, matthews, report; calibration-error (label, tab, probability); subset-accuracy, "
            "multilabel-f1, multilabel-report (labels separated by |). Of tags: entity-f1, tag-accuracy, tag-report. "
            "Of answers: squad, squad-pt. Of numbers: pearson, spearman. Of rankings: ndcg, ndcg@10, map, mrr, "
            "recall@10. Of text by a model: bertscore, comet, comet-kiwi.",
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
        list[str] | None,
        typer.Argument(
            metavar="REFERENCES",
            help="What is right, in the same order; for text one or more files, each a reference set; for squad also "
            "SQuAD's JSON; for rankings one file, qrels of TREC or .jsonl of query, document and grade; none for "
            "comet-kiwi.",
        ),
    ] = None,
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
    tokenize: Tokenize = None,
    columns: Columns = False,
    column: Column = None,
    reading: Reading = None,
    learned: LearnedOptions = LearnedOptions(),
    samples: Annotated[int, typer.Option(min=1, help="Number of bootstrap samples.")] = 1000,
    seed: Annotated[int, typer.Option(metavar="SEED", callback=check_seed, help="Seed of the bootstrap.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Score outputs against references. Item N of the hypotheses belongs to item N of every reference file."""
    gates, source = parse_gates(fail_under), learned.source
    options = {"average": average, "positive": positive, "scheme": scheme, "language": language, "tokenize": tokenize}
    given = {name: value for name, value in options.items() if value is not None} | learned.given()
    row = _row(metric, len(references or ()), given)
    right_names = [*(references or ()), *([] if source is None else [source])]
    names = [hypotheses, *right_names, *([] if against is None else [against])]
    if names.count("-") > 1:
        raise UsageError("standard input can be read once: only one of the files may be `-`")
    announce_stdin(*names)
    tables = _tables(names, column, dict(map(key_and_value, reading or []))) if row.outputs != "rankings" else {}
    right, systems = _read(row, names, len(right_names), columns, scheme, metric, tables)
    scorer = row.score if source is None else partial(row.score, sources=right.pop())
    with running(seed, None) if "model" in given else nullcontext():  # by a model
        result, test = _scored(scorer, systems, right, samples, seed)
    values = {metric: result.value} | result.parts
    for name, _ in gates:
        if name not in values:
            raise UsageError(f"--fail-under: {metric} has no part {name!r}; it has {', '.join(values)}")
    _show(metric, row.table, (result, test, against), _Bootstrap(interval, samples, seed), as_json)
    hold_gates(gates, values, lambda _: row.better == "lower")


@dataclass(frozen=True)
class _Bootstrap:
    """Whether an interval is printed; the samples and the seed of it and of the paired test."""

    interval: bool
    samples: int
    seed: int


def _show(
    metric: str,
    table: bool,
    results: "tuple[Score, PairedTest | None, str | None]",
    bootstrap: _Bootstrap,
    as_json: bool,
) -> None:
    """Print a score, with a table of its parts, and the test against another system, as lines or as one object."""
    from atento.metrics import report_table

    score, test, against = results
    line, record = _formatted(metric, score, bootstrap)
    lines = [line, *([report_table(score)] if table else [])]
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


def _scored(
    scorer: "Callable[..., Score]", systems: list[list[Any]], right: Any, samples: int, seed: int
) -> "tuple[Score, PairedTest | None]":
    """The score of the first system, and the test of it against the second, if there are two."""
    from atento.metrics import paired_test

    first, *others = systems
    if not others:
        return scorer(first, right), None
    test = paired_test(scorer, first, others[0], right, samples, seed)
    return test.first, test


def _row(name: str, references: int, options: dict[str, object]) -> "Metric":
    """The row of a metric whose function has the options of the command.
    Raises UsageError: there is no such metric, it has no such option, or a file that it reads is missing.
    """
    from atento.metrics.metric_table import LEARNED, METRICS, Metric, check_inputs, metric_named

    score = None if name in LEARNED else metric_named(name)
    taken = ("model", "source", *LEARNED[name].options) if score is None else signature(score).parameters
    for option in options:
        if option not in taken:
            raise UsageError(f"--{option} has no effect on {name}")
    if score is not None:
        if not references:
            raise UsageError(f"{name} needs references: give their file behind that of the outputs")
        return replace(METRICS[name], score=partial(score, **options))
    own = {option: value for option, value in options.items() if option in LEARNED[name].options}
    check_inputs(name, references, "source" in options)
    if "model" not in options:
        raise UsageError(f"{name} is computed by a model: give its folder, --model FOLDER")

    def learned_score(*arguments: Any, **sources: Any) -> "Score":
        from atento.tasks.learned_metrics import kept_metric  # with torch, once the files have been read

        with show_batches("score"):
            return kept_metric(name, str(options["model"]), **own)(*arguments, **sources)

    return Metric(learned_score)


def _read(
    metric: "Metric",
    names: list[str],
    n_references: int,
    columns: bool,
    scheme: str | None,
    name: str,
    tables: "Mapping[int, Rows]",
) -> tuple[Any, list[list[Any]]]:
    """The references as the metric takes them, and the predictions of one system or two.
    Raises UsageError: several files of references for a metric that takes one. DataError: names file and line.
    """
    from atento.tasks.score_files import check_tags, in_order_of, read_items, where_all_say
    from atento_cli.ranking_files import read_rankings

    if columns and metric.outputs != "tags":
        raise UsageError(f"--columns has no effect on {name}")
    paths = names[1 : 1 + n_references]
    if metric.scores("rankings"):
        if n_references > 1:
            raise UsageError(f"{name} takes one file of grades: got {n_references}")
        return read_rankings(names[1], [names[0], *names[2:]], lambda text: echo(f"warning: {text}", err=True))
    references = [
        read_items(path, metric.outputs, reference=True, columns=columns, rows=tables.get(number))
        for number, path in enumerate(paths, start=1)
    ]
    for number, read in enumerate(references if metric.outputs == "texts" else [], start=1):
        if number not in tables:
            table_warning(names[number], next(iter(read.values), ""))
    several = metric.outputs == "texts" or (metric.outputs == "answers" and references[0].ids is None)
    if len(references) > 1 and not several:
        raise UsageError(f"{name} takes one file of references: got {len(references)}")
    for reference_set in references[1:]:
        in_order_of(references[0], reference_set)
    if not references[0].values:
        raise UsageError(f"there is nothing to score: {references[0].name} is empty")
    systems = []
    for number in (0, *range(1 + n_references, len(names))):
        read = read_items(names[number], metric.outputs, columns=columns, rows=tables.get(number))
        systems.append(in_order_of(references[0], read))
        if metric.outputs == "tags":
            check_tags(systems[-1], references[0], scheme, of_entities=name == "entity-f1")
    if metric.outputs == "probabilities":
        labels, sides, silent = where_all_say(references[0], systems)
        if silent:
            echo(f"warning: {counted(silent, 'empty line')} of predictions left out of the score", err=True)
        return labels, sides
    right = [reference.values for reference in references] if several else references[0].values
    return right, [system.values for system in systems]


def _tables(names: list[str], columns: list[str] | None, reading: dict[str, Any]) -> "dict[int, Rows]":
    """The rows of the files that are tables, by the number of the file.

    Raises:
        UsageError: no file is a table, or the columns are not one, or one for each table. DataError: as `table_rows`.
    """
    from atento_cli.table_columns import is_table, table_rows

    if not columns and not reading:
        return {}
    tables = [number for number, name in enumerate(names) if is_table(name, reading)]
    if not tables or not columns or len(columns) not in (1, len(tables)):
        got = f"{counted(len(columns or ()), 'name')} and {counted(len(tables), 'table')}"
        raise UsageError(f"--column takes one name, or one for each table among the files: got {got}")
    each = columns if len(columns) == len(tables) else columns * len(tables)
    return {number: list(table_rows(names[number], [one], reading)) for number, one in zip(tables, each)}


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
