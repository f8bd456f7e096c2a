"""`atento perplexity`: how well a model predicts texts."""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atento.base.errors import BadLine, DataError, UsageError, counted
from atento.base.terminal import echo, write
from atento_cli.cluster_option import with_cluster
from atento_cli.command_progress import announce_stdin, show_batches
from atento_cli.line_work import Work
from atento_cli.lines import LineOptions, file_lines
from atento_cli.options import ModelArgument, check_order, progress, with_options
from atento_cli.score_gates import hold_gates, parse_gates

if TYPE_CHECKING:
    from atento.metrics import Score
    from atento.model import Model

Joined = Annotated[
    bool | None,
    typer.Option(
        "--paragraphs/--lines", help="Join hard-wrapped lines into paragraphs; as the training data if not given."
    ),
]
EPILOG = (
    "Examples:  atento perplexity MODEL texts.txt; "
    "a sentence pair of a translator: atento perplexity runs/demo valid.en valid.pt --fail-under perplexity=20"
)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("perplexity", epilog=EPILOG)(with_cluster(perplexity))


@with_options(
    file="One text a line; of an encoder-decoder, source and target with a tab between them; - is standard input.",
    skip_bad="A bad line is left out, and counted; it is blank with --per-text.",
)
def perplexity(
    model: ModelArgument,
    shared: LineOptions,
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
    paragraphs: Joined = None,
    per_text: Annotated[
        bool, typer.Option("--per-text", help="Print the perplexity of each line instead; a blank line stays blank.")
    ] = False,
    interval: Annotated[bool, typer.Option("--interval", help="Also print the 95 % bootstrap interval.")] = False,
    fail_under: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Exit with status 3 if perplexity, nll or bits is above this."),
    ] = None,
) -> None:
    """Print the token-weighted perplexity of texts; of a masked model the pseudo-perplexity. Lower is better."""
    file, options = shared.file, {"window": window, "stride": stride}
    if shared.cluster is not None:
        shared.cluster.run(_work(file, targets, options, interval, fail_under, per_text, shared.as_json))
        return
    check_order(model, file)
    gates = parse_gates(fail_under)
    for name, _ in gates:
        if name not in ("perplexity", "nll", "bits"):
            raise UsageError(f"--fail-under takes perplexity, nll or bits: got {name!r}")
    if (file, targets) == ("-", "-"):
        raise UsageError("standard input can be read once: only one of the files may be `-`")
    announce_stdin(file, *([] if targets is None else [targets]))
    bad: list[str] | None = [] if shared.skip_bad else None
    with shared.loaded(model) as loaded:
        texts, outputs = _read(shared, targets, _reads_pairs(loaded), bad)
        shared.count_bad(bad)
        texts = _paragraphs(loaded, texts, paragraphs)
        with show_batches("perplexity"):
            score = loaded.perplexity(texts, outputs, **options)
    if shared.as_json:
        record = {"value": score.value, "parts": score.parts, "settings": score.settings}
        if interval:
            low, high = score.interval(seed=shared.seed)
            record["interval"] = {"level": 0.95, "low": low, "high": high, "samples": 1000, "seed": shared.seed}
        record["texts"] = _records(score)
        echo(json.dumps(record))
    elif per_text:
        values = [record["perplexity"] for record in _records(score)]
        echo("\n".join("" if value is None else f"{value:.4f}" for value in values))
    else:
        echo(score.line(score.interval(seed=shared.seed) if interval else None))
    hold_gates(gates, {"perplexity": score.value} | score.parts, lambda _: True)


def _work(
    file: str,
    targets: str | None,
    options: dict[str, int | None],
    interval: bool,
    fail_under: list[str] | None,
    per_text: bool,
    as_json: bool,
) -> Work:
    """What the command does with a block of lines: a number for each text.
    Raises UsageError: an option of the score of all texts.
    """
    from atento.data.files.source_lines import display_name

    for option, is_set in (("TARGETS", targets is not None), ("--interval", interval), ("--fail-under", fail_under)):
        if is_set:
            raise UsageError(f"{option} and --cluster exclude each other")
    if not (per_text or as_json):
        raise UsageError("--cluster writes a part for some lines: it needs --per-text, or --json for tokens and nll")

    def answer(loaded: "Model", lines: list[str], before: int, bad: list[str] | None) -> None:
        texts, outputs = lines, None
        if _reads_pairs(loaded):
            texts, outputs = _sides(
                lines, display_name(file), range(before + 1, before + 1 + len(lines)).__getitem__, bad
            )
        if not any(text.strip() for text in texts):  # which `perplexity` would refuse, as nothing to score
            records = [{"perplexity": None, "nll": 0.0, "tokens": 0} for _ in texts]
        else:
            records = _records(loaded.perplexity(texts, outputs, **options))
        for record in records:
            value = record["perplexity"]
            write(f"{json.dumps(record) if as_json else '' if value is None else f'{value:.4f}'}\n")

    return Work(answer, ready=lambda loaded: loaded)


