"""Zero-shot classification over HTTP: the model of a request that names none, and the score of one label."""

from types import SimpleNamespace
from typing import Any

import pytest

from atento_serve.api.payloads import _entailed, entailing_model


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
