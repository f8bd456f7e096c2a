"""`atento notes`: its lines, its list, docs/notes.md as it makes it, and `--report`, a whole and safe page a note."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import html5lib
import pytest
import typer
from typer.testing import CliRunner

from atento.base.errors import UsageError
from atento_lab.notes import note_pages, table
from atento_lab.notes.command import register
from atento_lab.notes.errata import ERRATA
from atento_lab.notes.finding import Answer, Finding, Row, compare
from atento_lab.notes.note_pages import five_notes
from atento_lab.notes.page import page
from atento_lab.notes.table import ROWS, rows_named
from atento_lab.notes.wording import ENGLISH, wording
from failing import fails

ROOT = Path(__file__).parents[2]
NOTES, PORTUGUESE = five_notes(), wording("pt-BR")
APP = typer.Typer()
register(APP)
APP.command("other")(lambda: None)  # beside which it stands, as in the real one


def call(*arguments: object):
    return CliRunner().invoke(APP, ["notes", *map(str, arguments)])


def test_a_line_a_row_and_what_the_notes_have_and_list_runs_nothing(monkeypatch) -> None:
    result = call("A3", "L1")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    first, second = (line for line in lines if not line.startswith(" "))
    assert first.startswith("A3   scaled dot-product attention  value plain kernel away: ")
    assert "  expected plain kernel away: at most 1e-10;" in first and first.endswith(" s") and "  ok  0." in first
    assert second.startswith("L1   three one-hot tokens  value A: [[0.264458 0.264458 0.471083]")
    assert "      notes: A, row 1: [0.2 0.2 0.6]; h_1: [0.2 0.2 0.6]" in lines
    assert "      0.264458 0.471083 0.264458" in lines
    assert result.stderr.startswith("2 of 2 rows as expected, ") and "CC BY-SA" in result.stderr
    result = call("l3", "A7", "--json", "--seed", "3", "--threads", "1")
    assert result.exit_code == 0
    first, second = (json.loads(line) for line in result.stdout.splitlines())
    assert list(first)[:6] == ["row", "title", "passed", "value", "expected", "seconds"]
    assert first["row"] == "L3" and first["passed"] is True and isinstance(first["seconds"], float)
    assert first["value"]["subwords"] == ["o", "gat", "##inho", "corre", "rapida", "##mente"]
    assert first["expected"]["subwords"] == first["value"]["subwords"]
    assert second["row"] == "A7" and "missing" not in second
    assert "2 of 2" in result.stderr
    monkeypatch.setattr(table, "run", lambda rows, seed: pytest.fail("a row was run"))
    result = call("--list")
    assert result.exit_code == 0 and [line.split()[0] for line in result.stdout.splitlines()] == list(table.ROWS)
    assert "A13  attention without positions ignores word order" in result.stdout.splitlines()
    bare = call()  # running all of them takes minutes
    assert bare.stdout == result.stdout and "`atento notes --all` runs all of them" in bare.stderr
    one = call("A7", "--list", "--json")
    assert json.loads(one.stdout) == {"row": "A7", "title": "causal attention sees the past only"}


def test_a_failed_row_ends_with_status_1_after_the_others_and_an_unknown_one_is_wrong_usage(monkeypatch) -> None:
    monkeypatch.setitem(table.ROWS, "A3", Row("A3", "wrong", lambda: compare(1.0, 2.0)))
    result = call("A3", "A1")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0].startswith("A3   wrong  value 1  expected 2  FAILED  ")
    assert any(line.startswith("A1  ") and "  ok  " in line for line in lines)
    assert result.stderr.startswith("1 of 2 rows as expected")
    result = call("A3", "Z9")
    assert isinstance(result.exception, UsageError) and result.exception.exit_status == 2
    assert "unknown row 'Z9'" in str(result.exception) and "Known: A1, A2, A3" in str(result.exception)
    assert result.stdout == ""
    asked = []
    monkeypatch.setattr(table, "run", lambda rows, seed: asked.extend(rows) or [])
    assert call("--all").exit_code == 1 and asked == list(table.ROWS.values())
    assert isinstance(call("A3", "--all").exception, UsageError)


NAMED = re.compile(r"docs/notes\.md((?:(?:, | and | to )?#[a-l]\d{1,2}b?\b)+)")  # one address, or several
CODES = re.compile(r"\((?:rows? )?[A-L]\d{1,2}b?(?:(?:, | and | to )[A-L]\d{1,2}b?)*\)")  # in notes/ alone
HEADINGS = re.findall(r"^### (.+)$", (ROOT / "docs" / "notes.md").read_text(encoding="utf-8"), re.MULTILINE)


def test_the_page_is_that_of_the_table_short_and_printed_by_the_command() -> None:
    """`atento notes --page > docs/notes.md` makes it again, with `--language pt-BR` the other."""
    assert (ROOT / "docs" / "notes.md").read_text(encoding="utf-8") == page()
    assert (ROOT / "docs" / "notes.pt-BR.md").read_text(encoding="utf-8") == page(PORTUGUESE)
    # A heading of the row's name alone, which is the anchor `#a11`
    assert sorted(HEADINGS) == sorted(ROWS)
    # What `atento notes ROW` prints does not stand here too
    assert max(len(page(words).split()) for words in (ENGLISH, PORTUGUESE)) <= 3400
    result = call("--page")
    assert result.exit_code == 0 and result.stdout == page()


def test_a_row_named_in_a_docstring_links_and_errors_lead_somewhere() -> None:
    named: dict[str, str] = {}
    for file in (ROOT / "src").rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        for group in [*NAMED.findall(text), *CODES.findall(text)]:
            named |= {row.upper(): str(file) for row in re.findall(r"\b[A-La-l]\d{1,2}b?\b", group)}
    rows = {name.upper() for name in HEADINGS}
    assert len(named) > 60 and {row: file for row, file in named.items() if row not in rows} == {}
    # Each row leads to the file of its check; an error stands in full once, and is named at its other rows
    for words in (ENGLISH, PORTUGUESE):
        text = page(words)
        links = re.findall(r"\]\(\.\./([^)]+)\)", text)
        assert len(links) == len(ROWS) and [link for link in links if not (ROOT / link).is_file()] == []
        rows = dict(re.findall(r"^### (.+)\n\n((?:(?!#).*\n)*)", text, flags=re.MULTILINE))
        for number, one in ERRATA.items():
            shown = [row for row in rows if f"\n**{number}:** " in rows[row]]
            assert sorted(shown) == sorted(one.rows), number
            whole = [row for row in shown if all(part in rows[row] for part in words.error(number))]
            assert whole == [one.rows[0]], number


def parsed(file: Path):
    """The document, if it is valid HTML; html5lib refuses what is not."""
    return html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(file.read_text(encoding="utf-8"))


def text_of(element) -> str:
    return " ".join("".join(element.itertext()).split())


@pytest.mark.parametrize("language", ["en", "pt", "pt-BR"])
def test_report(tmp_path, language) -> None:
    """Of a few rows: the notes that have them, valid, with figures, values, the notes' values, reasons and times."""
    result = call("--report", "--out", tmp_path / "report", "--language", language, "A1", "A7", "D3", "J1", "L1")
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{tmp_path / 'report' / 'index.html'}\n"
    assert "running 5 rows" in result.stderr and "one to nine minutes" in result.stderr
    assert len(re.findall(r"^\d/5  [AJDL]\d", result.stderr, re.M)) == 5
    pages = sorted(file.name for file in (tmp_path / "report").iterdir())
    assert pages == [*(f"{NOTES[n].name}.html" for n in (0, 1, 2, 3)), "index.html"]  # none of the rows is of note 5
    english = language == "en"
    for name in pages:
        document = parsed(tmp_path / "report" / name)
        assert document.get("lang") == ("en" if english else "pt-BR")
        assert len(document.findall(".//h1")) == 1 and document.find(".//main") is not None
        assert document.findall(".//script") == [] and document.findall(".//link") == []
        ids = [element.get("id") for element in document.iter() if element.get("id")]
        assert len(ids) == len(set(ids)), name
        for link in (anchor.get("href") for anchor in document.iter("a")):
            file, _, place = link.partition("#")
            target = parsed(tmp_path / "report" / (file or name))
            assert not place or any(element.get("id") == place for element in target.iter()), link
        assert "CC BY-SA" in text_of(document.find(".//footer"))
        assert [v for e in document.iter() for v in e.attrib.values() if "http" in v and "www.w3.org" not in v] == []
    second = parsed(tmp_path / "report" / pages[1])
    (row,) = (element for element in second.iter("article") if element.get("id") == "l1")
    shown = text_of(row)
    said = ("0.264458", "[0.2 0.2 0.6]", "Error 1. The notes", "(errors 1, 2, 13)")
    said = said if english else ("0,264458", "[0,2 0,2 0,6]", "Erro 1. As notas", "(erros 1, 2, 13)")
    assert [one for one in said if one not in shown] == []
    assert (ROWS["L1"].title if english else "rês tokens one-hot") in shown.replace("Three", "three")
    assert re.search(r"\d[.,]\d\d s$", shown)
    first = parsed(tmp_path / "report" / pages[0])
    drawn = [one for one in first.iter() if one.tag.endswith("svg") and one.get("class") != "mark"]
    assert len(drawn) == 1 and ("X, the input" if english else "X, a entrada") in text_of(drawn[0])


