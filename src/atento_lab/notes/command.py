"""`atento notes`: run the rows of the lecture notes and compare the values of the notes."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atento.cli.completion import note_rows
from atento.cli.options import AsJson, Seed
from atento.cli.output_paths import output_folder
from atento.terminal import echo

if TYPE_CHECKING:
    from atento_lab.notes.table import Result

EPILOG = "Example:  atento notes A3 L1; figures as files:  atento notes J1 J2 J4 --out figures"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("notes", epilog=EPILOG)(notes)


def notes(
    rows: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ROW",
            help="Rows to run, such as A3 or L1; they are listed if none is given.",
            autocompletion=note_rows,
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Run all rows, which takes minutes.")] = False,
    names_only: Annotated[bool, typer.Option("--list", help="List the rows without running them.")] = False,
    page: Annotated[
        bool, typer.Option("--page", help="Print the rows as a page, docs/notes.md, without running them.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Also write the figures of the rows, as SVG.")
    ] = None,
    documents: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="For B12: documents and summaries of your own; JSONL or CSV with source and target, or a TSV of both.",
        ),
    ] = None,
    seed: Seed = 1,
    threads: Annotated[int, typer.Option(min=1, help="Number of CPU threads; one is fastest here.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Run the worked examples, formulas and listings of the lecture notes, and compare their values; bare, list them.

    Prints one line for each row, and more if the notes differ or the row has a drawing. The exit status is 1 if a row
    fails.
    """
    import time

    from atento.errors import UsageError
    from atento.precision import threads as processor_threads
    from atento_lab.notes.table import CREDIT, rows_named, run, with_documents

    if page:
        from atento_lab.notes.page import page as rows_as_page

        echo(rows_as_page(), nl=False)
        return
    if rows and every:
        raise UsageError(f"--all runs every row: got rows as well, {' '.join(rows)}")
    chosen = rows_named(rows or [])
    if documents is not None:
        chosen = with_documents(chosen, documents)
    if names_only or not (rows or every):
        for row in chosen:
            record = {"row": row.id, "title": row.title}
            echo(json.dumps(record, ensure_ascii=False) if as_json else f"{row.id:<5}{row.title}")
        if not names_only:
            echo("`atento notes ROW` runs a row, `atento notes --all` runs all of them", err=True)
        echo(CREDIT, err=True)
        return
    if out is not None:
        output_folder(out).mkdir(parents=True, exist_ok=True)
    begun, passed, written = time.perf_counter(), 0, []
    with processor_threads(threads):
        for result in run(chosen, seed):
            passed += result.finding.passed
            echo(json.dumps(result.record(), ensure_ascii=False) if as_json else result_text(result))
            if out is not None and (path := result.save_figure(out)):
                written.append(str(path))
    if out is not None:
        echo(f"wrote {', '.join(written)}" if written else "--out: none of these rows has a figure", err=True)
    echo(f"{passed} of {len(chosen)} rows as expected, {time.perf_counter() - begun:.1f} s. {CREDIT}", err=True)
    if passed < len(chosen):
        raise typer.Exit(1)


def result_text(result: "Result") -> str:
    """A row as text: one line, then the value of the notes, a remark and a drawing if there are any."""
    from atento_lab.notes.finding import one_line

    row, finding = result.row, result.finding
    verdict = "ok" if finding.passed else "FAILED"
    value, expected = one_line(finding.value), one_line(finding.expected)
    expected = "the same" if expected == value else expected
    lines = [f"{row.id:<5}{row.title}  value {value}  expected {expected}  {verdict}  {result.seconds:.2f} s"]
    if finding.notes is not None:
        lines.append(f"      notes: {one_line(finding.notes)}")
    if finding.remark:
        lines.append(f"      {finding.remark}")
    lines += [f"      {line}" for line in finding.drawing.splitlines()]
    return "\n".join(lines)
