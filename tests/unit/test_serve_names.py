"""Which model of a service is meant: by the name of its folder, or by what it can; zero-shot with one label."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atento_serve.api.payloads import _entailed, entailing_model
from atento_serve.command import _models


def test_a_model_is_named_as_its_folder_was_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link has its own name; `.` and `..` that of the folder that they lead to."""
    (tmp_path / "models" / "minilm-l6").mkdir(parents=True)
    (tmp_path / "minilm").symlink_to(tmp_path / "models" / "minilm-l6")
    monkeypatch.chdir(tmp_path / "models")
    words = ("../minilm", "minilm-l6/", ".", "minilm-l6/..")
    for word, name in zip(words, ("minilm", "minilm-l6", "models", "models")):
        assert list(_models([word], [], {})) == [name]
    assert list(_models(["en-pt=minilm-l6", "owner/name"], [], {})) == ["en-pt", "owner/name"]


def test_the_first_model_with_a_label_for_entailment_answers() -> None:
    labels = {"moods": ["good", "bad"], "nli": ["neutral", "Entailment"], "other": ["entailment", "not_entailment"]}
    service: Any = SimpleNamespace(models=labels, describe=lambda name: SimpleNamespace(labels=labels[name]))
    assert entailing_model(service) == "nli"
    service.models = {"moods": [], "half": []}
    labels["half"] = ["not_entailment", "unknown"]
    assert entailing_model(service) is None


def test_one_label_is_judged_by_entailment_against_contradiction() -> None:
    """As in the pipeline of transformers: normalised over one label, every score would be 1."""
    names = ("entailment", "contradiction", "neutral")
    pairs = [
        [{"name": name, "probability": p} for name, p in zip(names, row)] for row in ([0.1, 0.3, 0.6], [0.6, 0.2, 0.2])
    ]
    assert _entailed(pairs[:1], *names[:2], multi_label=False) == [pytest.approx(0.25)]
    assert sum(_entailed(pairs, *names[:2], multi_label=False)) == pytest.approx(1)