def test_the_order_is_that_of_the_book_and_broken_rows_and_errors_are_shown(tmp_path) -> None:
    """Rows given in another order stand where their note has them."""
    note_pages.write_report(rows_named(["J1", "A3", "A6"]), tmp_path, ENGLISH, 1, lambda line: None)
    page = (tmp_path / f"{NOTES[0].name}.html").read_text(encoding="utf-8")
    assert re.findall(r'<article id="(\w+)"', page) == ["a6", "j1", "a3"]
    assert re.findall(r'<h2 id="c\d">([^<]+)', page) == ["All positions at once", "Scores, weights and output"]

    def broken() -> Finding:
        raise RuntimeError("no such <thing>")

    assert not note_pages.write_report([Row("A1", "broken", broken)], tmp_path, ENGLISH, 1, lambda line: None)
    shown = text_of(parsed(tmp_path / f"{NOTES[2].name}.html"))
    assert "RuntimeError: no such <thing>" in shown and "FAILED" in shown
    note_pages.write_report([Row("C16", "sizes", lambda: compare(1, 1))], tmp_path, PORTUGUESE, 1, lambda line: None)
    (told,) = (file for file in tmp_path.iterdir() if "109.482.240" in file.read_text(encoding="utf-8"))
    assert told.read_text(encoding="utf-8").count("109.482.240, com 30.522 ") == 2  # at the row, and in the table