def _reads_pairs(loaded: "Model") -> bool:
    """Whether the model predicts the second of two texts."""
    return loaded.network.config.architecture in ("encoder-decoder", "recurrent-seq2seq")


def _records(score: "Score") -> list[dict[str, Any]]:
    """The perplexity of each text, with its negative log-probability and its tokens."""
    counts = [int(row[1]) for row in score.segments]
    return [
        {"perplexity": value if count else None, "nll": row[0], "tokens": count}
        for value, count, row in zip(score.per_sentence(), counts, score.segments)
    ]


def _read(
    shared: LineOptions, targets: str | None, pairs: bool, bad: list[str] | None
) -> tuple[list[str], list[str] | None]:
    """Texts; or sources and targets, of one file with a tab on each line, or of two.

    A bad line is blank where `bad` takes its message.
    Raises DataError: names file and line. UsageError: TARGETS for a model that reads no source.
    """
    from atento.data.files.source_lines import display_name

    lines, name = list(shared.lines(bad, (lambda *_: None) if pairs else None)), display_name(shared.file)
    if not any(line.strip() for line in lines):
        raise DataError(f"{name}: there is nothing to score: the file has no text")
    if not pairs:
        if targets is not None:
            raise UsageError("TARGETS are for an encoder-decoder; this model reads one text a line")
        return lines, None
    if targets is not None:
        outputs = file_lines(targets, bad)
        if len(outputs) != len(lines):
            raise DataError(
                f"line N of {display_name(targets)} must correspond to line N of {name}: got {len(outputs)} and "
                f"{len(lines)} lines"
            )
        return _whole(list(zip(lines, outputs)), name, shared.number, bad)
    return _sides(lines, name, shared.number, bad)


def _paragraphs(loaded: "Model", lines: list[str], joined: bool | None) -> list[str]:
    """The lines, joined into paragraphs where that is asked for or the training data were so read."""
    from atento.data.files.paragraphs import paragraphs

    learned = loaded.config.get("reading", {}).get("paragraphs", False)
    if _reads_pairs(loaded) or not (learned if joined is None else joined):
        return lines
    rows = paragraphs(lambda: enumerate(lines, start=1))
    texts = [row[1] for row in rows if not isinstance(row, DataError)]
    progress(f"{counted(len(lines), 'line')} joined into {counted(len(texts), 'paragraph')}")
    return texts


def _sides(
    lines: list[str], name: str, number: Callable[[int], int], bad: list[str] | None
) -> tuple[list[str], list[str]]:
    """The sources and targets of lines with a tab between them; `number` is that of the line with an index.
    Raises DataError: a line has not one tab, or one side of it is blank; where `bad` takes the message it is blank.
    """
    pairs = []
    for index, line in enumerate(lines):
        source, *targets = line.split("\t")
        if line.strip() and len(targets) != 1:
            _say_bad(
                f"{name}:{number(index)}: the model reads pairs: a line is a source, a tab and a target, or give a "
                f"second file with the targets; this line has {len(targets)} tabs",
                bad,
            )
            source, targets = "", []
        pairs.append((source, "".join(targets)))
    return _whole(pairs, name, number, bad)


def _whole(
    pairs: list[tuple[str, str]], name: str, number: Callable[[int], int], bad: list[str] | None
) -> tuple[list[str], list[str]]:
    for index, (source, target) in enumerate(pairs):
        if bool(source.strip()) != bool(target.strip()):
            if not isinstance(source, BadLine) and not isinstance(target, BadLine):  # its message is there already
                blank = "target" if source.strip() else "source"
                _say_bad(f"{name}:{number(index)}: the {blank} of this pair is blank", bad)
            pairs[index] = "", ""
    return [source for source, _ in pairs], [target for _, target in pairs]


def _say_bad(message: str, bad: list[str] | None) -> None:
    """Raises DataError with that message, unless a list takes it."""
    if bad is None:
        raise DataError(message)
    bad.append(message)
