"""`atento bench`: the project's measurements beside its peers, ratios last."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from atento.cli.completion import measurements, models
from atento.cli.options import AsJson, Threads, progress
from atento.cli.outputs import output_folder


@dataclass(frozen=True)
class Measurement:
    """What a measurement is of, and about how many minutes it takes on 2 cores with 30 seconds a side."""

    about: str
    minutes: int


MEASUREMENTS = {
    "training": Measurement("training throughput beside transformers, real target tokens a second", 5),
    "families": Measurement("forward and training step of each family beside transformers, time and memory", 25),
    "recurrence": Measurement("recurrent networks beside a Transformer: gradients, steps, time, memory, quality", 10),
    "decoding": Measurement("translation speed beside transformers and CTranslate2 on the same weights", 10),
    "parts": Measurement("what a decoding step is spent on, part by part", 2),
    "generation": Measurement("generation by a decoder alone beside transformers", 5),
    "graphs": Measurement("decoding on a GPU: captured steps beside plain ones and transformers", 5),
    "encoding": Measurement("sentences to vectors beside sentence-transformers and ONNX Runtime", 20),
    "mbr": Measurement("minimum Bayes risk beside sacrebleu and mbrs, and the quicker ways of it", 15),
    "attention": Measurement("one attention layer by mask, length and kernel beside its peers, time and memory", 120),
    "observation": Measurement("what looking at attention costs a training step", 2),
    "positions": Measurement("networks that differ in their position scheme alone: length, order, cost", 8),
    "agreement": Measurement("what reduced precision keeps of a trained model's outputs (needs --model)", 5),
}


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("bench", epilog="Example:  atento bench training --seconds 60")(bench)


def bench(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Which; if not given, they are listed.", autocompletion=measurements),
    ] = None,
    names_only: Annotated[
        bool, typer.Option("--list", help="List the measurements, with about how many minutes each takes.")
    ] = False,
    run_all: Annotated[bool, typer.Option("--all", help="Run all but agreement, one after another: hours.")] = False,
    seconds: Annotated[
        float, typer.Option(min=1, help="How long each side is measured; positions: 30 for its usual steps.")
    ] = 30.0,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write the rows, and what tables and figures there are, here.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="agreement: a trained translator whose precisions are compared.", autocompletion=models),
    ] = None,
    sources: Annotated[Path | None, typer.Option(metavar="FILE", help="agreement: sentences to translate.")] = None,
    references: Annotated[Path | None, typer.Option(metavar="FILE", help="agreement: their translations.")] = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Measure, each peer beside us in the same run. Times of a shared machine are noisy: trust the ratios.

    Without a name the measurements are listed; --all runs them one after another, which takes hours.
    """
    from atento.errors import UsageError, nearest

    if name is not None and name not in MEASUREMENTS:
        raise UsageError(f"unknown measurement {name!r}{nearest(name, list(MEASUREMENTS))}")
    if name is not None and run_all:
        raise UsageError(f"--all runs every measurement: got the name {name!r} as well")
    if names_only or (name is None and not run_all):
        _list(as_json)
        return
    if out is not None:
        output_folder(out).mkdir(parents=True, exist_ok=True)
    if name == "agreement":
        if model is None or sources is None or references is None:
            raise UsageError(
                "agreement compares the precisions of a trained model: give --model, --sources, --references"
            )
        _agreement(model, sources, references, out, threads, as_json)
        return
    _run([name] if name else [one for one in MEASUREMENTS if one != "agreement"], seconds, out, threads, as_json)


def _list(as_json: bool) -> None:
    """The measurements; how to run them on standard error."""
    for name, one in MEASUREMENTS.items():
        record = {"name": name, "about": one.about, "minutes": one.minutes}
        typer.echo(json.dumps(record) if as_json else f"{name:<12} {one.minutes:>4} min  {one.about}")
    hours = sum(one.minutes for name, one in MEASUREMENTS.items() if name != "agreement") / 60
    progress(f"one of them: atento bench NAME; all of them, about {hours:.0f} hours: atento bench --all")


def _agreement(
    model: str, sources: Path, references: Path, out: Path | None, threads: int | None, as_json: bool
) -> None:
    from atento.bench.agreement import measure_agreement
    from atento.precision import threads as thread_scope

    with thread_scope(threads):
        show("agreement", measure_agreement(model, sources, references), out, as_json)


def _run(names: list[str], seconds: float, out: Path | None, threads: int | None, as_json: bool) -> None:
    from atento.bench import BENCHES
    from atento.precision import threads as thread_scope

    for name in names:
        with thread_scope(threads):
            show(name, BENCHES[name](seconds), out, as_json)


def show(name: str, measured: Iterable[dict[str, Any]], out: Path | None, as_json: bool) -> None:
    """Print the rows of a measurement as they come, or its page at the end; write what there is in folder `out`."""
    from atento.bench import REPORTS

    rows = []
    for row in measured:
        rows.append(row)
        if as_json:
            typer.echo(json.dumps(row, ensure_ascii=False))
        elif name not in REPORTS:
            typer.echo("\t".join(f"{k} {v}" for k, v in row.items()))
        elif "task" in row:
            progress(f"{name}: {row['task']}, {row['scheme']}")
    files = {f"{name}.jsonl": "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)}
    if name in REPORTS:
        report = REPORTS[name](rows)
        files |= report.files
        if not as_json:
            typer.echo(report.text, nl=False)
    if out is not None:
        _write(out, files)


def _write(folder: Path, files: dict[str, str]) -> None:
    from atento.errors import AtentoError

    for name, text in files.items():
        try:
            (folder / name).write_text(text, encoding="utf-8", newline="\n")
        except OSError as error:
            raise AtentoError(f"could not write {str(folder / name)!r}: {error.strerror}") from error