def test_a_failing_row_is_shown_and_ends_with_status_1(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(table.ROWS, "A3", Row("A3", "wrong", lambda: compare({"x": 1.0}, {"x": 2.0})))
    result = call("--report", "--out", tmp_path, "--language", "pt-BR", "A3", "A1")
    assert result.exit_code == 1
    page = (tmp_path / f"{NOTES[0].name}.html").read_text(encoding="utf-8")
    assert '<span class="failed">FALHOU</span>' in page and "0 de 1 linhas como esperado" in page
    index = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert f'<a href="{NOTES[0].name}.html#a3">A3</a>' in index and "1 de 2 linhas como esperado" in index
    assert "  FALHOU  " in result.stderr


HOSTILE = '<script>alert(1)</script></td></pre>"><img src=x onerror=alert(1)>'


def test_nothing_of_a_text_becomes_markup_and_questions_stand_with_the_note_that_asks(tmp_path) -> None:
    answer = Answer("A1", {HOSTILE: HOSTILE}, {HOSTILE: 1}, (HOSTILE, HOSTILE), (HOSTILE, HOSTILE), note=3)
    drawn = Finding({HOSTILE: [HOSTILE]}, HOSTILE, True, {HOSTILE: {HOSTILE: None}}, HOSTILE, HOSTILE)
    rows = [Row("A1", HOSTILE, lambda: drawn), Row("L9", HOSTILE, lambda: Finding({}, {}, True, answers=(answer,)))]
    for words in (ENGLISH, PORTUGUESE):
        note_pages.write_report(rows, tmp_path, words, 1, lambda line: None)
        document = parsed(tmp_path / f"{NOTES[2].name}.html")
        assert [element.tag for element in document.iter() if element.tag in ("script", "img")] == []
        assert text_of(document).count("<script>alert(1)</script>") >= 8
    # Each with its answer in the language of the page, its numbers, its figure and its experiment
    svg = '<svg xmlns="http://www.w3.org/2000/svg"><defs><marker id="end"/></defs><path marker-end="url(#end)"/></svg>'
    texts = {n: ((f"Why {n}?", f"Por que {n}?"), (f"So {n}.", f"Assim {n}.")) for n in (1, 3, 5)}
    answers = tuple(Answer("A6", {"links": n}, {"links": n}, *both, svg, n) for n, both in texts.items())
    row = Row("L9", "the notes' own questions", lambda: Finding({}, {}, True, drawing="both", answers=answers))
    note_pages.write_report([row], tmp_path, PORTUGUESE, 1, lambda line: None)
    for number in (1, 3, 5):
        text = (tmp_path / f"{NOTES[number - 1].name}.html").read_text(encoding="utf-8")
        assert re.findall(r"<h4>(.+?)</h4>", text) == [f"Por que {number}?"] and f"Assim {number}." in text
        assert "O experimento é o da linha A6." in text and "ligações" in text and "both" not in text
        assert 'id="l9-1-end"' in text and "url(#l9-1-end)" in text


def test_pages_are_whole_or_not_there_and_a_row_of_several_notes_runs_once(tmp_path, monkeypatch) -> None:
    """A row that is interrupted leaves the pages of the notes before it, and no index."""

    def interrupted() -> Finding:
        raise KeyboardInterrupt

    rows = [*rows_named(["A6", "J1"]), Row("L2", "which words a word sees", interrupted)]
    fails(KeyboardInterrupt, "", note_pages.write_report, rows, tmp_path, ENGLISH, 1, lambda line: None)
    assert [file.name for file in tmp_path.iterdir()] == [f"{NOTES[0].name}.html"]
    assert (tmp_path / f"{NOTES[0].name}.html").read_text(encoding="utf-8").endswith("</html>\n")
    runs, folder = [], tmp_path / "once"
    folder.mkdir()

    def counted() -> Finding:
        runs.append(1)
        return compare(1, 1)

    lines: list[str] = []
    note_pages.write_report([Row("A3", "attention", counted)], folder, ENGLISH, 1, lines.append)
    assert len(runs) == 1 and len(list(folder.iterdir())) == 5 and lines[0].startswith("1/1  A3   attention  ok  ")
    note_pages.write_report([Row("A3", "attention", counted)], folder, PORTUGUESE, 1, lines.append)
    assert lines[1].startswith("1/1  A3   atenção por produto escalar com escala  ok  0,")


def test_wrong_usage_is_one_sentence_before_any_work(tmp_path, monkeypatch) -> None:
    for arguments, said in (
        (["--report", "A1"], "--report needs --out FOLDER"),
        (["--report", "--out", "x", "--json", "A1"], "without --page, --list and --json"),
        (["--report", "--out", "x", "Z9"], "unknown row 'Z9'"),
        (["A1", "--language", "klingon"], "not written in 'klingon'"),
        (["--report", "--out", "FILE", "A1"], "is a file, and a folder is needed"),
    ):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "FILE").write_text("", encoding="utf-8")
        result = call(*arguments)
        assert isinstance(result.exception, UsageError) and said in str(result.exception) and result.stdout == ""
        assert [file.name for file in tmp_path.iterdir()] == ["FILE"]


