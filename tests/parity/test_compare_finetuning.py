"""`tools/compare_finetuning.py`: both sides learn from the same records, and report scores of the records held out."""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from atento.base.precision import threads
from atento.storage.atomic_files import write_atomically
from test_classification_parity import as_tsv, labelled, tiny_bert

_FILE = Path(__file__).parents[2] / "tools" / "compare_finetuning.py"
_RECIPE = """
init: bert
training: {steps: 60, batch_tokens: 16, learning_rate: 3e-3, warmup: 6, validate_every: 60, checkpoint_every: 60}
"""


def result(side: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The line that one side prints, by this process, which has its libraries already."""
    monkeypatch.setattr(sys, "argv", [_FILE.name, "recipe.yaml", "--side", side, "training.seed=3"])
    with threads(1):
        runpy.run_path(str(_FILE), run_name="__main__")
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["side"], found["seed"]) == (side, 3) and found["seconds"] > 0 and found["peak_mib"] > 100
    return found


@pytest.mark.parametrize("side", ["atento", "transformers"])
def test_a_side_learns_what_is_easy(
    side: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Negated sentences: a rate that ends after the warm-up, or other labels of the test, would leave half wrong."""
    monkeypatch.chdir(tmp_path)
    records = labelled("train", 400)
    as_tsv(tmp_path / "train.tsv", records)
    tiny_bert(tmp_path / "bert", [text for text, _ in records])
    recipe = "task: classification\ndata: {train: {file: train.tsv, text: 0, label: 1}, held_out: 40, max_len: 48}"
    write_atomically(tmp_path / "recipe.yaml", recipe + _RECIPE)
    found = result(side, monkeypatch, capsys)
    assert found["records"] == 40 and found["scores"]["accuracy"][0] > 0.85


def test_a_linear_classifier_on_frozen_vectors_is_that_of_both_sides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Texts and words: the same features, the same classifier, so the same scores."""
    monkeypatch.chdir(tmp_path)
    records = labelled("train", 300)
    as_tsv(tmp_path / "train.tsv", records)
    tiny_bert(tmp_path / "bert", [text for text, _ in records])
    rows = ["\n".join(f"{word} {'LONG' if len(word) > 4 else 'O'}" for word in text.split()) for text, _ in records]
    (tmp_path / "train.conll").write_text("\n\n".join(rows) + "\n", encoding="utf-8")
    frozen = "\ninit: {model: bert, train: head, classifier: {kind: logistic}}"
    for task, file in (("classification", "file: train.tsv, text: 0, label: 1"), ("tagging", "file: train.conll")):
        recipe = f"task: {task}\ndata: {{train: {{{file}}}, held_out: 30, max_len: 48}}"
        given = recipe + frozen + "\nmetrics: [" + {"tagging": "tag-accuracy"}.get(task, "accuracy") + "]"
        write_atomically(tmp_path / "recipe.yaml", given)
        ours, theirs = (result(side, monkeypatch, capsys) for side in ("atento", "transformers"))
        assert {name: ours["scores"][name] for name in theirs["scores"]} == theirs["scores"] and ours["records"] == 30
