"""`atento bench ladder` and `atento bench transfer`: what they train on few records, their tables, their refusals."""

from pathlib import Path

import pytest
import torch

import atento
from atento.base.errors import RecipeError, UsageError
from atento_lab.studies import transfer
from atento_lab.studies.ladder import documents, measure_ladder, read_ladder, report_ladder
from atento_lab.studies.transfer import _differences, measure_transfer, report_transfer
from atento_world import labelled
from failing import fails

TRAIN = "data: {train: {file: x.tsv, text: 0, label: 1}}"
RUNGS = ["truncation", "head-tail", "windows by mean", "windows by max", "whole"]
RUNGS += ["sparse", "local", "hybrid", "recurrent"]


def test_rungs_are_trained_on_the_same_documents_and_have_their_cost() -> None:
    assert list(read_ladder()) == RUNGS
    rows = list(measure_ladder(1, quick=True, only=("windows by mean",)))
    assert [row["updates"] for row in rows] == [2] and [row["documents"] for row in rows] == [20]
    table = report_ladder(rows).text
    assert "| windows by mean | " in table and "20 test documents" in table


@pytest.mark.slow
def test_every_rung_of_the_shipped_ladder_trains() -> None:
    assert [row["rung"] for row in measure_ladder(1, quick=True)] == RUNGS


def test_a_document_is_a_yes_where_one_sentence_asks() -> None:
    asked = {example["text"] for example in labelled("question", "combinations", 120) if example["label"] == "question"}
    places = []
    for text, label in documents("test", 30):
        found = [place for place, sentence in enumerate(text.removesuffix(".").split(". ")) if sentence in asked]
        assert len(found) == (label == "yes")
        places += found
    assert len(places) == 15 and len(set(places)) > 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("base: {}", "my.yaml: a ladder has the keys base and rungs"),
        ("base: 3\nrungs: {a: {}}", "`base` is a section: got 3"),
        ("rungs: [a]", r"`rungs` is a section: got \['a'\]"),
        ("rungs: {a: 3}", "a is a section with the keys that it changes: got 3"),
        (f"base: {{task: classification, {TRAIN}}}\nrungs: {{a: {{}}}}", "a rung classifies texts and has `data.test`"),
    ],
)
def test_a_file_that_is_no_ladder_is_one_sentence(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text(text)
    fails(RecipeError, message, read_ladder, tmp_path / "my.yaml")
    fails(UsageError, "cannot be read", read_ladder, tmp_path / "none.yaml")


NETWORK = {"d_model": 16, "d_ff": 32, "n_heads": 2, "n_layers": 1}
SIZES = {f"network.{name}": size for name, size in NETWORK.items()} | {"tokenizer.vocab_size": 400}
SIZES |= {"training.steps": 2, "training.precision": "float32", "data.train.0.count": 200}


def test_both_starts_have_one_network_and_one_has_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = atento.train("micro-world-mlm", SIZES | {"data.valid": [], "data.test": []}, out=tmp_path / "mlm", threads=1)
    embeddings = {}
    trained = transfer.train

    def remembered(recipe: str, overrides: list[str], out: Path) -> object:
        result = trained(recipe, [*overrides, "training.learning_rate=1e-12"], out=out)
        embeddings[out.name] = {name: weight.clone() for name, weight in atento.load(out).network.state_dict().items()}
        return result

    monkeypatch.setattr(transfer, "train", remembered)
    rows = list(measure_transfer(30, model=str(run.folder), quick=True, labels=("tense",)))
    assert [(row.get("start"), row["task"]) for row in rows] == [(s, "tense") for s in ("scratch", "pretrained", None)]
    scratch, pretrained = embeddings["tense-scratch-1"], embeddings["tense-pretrained-1"]
    assert {name: weight.shape for name, weight in scratch.items()} == {n: w.shape for n, w in pretrained.items()}
    before = atento.load(run.folder).network.state_dict()
    name = next(name for name in before if "embedding" in name and name in pretrained and before[name].dim() == 2)
    assert torch.allclose(pretrained[name], before[name], atol=1e-4)
    assert not torch.allclose(scratch[name], before[name], atol=1e-2)
    data = {"train": {"world": "train", "labels": "tense", "count": 20}}
    recipe = {"task": "classification", "data": data, "tokenizer": {"kind": "word", "vocab_size": 100}}
    recipe |= {"network": {"preset": "bert-tiny", **NETWORK}, "training": {"steps": 1}}
    other = atento.train(recipe, out=tmp_path / "classifier", threads=1).folder
    for model, said in ((str(other), "is a run of task classification"), ("nowhere", "'nowhere' is no run folder")):
        fails(UsageError, said, next, measure_transfer(30, model=model, quick=True))


def test_differences_and_their_standard_error_by_hand() -> None:
    scores = {"scratch": (0.5, 0.6, 0.4), "pretrained": (0.8, 0.8, 0.8)}
    shared = {"task": "tense", "metric": "accuracy", "examples": 100, "steps": 9}
    rows = [
        shared | {"start": start, "seed": seed, "score": score}
        for start, values in scores.items()
        for seed, score in enumerate(values, 1)
    ]
    (row,) = _differences(rows)
    assert (row["scratch"], row["pretrained"], row["difference"], row["seeds"]) == (0.5, 0.8, 0.3, 3)
    assert row["standard_error"] == pytest.approx(0.1 / 3**0.5, abs=1e-4)
    table = report_transfer([*rows, row]).text
    assert "| tense | accuracy | 0.500 | 0.800 | +0.300 ± 0.058 |" in table and "mean of 3 seeds" in table