def test_rows_list_and_page_in_portuguese_and_every_row_and_error_stands_in_its_note() -> None:
    listed = call("--language", "pt")
    assert "A13  a atenção sem posições ignora a ordem das palavras" in listed.stdout.splitlines()
    assert "Segundo cinco notas de aula" in listed.stderr
    result = call("L1", "D3", "--language", "pt-BR")
    assert result.exit_code == 0
    first, *rest = result.stdout.splitlines()
    assert first.startswith("L1   três tokens one-hot  valor A: [[0,264458 0,264458 0,471083]") and "  ok  0," in first
    assert "      notas: A, linha 1: [0,2 0,2 0,6]; h_1: [0,2 0,2 0,6]" in rest
    assert result.stderr.startswith("2 de 2 linhas como esperado, ")
    record = call("D3", "--language", "pt-BR", "--json").stdout
    assert '"title": "um vocabulário de palavras inteiras"' in record and '"how many": 2' in record
    shown = call("--page", "--language", "pt-BR").stdout
    assert "## Exemplos resolvidos e perguntas" in shown and "### C17b" in shown
    assert len(re.findall(r"^\*\*\d+:\*\* ", shown, re.M)) == sum(len(one.rows) for one in ERRATA.values())
    assert shown.count("](../src/atento_lab/notes/checks/") == len(ROWS)
    assert {row for note in NOTES for row in note.rows} == set(ROWS)
    for note in NOTES:
        assert len(note.rows) == len(set(note.rows)), note.name
        assert all(chapter.rows and chapter.title for chapter in note.chapters)
    assert [note.number for note in NOTES] == [1, 2, 3, 4, 5]
    assert sorted({number for note in NOTES for number in note.errors}) == list(ERRATA)
    for note in NOTES:
        assert [n for n in note.errors if not set(ERRATA[n].rows) & set(note.rows)] == [], note.name
    assert 5 in NOTES[1].errors and 23 in NOTES[2].errors and 40 in NOTES[3].errors and 53 in NOTES[4].errors


