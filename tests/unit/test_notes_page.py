"""docs/notes.md: made from the table, up to date, and where every row named in a docstring has its address."""

import re
from pathlib import Path

import typer
from typer.testing import CliRunner

from atento_lab.notes.command import register
from atento_lab.notes.errata import ERRATA
from atento_lab.notes.page import page
from atento_lab.notes.table import ROWS
from atento_lab.notes.wording import wording

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"docs/notes\.md((?:(?:, | and | to )?#[a-l]\d{1,2}b?\b)+)")  # one address, or several
CODES = re.compile(r"\((?:rows? )?[A-L]\d{1,2}b?(?:(?:, | and | to )[A-L]\d{1,2}b?)*\)")  # in notes/ alone


def headings() -> list[str]:
    return re.findall(r"^### (.+)$", (ROOT / "docs" / "notes.md").read_text(encoding="utf-8"), re.MULTILINE)


def test_the_page_is_that_of_the_table_short_and_printed_by_the_command() -> None:
    """`atento notes --page > docs/notes.md` makes it again, with `--language pt-BR` the other."""
    assert (ROOT / "docs" / "notes.md").read_text(encoding="utf-8") == page()
    assert (ROOT / "docs" / "notes.pt-BR.md").read_text(encoding="utf-8") == page(wording("pt-BR"))
    # A heading of the row's name alone, which is the anchor `#a11`
    assert sorted(headings()) == sorted(ROWS)
    # What `atento notes ROW` prints does not stand here too
    assert [len(page(wording(language)).split()) > 3400 for language in ("en", "pt-BR")] == [False, False]
    app = typer.Typer()
    register(app)
    app.command("other")(lambda: None)
    result = CliRunner().invoke(app, ["notes", "--page"])
    assert result.exit_code == 0 and result.stdout == page()


def test_a_row_named_in_a_docstring_links_and_errors_lead_somewhere() -> None:
    named: dict[str, str] = {}
    for file in (ROOT / "src").rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        for group in [*NAMED.findall(text), *CODES.findall(text)]:
            named |= {row.upper(): str(file) for row in re.findall(r"\b[A-La-l]\d{1,2}b?\b", group)}
    rows = {name.upper() for name in headings()}
    assert len(named) > 60 and {row: file for row, file in named.items() if row not in rows} == {}
    # Each row leads to the file of its check; an error stands in full once, and is named at its other rows
    for language in ("en", "pt-BR"):
        words = wording(language)
        text = page(words)
        links = re.findall(r"\]\(\.\./([^)]+)\)", text)
        assert len(links) == len(ROWS) and [link for link in links if not (ROOT / link).is_file()] == []
        rows = dict(re.findall(r"^### (.+)\n\n((?:(?!#).*\n)*)", text, flags=re.MULTILINE))
        for number, one in ERRATA.items():
            shown = [row for row in rows if f"\n**{number}:** " in rows[row]]
            assert sorted(shown) == sorted(one.rows), number
            assert [row for row in shown if all(part in rows[row] for part in words.error(number))] == [one.rows[0]], (
                number
            )
