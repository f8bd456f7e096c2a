"""Which model of a service answers a request for zero-shot classification that names none."""

from types import SimpleNamespace
from typing import Any

from atento_serve.api.payloads import entailing_model


def test_the_first_model_with_a_label_for_entailment_answers() -> None:
    labels = {"moods": ["good", "bad"], "nli": ["neutral", "Entailment"], "other": ["entailment", "not_entailment"]}
    service: Any = SimpleNamespace(models=labels, describe=lambda name: SimpleNamespace(labels=labels[name]))
    assert entailing_model(service) == "nli"
    service.models = {"moods": [], "half": []}
    labels["half"] = ["not_entailment", "unknown"]
    assert entailing_model(service) is None