def test_figures_of_answers_are_files_too(tmp_path, monkeypatch) -> None:
    """`--out` without `--report`: the drawings of a row and of its answers, with their texts in the language."""
    svg = "<svg><text>the mask</text></svg>"
    answers = (Answer("A6", 1, 1, ("?",) * 2, ("!",) * 2, svg), Answer("A3", 1, 1, ("?", "Por quê?"), (".", "Assim.")))
    row = Row("L9", "questions", lambda: Finding(1, 1, True, figure=svg, answers=answers))
    monkeypatch.setitem(table.ROWS, "L9", row)
    result = call("L9", "--out", tmp_path, "--language", "pt-BR")
    assert result.exit_code == 0 and result.stdout.splitlines()[-2:] == ["      A3  Por quê?", "          Assim."]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["L9-1.svg", "L9.svg"]
    assert (tmp_path / "L9-1.svg").read_text(encoding="utf-8") == svg.replace("the mask", "a máscara")


def test_out_writes_the_figures_of_the_rows_that_have_one(tmp_path) -> None:
    folder = tmp_path / "new" / "figures"
    result = call("J1", "A7", "J4", "--out", folder, "--json")
    assert result.exit_code == 0 and len(result.stdout.splitlines()) == 3
    assert sorted(path.name for path in folder.iterdir()) == ["J1.svg", "J4.svg"]
    assert result.stderr.startswith(f"wrote {folder / 'J1.svg'}, {folder / 'J4.svg'}\n")
    for path in folder.iterdir():
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
    result = call("A7", "--out", tmp_path / "none")
    assert result.exit_code == 0 and not list((tmp_path / "none").iterdir())
    assert result.stderr.startswith("--out: none of these rows has a figure\n")
    (tmp_path / "file").write_text("", encoding="utf-8")
    result = call("J1", "--out", tmp_path / "file")
    assert isinstance(result.exception, UsageError) and result.stdout == ""
    assert "is a file, and a folder is needed" in str(result.exception)
