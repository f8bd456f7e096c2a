"""`atento bench transfer`: two tasks from random weights and from a masked language model, its table, its refusals."""

from pathlib import Path

import pytest
import torch

import atento
from atento.base.errors import UsageError
from atento_lab.studies.transfer import _differences, measure_transfer, report_transfer
from failing import fails

NETWORK = {"d_model": 16, "d_ff": 32, "n_heads": 2, "n_layers": 1}
SIZES = {f"network.{name}": size for name, size in NETWORK.items()} | {"tokenizer.vocab_size": 400}
SIZES |= {"training.steps": 2, "training.precision": "float32", "data.train.0.count": 200}


def test_both_starts_have_one_network_and_one_the_weights_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from atento_lab.studies import transfer

    run = atento.train("micro-world-mlm", SIZES | {"data.valid": [], "data.test": []}, out=tmp_path / "mlm", threads=1)
    embeddings = {}
    trained = transfer.train

    def remembered(recipe: str, overrides: list[str], out: Path) -> object:
        result = trained(recipe, [*overrides, "training.learning_rate=1e-12"], out=out)
        network = atento.load(out).network
        embeddings[out.name] = {name: weight.clone() for name, weight in network.state_dict().items()}
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
