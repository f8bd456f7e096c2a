"""`atento perplexity`: how well a model predicts texts."""

import json
from typing import Annotated

import typer

from atento.cli.gates import hold_gates, parse_gates
from atento.cli.options import AsJson, Device, ModelArgument, Precision, Seed, Threads, check_order, running
from atento.cli.progress import announce_stdin, show_batches

EPILOG = (
    "Examples:  atento perplexity MODEL texts.txt; "
    "a sentence pair of a translator: atento perplexity runs/demo valid.en valid.pt --fail-under perplexity=20"
)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("perplexity", epilog=EPILOG)(perplexity)


def perplexity(
    model: ModelArgument,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="One text a line; of an encoder-decoder, source and target with a tab between them; - is standard "
            "input.",
        ),
    ] = "-",
    targets: Annotated[
        str | None,
        typer.Argument(metavar="TARGETS", help="The targets of an encoder-decoder, if FILE has the sources."),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(metavar="N", help="Most tokens read at a time; what the model was trained on if not given."),
    ] = None,
    stride: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens between the windows of a longer text; half a window.")
    ] = None,
    per_text: Annotated[
        bool, typer.Option("--per-text", help="Print the perplexity of each line instead; a blank line stays blank.")
    ] = False,
    interval: Annotated[bool, typer.Option("--interval", help="Also print the 95 % bootstrap interval.")] = False,
    fail_under: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Exit with status 3 if perplexity, nll or bits is above this."),
    ] = None,
    device: Device = "auto",
    precision: Precision = "float32",
    seed: Seed = 1,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Print the token-weighted perplexity of texts; of a masked model the pseudo-perplexity. Lower is better."""
    from atento.errors import UsageError
    from atento.model import load

    check_order(model, file)
    gates = parse_gates(fail_under)
    for name, _ in gates:
        if name not in ("perplexity", "nll", "bits"):
            raise UsageError(f"--fail-under takes perplexity, nll or bits: got {name!r}")
    if (file, targets) == ("-", "-"):
        raise UsageError("standard input can be read once: only one of the files may be `-`")
    announce_stdin(file, *([] if targets is None else [targets]))
    with running(seed, threads):
        loaded = load(model, device=device, precision=precision)
        pairs = loaded.network.config.architecture in ("encoder-decoder", "recurrent-seq2seq")
        texts, outputs = _read(file, targets, pairs)
        with show_batches("perplexity"):
            score = loaded.perplexity(texts, outputs, window=window, stride=stride)
    counts = [int(row[1]) for row in score.segments]
    each = score.per_sentence()
    if as_json:
        record = {"value": score.value, "parts": score.parts, "settings": score.settings}
        if interval:
            low, high = score.interval(seed=seed)
            record["interval"] = {"level": 0.95, "low": low, "high": high, "samples": 1000, "seed": seed}
        record["texts"] = [
            {"perplexity": value if count else None, "nll": row[0], "tokens": count}
            for value, count, row in zip(each, counts, score.segments)
        ]
        typer.echo(json.dumps(record))
    elif per_text:
        typer.echo("\n".join(f"{value:.4f}" if count else "" for value, count in zip(each, counts)))
    else:
        typer.echo(score.line(score.interval(seed=seed) if interval else None))
    hold_gates(gates, {"perplexity": score.value} | score.parts, lambda _: True)


def _read(file: str, targets: str | None, pairs: bool) -> tuple[list[str], list[str] | None]:
    """Texts; or sources and targets, of one file with a tab on each line, or of two.

    Raises:
        DataError: names file and line. UsageError: TARGETS for a model that reads no source.
    """
    from atento.data.source_lines import display_name, read_lines
    from atento.errors import DataError, UsageError

    lines, name = read_lines(file), display_name(file)
    if not any(line.strip() for line in lines):
        raise DataError(f"{name}: there is nothing to score: the file has no text")
    if not pairs:
        if targets is not None:
            raise UsageError("TARGETS are for an encoder-decoder; this model reads one text a line")
        return lines, None
    if targets is not None:
        outputs = read_lines(targets)
        if len(outputs) != len(lines):
            raise DataError(
                f"line N of {display_name(targets)} must correspond to line N of {name}: got {len(outputs)} and "
                f"{len(lines)} lines"
            )
    else:
        for number, line in enumerate(lines, 1):
            if line.strip() and line.count("\t") != 1:
                raise DataError(
                    f"{name}:{number}: the model reads pairs: a line is a source, a tab and a target, or give a second "
                    f"file with the targets; this line has {line.count(chr(9))} tabs"
                )
        sides = [line.split("\t") if line.strip() else ["", ""] for line in lines]
        lines, outputs = [source for source, _ in sides], [target for _, target in sides]
    for number, (source, target) in enumerate(zip(lines, outputs), 1):
        if bool(source.strip()) != bool(target.strip()):
            raise DataError(f"{name}:{number}: the {'target' if source.strip() else 'source'} of this pair is blank")
    return lines, outputs
