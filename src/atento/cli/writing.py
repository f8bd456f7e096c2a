"""`atento translate`, `summarize`, `generate`: one line in, one line out."""

import json
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from atento.cli.decoding import with_decoding
from atento.cli.options import AsJson, Device, ModelArgument, Precision, Seed, Threads, progress, running

File = Annotated[str, typer.Argument(metavar="[FILE]", help="One text a line; - is standard input.")]
SplitSentences = Annotated[
    bool, typer.Option("--split-sentences", help="Each sentence of a line by itself, joined again.")
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="A broken line becomes an empty one, counted.")]
Stream = Annotated[bool, typer.Option("--stream", help="Show each output while it is written.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    example = "Example:  echo 'I love NLP' | atento translate runs/demo"
    app.command("translate", epilog=example)(with_decoding(translate))
    app.command("summarize", epilog="Example:  atento summarize runs/news articles.txt")(with_decoding(summarize))
    example = "Example:  echo 'o gato' | atento generate runs/micro-world-lm --top-p 0.9"
    app.command("generate", epilog=example)(with_decoding(generate))


def translate(
    model: ModelArgument,
    decoding: dict[str, Any],
    file: File = "-",
    split_sentences: SplitSentences = False,
    skip_bad: SkipBad = False,
    device: Device = "auto",
    precision: Precision = "float32",
    seed: Seed = 1,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Translate; line N of the output answers line N of the input, and an empty line stays empty."""
    from atento.model import load

    with running(seed, threads):
        loaded = load(model, device=device, precision=precision)
        lines = _lines(file, skip_bad)
        _write(loaded.translations, "translations", lines, split_sentences, decoding | {"seed": seed}, as_json)


def summarize(
    model: ModelArgument,
    decoding: dict[str, Any],
    file: File = "-",
    skip_bad: SkipBad = False,
    device: Device = "auto",
    precision: Precision = "float32",
    seed: Seed = 1,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Summarise one text a line; an empty line stays empty."""
    from atento.model import load

    with running(seed, threads):
        loaded = load(model, device=device, precision=precision)
        _write(loaded.summaries, "summaries", _lines(file, skip_bad), False, decoding | {"seed": seed}, as_json)


def generate(
    model: ModelArgument,
    decoding: dict[str, Any],
    file: File = "-",
    stream: Stream = False,
    skip_bad: SkipBad = False,
    device: Device = "auto",
    precision: Precision = "float32",
    seed: Seed = 1,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Go on from a prompt a line, which is not repeated; an empty line is the empty prompt."""
    from atento.errors import UsageError
    from atento.model import load

    if stream and (as_json or "n_best" in decoding):
        raise UsageError("--stream shows one output as text: no --json, no --n-best")
    options = decoding | {"seed": seed}
    with running(seed, threads):
        loaded = load(model, device=device, precision=precision)
        lines = _lines(file, skip_bad)
        if not stream:
            _write(loaded.generations, "outputs", lines, False, options, as_json)
            return
        for line in lines:
            for piece in loaded.stream(line, **options):
                sys.stdout.write(_line(piece))
                sys.stdout.flush()
            sys.stdout.write("\n")


def _lines(file: str, skip_bad: bool) -> list[str]:
    from atento.data.sources import read_lines

    bad: list[str] | None = [] if skip_bad else None
    lines = read_lines(file, bad=bad)
    if bad:
        progress(f"warning: {len(bad)} bad lines became empty ones, first: {bad[0]}")
    return lines


def _write(
    write: Any, name: str, lines: Sequence[str], split_sentences: bool, options: dict[str, Any], as_json: bool
) -> None:
    """What the model's method `write` makes of the lines, on standard output; `name` is what JSON calls it."""
    from atento.errors import UsageError
    from atento.text.sentences import split_sentences as split

    if "n_best" in options and split_sentences:
        raise UsageError("--n-best and --split-sentences exclude each other")
    pieces = [split(line) if split_sentences else [line] for line in lines]
    flat = write([piece for line in pieces for piece in line], **options)
    outputs = iter(flat)
    for line, parts in zip(lines, pieces):
        found = [next(outputs) for _ in parts]
        if as_json:
            hypotheses = [
                {
                    "text": one.text,
                    "score": one.hypothesis.score,
                    "log_prob": one.hypothesis.log_prob,
                    "finished": one.hypothesis.finished,
                }
                for part in found
                for one in part
            ]
            sys.stdout.write(json.dumps({"source": line, name: hypotheses}, ensure_ascii=False) + "\n")
        elif "n_best" in options:
            sys.stdout.write("\t".join(_line(one.text).replace("\t", " ") for one in found[0]) + "\n")
        else:
            sys.stdout.write(_line(" ".join(part[0].text for part in found)) + "\n")


def _line(text: str) -> str:
    """The text on one line: a model that writes bytes may write a line end, and line N must answer line N."""
    return text.replace("\n", " ").replace("\r", " ")
