"""Samples while training: what validations show is what the saved model writes; they resume, and change no weights."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import atento
from atento.config.reading.loading import load_recipe
from runs import differences, events, last, tensors

TINY = {"d_model": 16, "d_ff": 32, "n_heads": 2, "n_layers": 1, "dropout": 0.1}
DATA = {"train": {"world": "train", "count": 60}, "valid": {"world": "valid", "count": 6}, "max_len": 48}
TRAINING = {"steps": 8, "batch_tokens": 128, "warmup": 2, "learning_rate": 1e-2, "precision": "float32", "samples": 2}
TRAINING |= dict.fromkeys(("validate_every", "checkpoint_every", "log_every"), 4)


def train(task: str, folder: Path, share: str = "1", **changes: Any) -> Path:
    recipe = {"task": task, "data": DATA, "network": TINY, "training": TRAINING, "metrics": []}
    recipe |= {"tokenizer": {"kind": "word", "vocab_size": 400}}
    return atento.train(recipe, changes, out=folder, threads=1, share=Fraction(share)).folder


def written_again(task: str, folder: Path, sample: dict[str, Any]) -> str:
    """What the checkpoint of the last validation writes for the input of a sample."""
    model = atento.load(last(folder), precision="float32")
    if task == "translation":
        return str(model.translate(sample["input"]))
    if task == "language-modeling":
        return str(model.generate(sample["input"], max_new_tokens=len(model.tokenizer.encode(sample["reference"]))))
    return model.fill(sample["input"], top=1)[0].text


@pytest.mark.parametrize("task", ["translation", "language-modeling", "masked-language-modeling", "span-corruption"])
def test_a_sample_is_what_the_saved_model_writes(task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train(task, tmp_path / "run")
    shown = events(run, "sample")
    assert [(event["step"], event["number"]) for event in shown] == [(4, 1), (4, 2), (8, 1), (8, 2)]
    assert shown[0]["input"] == shown[2]["input"] and shown[0]["reference"] == shown[2]["reference"]
    for sample in shown[2:]:
        assert written_again(task, run, sample) == sample["output"]
    log = (run / "train.log").read_text(encoding="utf-8")
    assert log.count(": sample\n") == 4 and f"\n  reference {shown[0]['reference']}" in log


def test_samples_resume_and_change_no_weight(tmp_path: Path) -> None:
    whole = train("translation", tmp_path / "whole")
    train("translation", tmp_path / "parts", "1/2")
    parts = train("translation", tmp_path / "parts")
    assert differences(parts, whole) == [] and events(parts, "sample") == events(whole, "sample")
    without = train("translation", tmp_path / "without", **{"training.samples": 0})
    assert events(without, "sample") == []
    assert tensors(last(without) / "model.safetensors") == tensors(last(whole) / "model.safetensors")


def test_what_samples_cannot_show_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A word that each output must have, longer than a sample may be; a task that writes nothing."""
    words = {"decoding.required_words": ["a" * 30], "decoding.beam": 2, "tokenizer.kind": "character"}
    run = train("language-modeling", tmp_path / "run", **words)
    assert capsys.readouterr().err.count("no samples: `prefix` and `required_words` take") == 2
    assert events(run, "sample") == [] and events(run, "end")
    recipe = {"task": "tagging", "data": {"train": {"world": "train", "labels": "pos"}}, "training": {"samples": 2}}
    assert any("training.samples has no effect: this task writes no text" in w for w in load_recipe(recipe).warnings)
