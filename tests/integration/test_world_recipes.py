"""Recipes of the micro-world with gold labels: a few steps of one, and a start from a masked language model."""

from pathlib import Path

import pytest

import atento
from atento.config.reading.loading import load_recipe
from atento.config.tables.formats import LABELLINGS

SHORT = {"training.warmup": 1, "training.precision": "float32", "data.train.0.count": 60}
SHORT |= dict.fromkeys(("training.steps", "training.validate_every", "training.checkpoint_every"), 2)
SHORT |= {"data.valid.0.count": 6, "data.test.0.count": 6}
SMALL = SHORT | {"tokenizer.vocab_size": 400, "network.d_model": 16, "network.d_ff": 32}
SMALL |= {"network.n_heads": 2, "network.n_layers": 1}


@pytest.mark.parametrize("labels", LABELLINGS)
def test_each_recipe_has_its_labels_and_is_tested_on_held_out_combinations(labels: str) -> None:
    data = load_recipe(f"micro-world-{labels}", environment={}).recipe.data
    assert {source.labels for source in (*data.train, *data.valid, *data.test)} == {labels}
    assert [source.world for source in (*data.train, *data.valid, *data.test)] == ["train", "valid", "combinations"]


def test_a_tense_classifier_starts_from_a_masked_language_model(tmp_path: Path) -> None:
    given = SHORT | {"init": str(atento.train("micro-world-mlm", SMALL, out=tmp_path / "mlm", threads=1).folder)}
    fine_tuned = atento.train("micro-world-tense", given, out=tmp_path / "tense", threads=1)
    assert fine_tuned.test is not None and 0 <= fine_tuned.test["accuracy"] <= 1
    assert atento.load(fine_tuned.folder).classify("A menina vai abrir a porta.").name in ("present", "past", "future")
