"""The report of the notes: a self-contained page a note, with every figure, and an index; no scripts, no links out."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path

from atento.base.version import __version__
from atento.inspection.standalone import mark, sheet
from atento.storage.atomic_files import write_output
from atento_lab.notes.errata import ERRATA, errata_of
from atento_lab.notes.finding import Finding, Row, flat, grid, one_line, plain
from atento_lab.notes.table import Result, run
from atento_lab.notes.wording import CREDIT, Wording


@dataclass(frozen=True)
class Chapter:
    """A part of a note, titled in our own words."""

    title: str
    rows: tuple[str, ...]


@dataclass(frozen=True)
class Note:
    """A lecture note.

    Args:
        number: from 1, in the order of the book.
        name: of its page.
        title: what it is about.
        errors: numbers of its errors in `atento_lab.notes.errata`.
        chapters: its parts; a row stands once in a note, and may stand in several notes.
    """

    number: int
    name: str
    title: str
    errors: tuple[int, ...]
    chapters: tuple[Chapter, ...]

    @property
    def rows(self) -> tuple[str, ...]:
        """The rows of all chapters, in their order."""
        return tuple(row for chapter in self.chapters for row in chapter.rows)


@cache
def five_notes() -> tuple[Note, ...]:
    """Return the notes, in the order of the book."""
    notes = []
    text = files("atento_lab.notes").joinpath("five_notes.json").read_text(encoding="utf-8")
    for number, note in enumerate(json.loads(text), start=1):
        chapters = tuple(Chapter(title, tuple(rows.split())) for title, rows in note["chapters"].items())
        notes.append(Note(number, note["name"], note["title"], tuple(note["errors"]), chapters))
    return tuple(notes)


_STYLE = """
body { margin: 0 auto; max-width: 64rem; padding: 16px 20px 64px } main { padding: 0 } ol, ul { padding-left: 20px }
h2 { font-size: var(--lead); margin-top: 40px; border-bottom: 1px solid var(--edge) } .short { white-space: nowrap }
h3 { font-size: var(--text); color: inherit; margin: 32px 0 5px } h3, h4, p, li { overflow-wrap: anywhere }
table { font-size: var(--small) } caption { text-align: left; color: var(--muted) } tbody th { font-weight: 500 }
td pre { margin: 0 } .wide { overflow-x: auto; margin: 10px 0 }
.wide pre { margin: 0; padding: 8px; background: var(--zero) }
figure { margin: 13px 0 } .paper svg { max-width: 100%; height: auto }
.ok, .failed { font-size: var(--small); font-weight: 700 } .ok { color: var(--raises) } .failed { color: var(--mark) }
.time, footer { color: var(--muted); font-size: var(--small) }
.reason { border-left: 3px solid var(--edge); padding-left: 13px }
@media print { body { max-width: none; font-size: 10pt } a { color: inherit } svg, tr { break-inside: avoid }
  h2, h3 { break-after: avoid } .wide { overflow: visible } pre { white-space: pre-wrap } }
