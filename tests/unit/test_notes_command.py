"""`atento notes`: lines for people, one JSON object a row, the list, and its exit statuses."""

import json

import pytest
import typer
from typer.testing import CliRunner

from atento.base.errors import UsageError
from atento_lab.notes import table
from atento_lab.notes.command import register
from atento_lab.notes.finding import Row, compare


@pytest.fixture
def app():
    """An application with this command beside another, as the real one has it."""
    made = typer.Typer()
    register(made)
    made.command("other")(lambda: None)
    return made


def call(app, *arguments):
    return CliRunner().invoke(app, ["notes", *arguments])


def test_a_line_a_row_and_what_the_notes_have_and_list_runs_nothing(app, monkeypatch) -> None:
    result = call(app, "A3", "L1")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    first, second = (line for line in lines if not line.startswith(" "))
    assert first.startswith("A3   scaled dot-product attention  value plain kernel away: ")
    assert "  expected plain kernel away: at most 1e-10;" in first and first.endswith(" s") and "  ok  0." in first
    assert second.startswith("L1   three one-hot tokens  value A: [[0.264458 0.264458 0.471083]")
    assert "      notes: A, row 1: [0.2 0.2 0.6]; h_1: [0.2 0.2 0.6]" in lines
    assert "      0.264458 0.471083 0.264458" in lines
    assert result.stderr.startswith("2 of 2 rows as expected, ") and "CC BY-SA" in result.stderr
    result = call(app, "l3", "A7", "--json", "--seed", "3", "--threads", "1")
    assert result.exit_code == 0
    first, second = (json.loads(line) for line in result.stdout.splitlines())
    assert list(first)[:6] == ["row", "title", "passed", "value", "expected", "seconds"]
    assert first["row"] == "L3" and first["passed"] is True and isinstance(first["seconds"], float)
    assert first["value"]["subwords"] == ["o", "gat", "##inho", "corre", "rapida", "##mente"]
    assert first["expected"]["subwords"] == first["value"]["subwords"]
    assert second["row"] == "A7" and "missing" not in second
    assert "2 of 2" in result.stderr
    monkeypatch.setattr(table, "run", lambda rows, seed: pytest.fail("a row was run"))
    result = call(app, "--list")
    assert result.exit_code == 0 and [line.split()[0] for line in result.stdout.splitlines()] == list(table.ROWS)
    assert "A13  attention without positions ignores word order" in result.stdout.splitlines()
    bare = call(app)  # running all of them takes minutes
    assert bare.stdout == result.stdout and "`atento notes --all` runs all of them" in bare.stderr
    one = call(app, "A7", "--list", "--json")
    assert json.loads(one.stdout) == {"row": "A7", "title": "causal attention sees the past only"}


def test_a_failed_row_ends_with_status_1_after_the_others_and_an_unknown_one_is_wrong_usage(app, monkeypatch) -> None:
    monkeypatch.setitem(table.ROWS, "A3", Row("A3", "wrong", lambda: compare(1.0, 2.0)))
    result = call(app, "A3", "A1")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0].startswith("A3   wrong  value 1  expected 2  FAILED  ")
    assert any(line.startswith("A1  ") and "  ok  " in line for line in lines)
    assert result.stderr.startswith("1 of 2 rows as expected")
    result = call(app, "A3", "Z9")
    assert isinstance(result.exception, UsageError) and result.exception.exit_status == 2
    assert "unknown row 'Z9'" in str(result.exception) and "Known: A1, A2, A3" in str(result.exception)
    assert result.stdout == ""
    asked = []
    monkeypatch.setattr(table, "run", lambda rows, seed: asked.extend(rows) or [])
    assert call(app, "--all").exit_code == 1 and asked == list(table.ROWS.values())
    assert isinstance(call(app, "A3", "--all").exception, UsageError)
