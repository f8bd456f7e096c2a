"""Cross-validation: stratified folds, a run for each, pooled scores, resuming, refusals."""

import json
import os
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import atento
from atento.base.errors import DataError, UsageError
from atento.data.records.splits import fold_of
from atento.tasks.verb_table import VERBS
from atento.training import loop
from atento_cli.search.cross_validation import cross_validate
from conftest import ForkServer
from failing import fails
from test_classification import recipe, records


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
    fails(DataError, "label 'b' has 7 examples, fewer than the 8", fold_of, columns, 8, 1, 1, "label")


def write(folder: Path, **training: int) -> None:
    """The records and a recipe that reads them."""
    (folder / "all.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in records()), encoding="utf-8")
    settings = recipe({"train": {"file": "all.tsv", "text": 0, "label": 1}}, steps=6, **training)
    (folder / "recipe.yaml").write_text(json.dumps(settings), encoding="utf-8")


def test_a_run_for_each_fold_and_one_pooled_score(server: ForkServer, tmp_path: Path) -> None:
    write(tmp_path)
    command = ["train", "recipe.yaml", "--folds", "3", "--out", "cv", "--threads", "1", "--json"]
    done = server.good(*command, cwd=tmp_path)
    accuracy = json.loads(done.stdout)["metrics"]["accuracy"]
    assert len(accuracy["folds"]) == 3 and accuracy["mean"] == pytest.approx(sum(accuracy["folds"]) / 3)
    assert accuracy["pooled"] == pytest.approx(accuracy["mean"])  # folds of equal size
    assert accuracy["interval"][0] <= accuracy["pooled"] <= accuracy["interval"][1]
    model = atento.load(tmp_path / "cv" / "fold-2")
    columns: dict[str, list[Any]] = dict(zip(("text", "label"), map(list, zip(*records()))))
    _, test = fold_of(columns, 3, 2, 1, "label")
    tested = tuple([columns[name][row] for row in test] for name in ("text", "label"))
    assert accuracy["folds"][1] == pytest.approx(atento.evaluate(model, tested)["accuracy"].value)
    again = server.run(*command, cwd=tmp_path)
    assert again.stdout == done.stdout and again.stderr.count("already finished") == 3
    shown = server.run(*command[:-1], cwd=tmp_path).stdout
    assert shown.startswith(f"accuracy: mean {accuracy['mean']:.4f}, standard deviation") and "over 3 folds" in shown


def test_what_folds_refuse_and_a_label_of_one_example(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = recipe({"train": {"memory": "train"}}, steps=1)
    rare, a = [*records(), ("sozinho", "raro")], tmp_path / "a"
    fails(UsageError, "`folds` must be at least 2: got 1", cross_validate, settings, data=records(), folds=1, out=a)
    both = {"train": records(), "test": records()}
    fails(UsageError, r"take `data\.test` out", cross_validate, settings, data=both, out=a)
    said = "label 'raro' has 1 example, fewer than the 5 folds"
    fails(DataError, said, cross_validate, settings, data=rare, out=a, threads=1)
    atento.train(settings, data=rare, out=tmp_path / "b", threads=1)
    assert "warning: label 'raro' has one training example" in (tmp_path / "b" / "train.log").read_text("utf-8")


def killed_in_fold_2() -> None:
    """The cross-validation of a process that is killed behind the first checkpoint of the second fold."""
    save = loop.save

    def killing(run: Any, **options: Any) -> None:
        save(run)  # not beside the training, so that it is written before the kill
        if run.folder.name == "fold-2":
            os.kill(os.getpid(), signal.SIGKILL)

    loop.save = killing  # type: ignore[assignment]
    cross_validate("recipe.yaml", folds=3, out="cv", threads=1)


def test_after_a_kill_the_same_call_gives_the_same(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, checkpoint_every=2)
    monkeypatch.chdir(tmp_path)
    done = server.run(cwd=tmp_path, test=f"{__name__}:killed_in_fold_2")
    assert done.status == -signal.SIGKILL, done.stderr
    assert [path.name for path in (tmp_path / "cv" / "fold-2" / "checkpoints").iterdir()] == ["step-00000002"]
    predictions: list[int] = []
    predict = VERBS["classify"].call

    def counting(*arguments: Any) -> list[Any]:
        predictions.append(1)
        return predict(*arguments)

    monkeypatch.setitem(VERBS, "classify", replace(VERBS["classify"], call=counting))
    resumed = cross_validate("recipe.yaml", folds=3, out="cv", threads=1)
    assert len(predictions) == 2  # folds 2 and 3, each once
    monkeypatch.undo()
    whole = cross_validate(tmp_path / "recipe.yaml", folds=3, out=tmp_path / "other", threads=1)
    assert resumed.scores == whole.scores
    for fold in ("fold-1", "fold-2", "fold-3"):
        one, two = (atento.load(folder / fold).network.state_dict() for folder in (tmp_path / "cv", whole.folder))
        assert all(torch.equal(value, two[name]) for name, value in one.items())
