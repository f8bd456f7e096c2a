"""`atento score`: a metric on files, with its bootstrap interval and a paired test against another system."""

import json
from typing import Annotated, Any

import typer

from atento.cli.completion import metrics
from atento.cli.options import AsJson, check_seed
from atento.cli.progress import announce_stdin

EPILOG = "Example:  atento score bleu output.pt reference.pt --interval --against other.pt"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("score", epilog=EPILOG)(score)


def score(
    metric: Annotated[
        str,
        typer.Argument(
            metavar="METRIC",
            help="bleu, chrf, ter, rouge, token-f1, f1-bleu-rouge or exact-match.",
            autocompletion=metrics,
        ),
    ],
    hypotheses: Annotated[
        str,
        typer.Argument(
            metavar="HYPOTHESES", help="The output of the system, one sentence per line; - is standard input."
        ),
    ],
    references: Annotated[
        list[str], typer.Argument(metavar="REFERENCES", help="One or more reference files; each is a reference set.")
    ],
    interval: Annotated[bool, typer.Option("--interval", help="Also print the 95 % bootstrap interval.")] = False,
    against: Annotated[
        str | None, typer.Option(metavar="OTHER", help="Output of another system, for a paired bootstrap test.")
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Number of bootstrap samples.")] = 1000,
    seed: Annotated[int, typer.Option(metavar="SEED", callback=check_seed, help="Seed of the bootstrap.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Score text against references. Line N of the hypotheses belongs to line N of every reference file."""
    from atento.data.source_lines import display_name, read_lines
    from atento.errors import UsageError
    from atento.metrics import METRICS, metric_named, paired_test

    scorer = metric_named(metric)
    names = [hypotheses, *references, *([] if against is None else [against])]
    if names.count("-") > 1:
        raise UsageError("standard input can be read once: only one of the files may be `-`")
    announce_stdin(*names)
    texts = [read_lines(name) for name in names]
    for name, text in zip(names[1:], texts[1:]):
        if len(text) != len(texts[0]):
            raise UsageError(
                f"line N of {display_name(hypotheses)} must correspond to line N of {display_name(name)}: got "
                f"{len(texts[0])} and {len(text)} lines"
            )
    streams = texts[1 : 1 + len(references)]
    if against is None:
        test = None
        result = scorer(texts[0], streams)
    else:
        test = paired_test(METRICS[metric].score, texts[0], texts[-1], streams, samples, seed)
        result = test.first

    def formatted(score: Any) -> tuple[str, dict[str, Any]]:
        """A score as a line and as a JSON object, both with the interval if it is requested."""
        record = {"metric": metric, "value": score.value, "parts": score.parts, "settings": score.settings}
        if not interval:
            return str(score), record
        low, high = score.interval(samples=samples, seed=seed)
        record["interval"] = {"level": 0.95, "low": low, "high": high, "samples": samples, "seed": seed}
        return f"{score.name} {score.value:.2f} [{low:.2f}, {high:.2f}] {score.settings}", record

    line, record = formatted(result)
    if test is None:
        typer.echo(json.dumps(record, ensure_ascii=False) if as_json else line)
        return
    other_line, other = formatted(test.second)
    record["against"] = other | {
        "difference": test.difference,
        "p_value": test.p_value,
        "samples": samples,
        "seed": seed,
    }
    both = f"{line}\n{other_line} ({display_name(str(against))})\n{test}"
    typer.echo(json.dumps(record, ensure_ascii=False) if as_json else both)
