"""`atento translate`: one line in, one line out."""

import json
import sys
from typing import Annotated

import typer

from atento.cli.options import AsJson, Device, ModelArgument, Precision, Seed, Threads, progress, running


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("translate", epilog="Example:  echo 'I love NLP' | atento translate runs/demo")(translate)


def translate(
    model: ModelArgument,
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="One sentence a line; - is standard input.")] = "-",
    greedy: Annotated[bool, typer.Option("--greedy", help="The most probable token at every step.")] = False,
    beam: Annotated[int | None, typer.Option(min=1, help="Beam width; the recipe's if not given.")] = None,
    length_penalty: Annotated[float | None, typer.Option(help="Score = log-probability / length ** this.")] = None,
    n_best: Annotated[int | None, typer.Option(min=1, help="So many outputs a line, TAB between them.")] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="At most so many; 2 x source + 16 if not given.")
    ] = None,
    split_sentences: Annotated[
        bool, typer.Option("--split-sentences", help="Translate each sentence of a line by itself.")
    ] = False,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="A broken line becomes an empty one, counted.")] = False,
    batch_tokens: Annotated[int | None, typer.Option(min=1, help="Source tokens times beam at once.")] = None,
    device: Device = "auto",
    precision: Precision = "float32",
    seed: Seed = 1,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Translate; line N of the output answers line N of the input, and an empty line stays empty."""
    from atento.data.sources import read_lines
    from atento.errors import UsageError
    from atento.model import load
    from atento.tasks.translation import Translation
    from atento.text.sentences import split_sentences as split

    if greedy and beam not in (None, 1):
        raise UsageError(f"--greedy and --beam {beam} exclude each other")
    if n_best is not None and split_sentences:
        raise UsageError("--n-best and --split-sentences exclude each other")
    given = {
        "beam": 1 if greedy else beam,
        "length_penalty": length_penalty,
        "max_new_tokens": max_new_tokens,
        "batch_tokens": batch_tokens,
    }
    options = {name: value for name, value in given.items() if value is not None}
    with running(seed, threads):
        loaded = load(model, device=device, precision=precision)
        bad: list[str] | None = [] if skip_bad else None
        lines = read_lines(file, bad=bad)
        if bad:
            progress(f"warning: {len(bad)} bad lines became empty ones, first: {bad[0]}")
        pieces = [split(line) if split_sentences else [line] for line in lines]
        flat = loaded.translations([piece for line in pieces for piece in line], n_best=n_best, **options)
    outputs = iter(flat)
    for line, parts in zip(lines, pieces):
        found: list[list[Translation]] = [next(outputs) for _ in parts]
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
            sys.stdout.write(json.dumps({"source": line, "translations": hypotheses}, ensure_ascii=False) + "\n")
        elif n_best is not None:
            sys.stdout.write("\t".join(_line(one.text).replace("\t", " ") for one in found[0]) + "\n")
        else:
            sys.stdout.write(_line(" ".join(part[0].text for part in found)) + "\n")


def _line(text: str) -> str:
    """The text on one line: a model that writes bytes may write a line end, and line N must answer line N."""
    return text.replace("\n", " ").replace("\r", " ")
