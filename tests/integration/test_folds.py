"""Cross-validation: stratified folds, a run for each, pooled scores, resuming, refusals."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import atento
from atento.data.folds import fold_of
from atento.errors import DataError, UsageError
from atento.runs.folds import cross_validate
from conftest import ForkServer
from test_classification import recipe, records

pytestmark = pytest.mark.integration


def test_folds_are_stratified_and_each_record_is_tested_once() -> None:
    labels = ["a"] * 11 + ["b"] * 7
    columns: dict[str, list[Any]] = {"text": list(range(18)), "label": labels}
    parts = [fold_of(columns, 3, fold, 1, "label") for fold in (1, 2, 3)]
    assert sorted(row for _, test in parts for row in test) == list(range(18))
    for train, test in parts:
        assert sorted(train + test) == list(range(18)) and train == sorted(train)
        counts = Counter(columns["label"][row] for row in test)
        assert counts["a"] in (3, 4) and counts["b"] in (2, 3)
    assert fold_of(columns, 3, 1, 2, "label") != parts[0] == fold_of(columns, 3, 1, 1, "label")
    with pytest.raises(DataError, match="label 'b' has 7 examples, fewer than the 8 folds"):
        fold_of(columns, 8, 1, 1, "label")


def test_a_run_for_each_fold_and_one_pooled_score(server: ForkServer, tmp_path: Path) -> None:
    rows = "".join(f"{text}\t{label}\n" for text, label in records())
    (tmp_path / "all.tsv").write_text(rows, encoding="utf-8")
    settings = recipe({"train": {"file": "all.tsv", "text": 0, "label": 1}}, steps=6)
    (tmp_path / "recipe.yaml").write_text(json.dumps(settings), encoding="utf-8")
    command = ["train", "recipe.yaml", "--folds", "3", "--out", "cv", "--threads", "1", "--json"]
    done = server.run(*command, cwd=tmp_path)
    assert done.status == 0, done.stderr
    accuracy = json.loads(done.stdout)["metrics"]["accuracy"]
    assert len(accuracy["folds"]) == 3 and accuracy["mean"] == pytest.approx(sum(accuracy["folds"]) / 3)
    assert accuracy["pooled"] == pytest.approx(accuracy["mean"])  # folds of equal size
    assert accuracy["interval"][0] <= accuracy["pooled"] <= accuracy["interval"][1]
    model = atento.load(tmp_path / "cv" / "fold-2")
    columns: dict[str, list[Any]] = dict(zip(("text", "label"), map(list, zip(*records()))))
    _, test = fold_of(columns, 3, 2, 1, "label")
    tested = tuple([columns[name][row] for row in test] for name in ("text", "label"))
    expected = atento.evaluate(model, tested)["accuracy"].value
    assert accuracy["folds"][1] == pytest.approx(expected)
    again = server.run(*command, cwd=tmp_path)
    assert again.stdout == done.stdout and again.stderr.count("already finished") == 3
    shown = server.run(*command[:-1], cwd=tmp_path).stdout
    assert shown.startswith(f"accuracy: mean {accuracy['mean']:.4f}, standard deviation") and "over 3 folds" in shown


def test_what_folds_refuse_and_a_label_of_one_example(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = recipe({"train": {"memory": "train"}}, steps=1)
    with pytest.raises(UsageError, match="`folds` must be at least 2: got 1"):
        cross_validate(settings, data=records(), folds=1, out=tmp_path / "a")
    with pytest.raises(UsageError, match=r"take `data\.test` out"):
        cross_validate(settings, data={"train": records(), "test": records()}, out=tmp_path / "a")
    with pytest.raises(DataError, match="label 'raro' has 1 example, fewer than the 5 folds"):
        cross_validate(settings, data=[*records(), ("sozinho", "raro")], out=tmp_path / "a", threads=1)
    atento.train(settings, data=[*records(), ("sozinho", "raro")], out=tmp_path / "b", threads=1)
    assert "warning: label 'raro' has one training example" in (tmp_path / "b" / "train.log").read_text("utf-8")
