"""What training left of learned positions (B3): counts against the texts themselves, movement against the weights."""

import json
from pathlib import Path

import pytest
import torch
import typer
from safetensors.torch import load_file
from typer.testing import CliRunner

from atento.base.errors import UsageError
from atento.runs.train import train
from atento_cli.commands.runs import register
from atento_cli.plans.position_report import position_report
from failing import fails
from runs_of_words import WORDS, write_texts

RECIPE = """
task: {task}
data: {{train: {train}}}
tokenizer: {{kind: word, vocab_size: 60}}
network: {{preset: {preset}, d_model: 8, d_ff: 16, n_heads: 2, n_layers: 1, max_len: 12, positions: {positions}}}
training: {{epochs: 3, batch_tokens: 40, learning_rate: 0.01, warmup: 1, weight_decay: 0, precision: float32,
  checkpoint_every: 1000, log_every: 1000}}
metrics: []
"""


def run_of(folder: Path, task: str, train_data: str, preset: str, positions: str = "learned") -> Path:
    text = RECIPE.format(task=task, train=train_data, preset=preset, positions=positions)
    (folder / "recipe.yaml").write_text(text, encoding="utf-8")
    train(folder / "recipe.yaml", out=folder / f"{task} {positions}", device="cpu", threads=1)
    return folder / f"{task} {positions}"


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sources of 1 to 8 words, targets of one word less or as long."""
    folder = tmp_path_factory.mktemp("pairs")
    write_texts(folder / "train.en", [n % 8 + 1 for n in range(24)])
    write_texts(folder / "train.pt", [n % 5 + 1 for n in range(24)])
    return run_of(folder, "translation", "{source: train.en, target: train.pt}", "transformer-tiny")


def test_b3_tokens_are_those_of_the_texts_movement_that_of_the_weights_and_the_command_shows_both(pairs: Path) -> None:
    """A source has its words and </s>, a target's input <s> and its words; a position is reached if one is so long."""
    source, target = position_report(pairs)
    assert (source.side, target.side) == ("source", "target")
    assert source.tokens == [3 * sum(n % 8 + 2 > place for n in range(24)) for place in range(12)]
    assert target.tokens == [3 * sum(n % 5 + 2 > place for n in range(24)) for place in range(12)]
    assert source.unreached == 3 and target.unreached == 6
    for table in (source, target):
        assert table.updates[0] == table.step and table.updates == sorted(table.updates, reverse=True)
        assert [u > 0 for u in table.updates] == [t > 0 for t in table.tokens]
        assert all(u <= t for u, t in zip(table.updates, table.tokens))
    (path,) = (pairs / "checkpoints").glob("step-*")
    weights = load_file(path / "model.safetensors")
    for table in (source, target):
        torch.testing.assert_close(torch.tensor(table.norms), weights[f"{table.name}.weight"].norm(dim=1))
        assert table.moved is not None
        assert [moved > 0 for moved in table.moved] == [count > 0 for count in table.updates]
    app = typer.Typer()
    register(app)
    app.command("other")(lambda: None)
    result = CliRunner().invoke(app, ["runs", "positions", str(pairs)])
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("source_inputs.positions.schemes.0 (source), ") and "3 positions were never" in lines[0]
    assert lines[1].split() == ["positions", "updates", "tokens", "norm", "moved", "by"] and len(lines) == 2 * 14
    printed = CliRunner().invoke(app, ["runs", "positions", str(pairs), "--json"]).stdout
    records = [json.loads(line) for line in printed.splitlines()]
    assert [record["unreached"] for record in records] == [3, 6] and len(records[0]["tokens"]) == 12


def test_b3_texts_and_what_cannot_be_reported(tmp_path: Path) -> None:
    """A language model reads <s> and all words but guesses the end; a masked one reads both marks."""
    for task in ("language-modeling", "masked-language-modeling"):
        write_texts(tmp_path / "book.txt", [1 + n % 6 for n in range(20)])
        preset = "gpt2" if task == "language-modeling" else "bert-tiny"
        (table,) = position_report(run_of(tmp_path, task, "{file: book.txt}", preset))
        marks = 1 if task == "language-modeling" else 2
        assert table.side == "text"
        assert table.tokens == [3 * sum(1 + n % 6 + marks > place for n in range(20)) for place in range(12)]
    fails(UsageError, "is not a run with a checkpoint", position_report, tmp_path)
    write_texts(tmp_path / "book.txt", [3] * 20)
    run = run_of(tmp_path, "language-modeling", "{file: book.txt}", "gpt2", "sinusoidal")
    fails(UsageError, "has no learned positions: its schemes are sinusoidal", position_report, run)
    assert WORDS