"""


def write_report(rows: Sequence[Row], folder: Path, words: Wording, seed: int, tell: Callable[[str], None]) -> bool:
    """Run rows and write the page of each note that has some of them, then the index; return whether all passed.

    A page is written whole, as soon as its rows have run; a row that several notes have runs once.

    Args:
        rows: the rows to report.
        folder: where the pages go; it exists.
        words: the language of the pages.
        seed: of the random numbers of each row.
        tell: called with a line of progress for each row.
    """
    given = {row.id: row for row in rows}
    results: dict[str, Result] = {}
    notes = [note for note in five_notes() if not given.keys().isdisjoint(note.rows)]
    for note in notes:
        for result in run([given[name] for name in note.rows if name in given and name not in results], seed):
            results[result.row.id] = result
            verdict = words.text("ok" if result.finding.passed else "FAILED")
            about, seconds = f"{result.row.id:<5}{result.row.titled(words)}", words.number(f"{result.seconds:.1f}")
            tell(f"{len(results)}/{len(given)}  {about}  {verdict}  {seconds} s")
        write_output(folder / f"{note.name}.html", note_page(note, results, words))
    write_output(folder / "index.html", index_page(notes, results, words))
    return all(result.finding.passed for result in results.values())


def note_page(note: Note, results: Mapping[str, Result], words: Wording) -> str:
    """Return the page of a note: the rows of its chapters that have a result, and its errors."""
    chapters = [(chapter, [results[name] for name in chapter.rows if name in results]) for chapter in note.chapters]
    chapters = [(chapter, found) for chapter, found in chapters if found]
    contents, parts = [], []
    for number, (chapter, found) in enumerate(chapters, start=1):
        heading = words.text(chapter.title)
        contents.append(f'<li><a href="#c{number}">{escape(heading)}</a></li>')
        parts.append(f'<section aria-labelledby="c{number}"><h2 id="c{number}">{escape(heading)}</h2>')
        parts += [_article(result, note, words) for result in found]
        parts.append("</section>")
    named = {number for _, found in chapters for result in found for number in errata_of(result.row.id)}
    errors = [number for number in note.errors if number in named]
    if errors:
        heading = escape(words.text("Errors of the notes"))
        contents.append(f'<li><a href="#errors">{heading}</a></li>')
        shown = {result.row.id for _, found in chapters for result in found}
        parts.append(f'<section aria-labelledby="errors"><h2 id="errors">{heading}</h2>')
        parts += [_errors(errors, shown, words), "</section>"]
    title = f"{note.number}. {words.text(note.title)}"
    listed = f"<ol>{''.join(contents)}</ol>"
    nav = f'<nav aria-label="{escape(words.text("Contents"))}"><p><a href="index.html">'
    nav += f"{escape(words.text('All notes'))}</a></p>{listed}</nav>"
    return _page(title, f"{_summary([r for _, found in chapters for r in found], words)}{nav}", "\n".join(parts), words)


def index_page(notes: Sequence[Note], results: Mapping[str, Result], words: Wording) -> str:
    """Return the page that links those of the notes, with the rows that failed."""
    items = []
    for note in notes:
        found = [results[name] for name in note.rows if name in results]
        failed = [
            f'<a href="{note.name}.html#{result.row.id.lower()}">{escape(result.row.id)}</a>'
            for result in found
            if not result.finding.passed
        ]
        link = f'<a href="{note.name}.html">{note.number}. {escape(words.text(note.title))}</a>'
        lost = f' <span class="failed">{escape(words.text("FAILED"))}: {", ".join(failed)}</span>' if failed else ""
        items.append(f"<li><h2>{link}</h2>{_summary(found, words)}{lost}</li>")
    style = '<ul style="list-style: none; padding: 0">'
    return _page(
        words.text("The lecture notes, checked"),
        _summary(list(results.values()), words),
        style + "".join(items) + "</ul>",
        words,
    )


def _page(title: str, head: str, body: str, words: Wording) -> str:
    """Return a page without scripts and external resources."""
    made = words.said("Written by Atento {} from networks as they ran.", __version__)
    return (
        f'<!doctype html>\n<html lang="{words.tag}">\n<head>\n<meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{escape(title)}</title>\n'
        f"<style>{sheet('document.css')}{_STYLE}</style>\n</head>\n<body>\n"
        f"<header>{mark()}<h1>{escape(title)}</h1>{head}</header>\n"
        f"<main>\n{body}\n</main>\n<footer><p>{escape(words.text(CREDIT))}</p><p>{escape(made)}</p></footer>\n"
        "</body>\n</html>\n"
    )


def _summary(found: Sequence[Result], words: Wording) -> str:
    passed, seconds = sum(result.finding.passed for result in found), sum(result.seconds for result in found)
    return f"<p>{escape(words.said('{} of {} rows as expected, {} s.', passed, len(found), f'{seconds:.1f}'))}</p>"


def _article(result: Result, note: Note, words: Wording) -> str:
    """Return a row: its title, numbers, errors, reason, figure and time."""
    row, finding = result.row, result.finding
    name, verdict = row.id.lower(), "ok" if finding.passed else "failed"
    title = row.titled(words)
    shown = words.text("ok" if finding.passed else "FAILED")
    parts = [
        f'<article id="{escape(name)}" aria-labelledby="{escape(name)}-title">',
        f'<h3 id="{escape(name)}-title">{escape(row.id)} · {escape(title[:1].upper() + title[1:])} '
        f'<span class="{verdict}">{escape(shown)}</span></h3>',
        f"<p>{_code(row.about(words))}</p>",
    ]
    if not finding.answers:
        parts.append(_numbers(finding.value, finding.expected, finding.notes, words))
    for number in (number for number in errata_of(row.id) if number in note.errors):
        told = words.text("Error {}. The notes: {}. Right: {}.").format(number, *words.error(number))
        parts.append(f"<p>{_code(told)}</p>")
    if finding.remark:
        parts.append(f'<p class="reason">{_code(_sentence(words.remark(finding.remark)))}</p>')
    parts += _drawn(finding, note, name, words)
    time = words.number(f"{result.seconds:.2f} s")
    return "\n".join([*parts, f'<p class="time">{time}</p>', "</article>"])


def _drawn(finding: Finding, note: Note, name: str, words: Wording) -> Iterator[str]:
    """Yield the figure of a row and its drawing as text; of the notes' questions, each answer with its figure."""
    answers = [answer for answer in finding.answers if answer.note == note.number]
    for number, answer in enumerate(answers, start=1):
        side = 0 if words.tag == "en" else 1
        link = words.said("The experiment is that of row {}.", answer.row)
        yield f"<h4>{escape(answer.question[side])}</h4><p>{escape(answer.answer[side])} {escape(link)}</p>"
        yield _numbers(answer.value, answer.expected, None, words)
        yield _figure(answer.figure, f"{name}-{number}", words)
    if finding.figure and not answers:
        yield _figure(finding.figure, name, words)
    if finding.drawing and not finding.answers:
        label = escape(words.text("As text"))
        pre = f'<div class="wide" tabindex="0" role="group" aria-label="{label}"><pre>'
        pre += f"{escape(words.drawing(finding.drawing))}</pre></div>"
        yield f"<details><summary>{label}</summary>{pre}</details>" if finding.figure else pre


