"""`atento bench`: the project's measurements beside its peers, ratios last."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from atento.cli.options import AsJson, Threads, progress
from atento.cli.outputs import output_folder


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("bench", epilog="Example:  atento bench training --seconds 60")(bench)


def bench(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Which; all if not given.")] = None,
    seconds: Annotated[
        float, typer.Option(min=1, help="How long each side is measured; positions: 30 for its usual steps.")
    ] = 30.0,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write the rows, and what tables and figures there are, here.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="agreement: a trained translator whose precisions are compared.")
    ] = None,
    sources: Annotated[Path | None, typer.Option(metavar="FILE", help="agreement: sentences to translate.")] = None,
    references: Annotated[Path | None, typer.Option(metavar="FILE", help="agreement: their translations.")] = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Measure, each peer beside us in the same run. Times of a shared machine are noisy: trust the ratios."""
    from atento.bench import BENCHES
    from atento.bench.agreement import measure_agreement
    from atento.errors import UsageError, nearest
    from atento.precision import threads as thread_scope

    if name is not None and name not in (*BENCHES, "agreement"):
        raise UsageError(f"unknown measurement {name!r}{nearest(name, [*BENCHES, 'agreement'])}")
    if name == "agreement" and (model is None or sources is None or references is None):
        raise UsageError("agreement compares the precisions of a trained model: give --model, --sources, --references")
    if out is not None:
        output_folder(out).mkdir(parents=True, exist_ok=True)
    if name == "agreement" and model is not None and sources is not None and references is not None:
        with thread_scope(threads):
            show(name, measure_agreement(model, sources, references), out, as_json)
        return
    for chosen in [name] if name else list(BENCHES):
        with thread_scope(threads):
            show(chosen, BENCHES[chosen](seconds), out, as_json)


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
