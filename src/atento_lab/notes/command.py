"""`atento notes`: run the rows of the lecture notes and compare the values of the notes."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atento.base.terminal import echo
from atento_cli.completion import note_rows
from atento_cli.options import AsJson, Seed
from atento_cli.output_paths import output_folder

if TYPE_CHECKING:
    from atento_lab.notes.finding import Row
    from atento_lab.notes.table import Result
    from atento_lab.notes.wording import Wording

EPILOG = "Example:  atento notes A3 L1; pages:  atento notes --report --out report --language pt-BR"


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
        Path | None,
        typer.Option(metavar="FOLDER", help="Also write the figures of the rows, as SVG; with --report, the pages."),
    ] = None,
    language: Annotated[
        str, typer.Option(metavar="en|pt|pt-BR", help="Language of titles, values, reasons and pages.")
    ] = "en",
    report: Annotated[
        bool,
        typer.Option(
            "--report",
            help="Run the rows, or all of them, and write a page for each of the five notes into --out: minutes.",
        ),
    ] = False,
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
    from atento.base.errors import UsageError
    from atento.base.precision import threads as processor_threads
    from atento_lab.notes.table import rows_named, with_documents
    from atento_lab.notes.wording import CREDIT, wording

    words = wording(language)
    if report and (page or names_only or as_json):
        raise UsageError("--report writes pages: give it without --page, --list and --json")
    if report and out is None:
        raise UsageError("--report needs --out FOLDER, where the pages are written")
    if page:
        from atento_lab.notes.page import page as rows_as_page

        echo(rows_as_page(words), nl=False)
        return
    if rows and every:
        raise UsageError(f"--all runs every row: got rows as well, {' '.join(rows)}")
    chosen = rows_named(rows or [])
    if documents is not None:
        chosen = with_documents(chosen, documents)
    if names_only or not (rows or every or report):
        for row in chosen:
            title = row.titled(words)
            record = {"row": row.id, "title": title}
            echo(json.dumps(record, ensure_ascii=False) if as_json else f"{row.id:<5}{title}")
        if not names_only:
            echo("`atento notes ROW` runs a row, `atento notes --all` runs all of them", err=True)
        echo(words.text(CREDIT), err=True)
        return
    if out is not None:
        output_folder(out).mkdir(parents=True, exist_ok=True)
    with processor_threads(threads):
        passed = _pages(chosen, out, words, seed) if report and out else _lines(chosen, out, words, seed, as_json)
    if not passed:
        raise typer.Exit(1)


def _pages(rows: "list[Row]", out: Path, words: "Wording", seed: int) -> bool:
    """Write the report, with a line of progress for each row; return whether all rows passed."""
    from atento_lab.notes.note_pages import write_report

    echo(f"running {len(rows)} rows; all of them take one to nine minutes on two cores", err=True)
    passed = write_report(rows, out, words, seed, lambda line: echo(line, err=True))
    echo(str(out / "index.html"))
    return passed


def _lines(rows: "list[Row]", out: Path | None, words: "Wording", seed: int, as_json: bool) -> bool:
    """Print a line for each row, and write the figures; return whether all rows passed."""
    import time

    from atento_lab.notes.table import run
    from atento_lab.notes.wording import CREDIT

    begun, passed = time.perf_counter(), 0
    written: list[Path] = []
    for result in run(rows, seed):
        passed += result.finding.passed
        echo(json.dumps(result.record(words), ensure_ascii=False) if as_json else result_text(result, words))
        written += result.save_figures(out, words) if out is not None else []
    if out is not None:
        echo(f"wrote {', '.join(map(str, written))}" if written else "--out: none of these rows has a figure", err=True)
    seconds = f"{time.perf_counter() - begun:.1f}"
    echo(f"{words.said('{} of {} rows as expected, {} s.', passed, len(rows), seconds)} {words.text(CREDIT)}", err=True)
    return passed == len(rows)


def result_text(result: "Result", words: "Wording") -> str:
    """A row as text: one line, then the value of the notes, a remark and a drawing or answers if there are any."""
    from atento_lab.notes.finding import one_line

    row, finding = result.row, result.finding
    verdict = words.text("ok" if finding.passed else "FAILED")
    value, expected = one_line(finding.value, words), one_line(finding.expected, words)
    expected = words.text("the same") if expected == value else expected
    about = f"{words.text('value')} {value}  {words.text('expected')} {expected}  {verdict}"
    lines = [f"{row.id:<5}{row.titled(words)}  {about}  {words.number(f'{result.seconds:.2f}')} s"]
    if finding.notes is not None:
        lines.append(f"      {words.text('notes')}: {one_line(finding.notes, words)}")
    if finding.remark:
        lines.append(f"      {words.remark(finding.remark)}")
    for answer in finding.answers:
        side = 0 if words.tag == "en" else 1
        lines += [f"      {answer.row:<4}{answer.question[side]}", f"          {answer.answer[side]}"]
    if not finding.answers:
        lines += [f"      {line}" for line in words.drawing(finding.drawing).splitlines()]
    return "\n".join(lines)