def _figure(svg: str, name: str, words: Wording) -> str:
    """Return a drawing, whose ids begin with the name of its row, so that they are unique in the page."""
    unique = re.sub(r'(\bid="|url\(#)', rf"\g<1>{name}-", words.figure(svg))
    return f'<figure class="wide paper" tabindex="0">{unique.strip()}</figure>' if svg else ""


def _numbers(value: object, expected: object, of_notes: object, words: Wording) -> str:
    """Return a table of values beside those expected and, where they differ, those of the notes."""
    values, bounds, notes = (flat(plain(side)) for side in (value, expected, of_notes))
    differ = of_notes is not None
    labels = list(dict.fromkeys([*values, *bounds, *(notes if differ else ())]))
    heads = ["what", "value", "expected"] + ["the notes"] * differ
    lines = []
    for label in labels:
        cells = [_cell(side[label], words) if label in side else "" for side in (values, bounds)]
        if cells[0] and cells[0] == cells[1]:
            cells[1] = escape(words.text("the same"))
        cells += [_cell(notes[label], words) if label in notes else ""] if differ else []
        name = " › ".join(words.text(part) for part in label) or words.text("result")
        lines.append(f'<tr><th scope="row">{escape(name)}</th>{"".join(map(_column, cells))}</tr>')
    head = "".join(f'<th scope="col">{escape(words.text(text))}</th>' for text in heads)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    return f'<div class="wide" tabindex="0" role="group" aria-label="{escape(words.text("Values"))}">{table}</div>'


def _column(cell: str) -> str:
    return f'<td class="short">{cell}</td>' if 0 < len(cell) < 25 else f"<td>{cell}</td>"


def _cell(value: object, words: Wording) -> str:
    """Return a value as HTML: a matrix as lines, anything else in one."""
    rows = value if isinstance(value, list) and len(value) > 1 and all(isinstance(row, list) for row in value) else []
    if rows and all(isinstance(item, int | float) and not isinstance(item, bool) for row in rows for item in row):
        return f"<pre>{escape(words.number(grid(rows, 6 if len(rows) < 5 else 3)))}</pre>"
    return escape(one_line(value, words))


def _errors(numbers: Sequence[int], shown: set[str], words: Wording) -> str:
    """Return the table of a note's errors, with links to the rows of the page that tell them."""
    lines = []
    for number in numbers:
        notes, right = words.error(number)
        links = ", ".join(f'<a href="#{row.lower()}">{row}</a>' for row in ERRATA[number].rows if row in shown)
        lines.append(f"<tr><td>{number}</td><td>{_code(notes)}</td><td>{_code(right)}</td><td>{links}</td></tr>")
    heads = ("error", "the notes", "right", "named by")
    head = "".join(f'<th scope="col">{escape(words.text(text))}</th>' for text in heads)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    return f'<div class="wide" tabindex="0" role="group" aria-labelledby="errors">{table}</div>'


def _code(text: str) -> str:
    """Return a text as HTML, with what stands in backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _sentence(text: str) -> str:
    return f"{text[0].upper() if re.match('([ao]|[a-zà-ü]{2,}),? ', text) else text[0]}{text[1:].rstrip('.')}."
