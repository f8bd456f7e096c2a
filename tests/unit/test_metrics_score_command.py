"""`atento score`: what it prints, and what it refuses."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from atento.cli.score import register
from atento.errors import AtentoError, DataError, UsageError
from atento.metrics import bleu, paired_test


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "out.pt": "o gato está no tapete\nbom dia\n",
        "other.pt": "o cão está na cama\nbom dia\n",
        "ref.pt": "o gato está sentado no tapete\nbom dia\n",
        "ref2.pt": "o gato está no tapete\nolá\n",
        "short.pt": "bom dia\n",
    }.items():
        (tmp_path / name).write_text(text, encoding="utf-8", newline="\n")
    return tmp_path


def run(*arguments: str, stdin: str | None = None) -> Result:
    app = typer.Typer()

    @app.callback()
    def main() -> None:
        """Stands for the whole command line, so that `score` is a command of it."""

    register(app)
    result = CliRunner().invoke(app, ["score", *arguments], input=stdin)
    if isinstance(result.exception, AtentoError):
        raise result.exception
    return result


def test_one_line_with_the_settings(files: Path) -> None:
    result = run("bleu", "out.pt", "ref.pt")
    assert (result.exit_code, result.stderr) == (0, "")
    expected = bleu(["o gato está no tapete", "bom dia"], ["o gato está sentado no tapete", "bom dia"])
    assert result.stdout == f"BLEU {expected.value:.2f} {expected.settings}\n"
    assert run("exact-match", "out.pt", "ref.pt", "ref2.pt").stdout == "exact match 100.00 nrefs:2|case:mixed\n"


def test_interval_and_other_seed(files: Path) -> None:
    low, high = bleu(["o gato está no tapete", "bom dia"], ["o gato está sentado no tapete", "bom dia"]).interval()
    assert f" [{low:.2f}, {high:.2f}] nrefs:1|case:mixed" in run("bleu", "out.pt", "ref.pt", "--interval").stdout


def test_paired_test_against_another_output(files: Path) -> None:
    lines = run("bleu", "out.pt", "ref.pt", "--against", "other.pt", "--samples", "50").stdout.splitlines()
    assert len(lines) == 3 and lines[1].endswith("(other.pt)")
    texts = [(files / name).read_text(encoding="utf-8").splitlines() for name in ("out.pt", "other.pt", "ref.pt")]
    assert lines[2] == str(paired_test("bleu", *texts, samples=50))


def test_json_holds_everything(files: Path) -> None:
    result = run("ter", "out.pt", "ref.pt", "--json", "--interval", "--against", "other.pt", "--seed", "3")
    record = json.loads(result.stdout)
    assert record["metric"] == "ter" and record["parts"] == {"edits": 1, "reference_length": 8}
    assert record["interval"]["seed"] == 3 and record["interval"]["low"] <= record["value"]
    assert record["against"]["difference"] == pytest.approx(record["value"] - record["against"]["value"])
    assert 0 < record["against"]["p_value"] <= 1


def test_standard_input(files: Path) -> None:
    assert run("exact-match", "-", "ref.pt", stdin="o gato\nbom dia\n").stdout.startswith("exact match 50.00 ")
    with pytest.raises(UsageError, match="standard input can be read once"):
        run("bleu", "-", "-", stdin="a\n")


def test_what_is_refused(files: Path) -> None:
    with pytest.raises(
        UsageError, match=r"line N of out\.pt must correspond to line N of short\.pt: got 2 and 1 lines"
    ):
        run("bleu", "out.pt", "short.pt")
    with pytest.raises(UsageError, match=r"line N of out\.pt must correspond to line N of short\.pt"):
        run("bleu", "out.pt", "ref.pt", "--against", "short.pt")
    with pytest.raises(UsageError, match=r"unknown metric 'blue'.* Known: accuracy, bleu, calibration-error"):
        run("blue", "missing.pt", "missing.pt")
    with pytest.raises(DataError, match=r"missing\.pt: no such file"):
        run("bleu", "missing.pt", "ref.pt")
    (files / "empty.pt").touch()
    with pytest.raises(UsageError, match="there is nothing to score"):
        run("bleu", "empty.pt", "empty.pt")
    assert run("bleu", "out.pt").exit_code == 2


def test_help_has_an_example() -> None:
    assert "atento score bleu output.pt reference.pt" in run("--help").stdout
