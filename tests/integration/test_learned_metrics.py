"""`atento score` with learned metrics: what it prints, reads and refuses."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from atento.cli.commands.score import register
from atento.errors import AtentoError
from atento.models.shipped import shipped_models

OUTPUTS = ["The cat is on the mat.", "Good day.", ""]
REFERENCES = ["The cat is sitting on the mat.", "Good day.", "Good day."]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, lines in {"out": OUTPUTS, "ref": REFERENCES, "other": REFERENCES[::-1], "short": ["Hi."]}.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    return tmp_path


@pytest.fixture(scope="module")
def encoder() -> str:
    return str(shipped_models()["micro-world-mlm"])


def run(*arguments: str) -> Result:
    app = typer.Typer()

    @app.callback()
    def main() -> None:
        """Stands for the whole command line."""

    register(app)
    return CliRunner().invoke(app, ["score", *arguments])


def refused(*arguments: str) -> str:
    error = run(*arguments).exception
    assert isinstance(error, AtentoError), error
    return str(error)


def test_bertscore_with_interval_gate_and_another_system(files: Path, encoder: str) -> None:
    line = run("bertscore", "out", "ref", "--model", encoder, "--interval").stdout
    assert line.startswith("BERTScore 0.") and line.endswith(
        " model:micro-world-mlm|layer:2|idf:no|rescaled:no|nrefs:1\n"
    )
    record = json.loads(
        run("bertscore", "ref", "ref", "other", "--model", encoder, "--against", "out", "--json").stdout
    )
    assert record["value"] == pytest.approx(1, abs=1e-6) and record["parts"]["count"] == 3
    assert record["against"]["value"] < 1 and record["settings"].endswith("nrefs:2")
    missed = run("bertscore", "out", "ref", "--model", encoder, "--idf", "--layer", "0", "--fail-under", "recall=0.9")
    assert missed.exit_code == 3 and "|layer:0|idf:yes|" in missed.stdout


def test_bad_inputs_are_one_sentence(files: Path, encoder: str) -> None:
    assert refused("bertscore", "out", "ref") == "bertscore is computed by a model: give its folder, --model FOLDER"
    assert refused("bertscore", "out", "--model", encoder) == "bertscore compares outputs with references: got none"
    assert refused("bertscore", "out", "ref", "--source", "ref", "--model", encoder) == (
        "bertscore does not read sources: got them"
    )
    assert refused("bertscore", "out", "short", "--model", encoder) == (
        "line N of out must correspond to line N of short: got 3 and 1 lines"
    )
    assert refused("bertscore", "out", "ref", "--model", encoder, "--language", "pt") == (
        "--language has no effect on bertscore"
    )
    assert refused("bertscore", "out", "ref", "--model", encoder, "--layer", "9") == (
        "`layer` must lie between -3 and 2: got 9"
    )
    assert refused("bertscore", "out", "ref", "--model", "nowhere").startswith("no model at nowhere")
    assert refused("bleu", "out", "ref", "--model", encoder) == "--model has no effect on bleu"
    assert refused("bleu", "out") == "bleu needs references: give their file behind that of the outputs"
    assert refused("bertscor", "out", "ref").startswith("unknown metric 'bertscor'; did you mean 'bertscore'?")
