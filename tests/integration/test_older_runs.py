"""Runs of an earlier version: their recipes are read by the keys of today, their training is not continued."""

from pathlib import Path

import pytest
import yaml

import atento
from atento.config.loading import load_recipe
from atento.errors import UsageError

TINY = {
    "task": "language-modeling",
    "data": {"train": {"world": "train", "count": 20}, "max_len": 32},
    "tokenizer": {"kind": "character"},
    "network": {"d_model": 16, "d_ff": 32, "n_heads": 2, "n_layers": 1, "dropout": 0.0},
    "training": {"steps": 2, "batch_tokens": 64, "warmup": 0, "precision": "float32", "checkpoint_every": 2},
}


def test_the_recipe_of_an_older_run_is_read_by_the_keys_of_today(tmp_path: Path) -> None:
    older = {
        **TINY,
        "network": {
            **TINY["network"],
            "attention_dropout": 0.2,
            "bias": False,
            "tied_embeddings": False,
            "sparse": None,
        },
        "training": {**TINY["training"], "accumulate": 3},
    }  # type: ignore[dict-item]
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(older), encoding="utf-8")
    with pytest.raises(atento.AtentoError, match="is now network"):
        load_recipe(tmp_path / "recipe.yaml")  # a user's own recipe is told the new name
    with pytest.raises(atento.AtentoError, match=r"training.accumulate is now training.micro_batches"):
        load_recipe(TINY, ["training.accumulate=2"])
    (tmp_path / "run.json").write_text("{}", encoding="utf-8")
    recipe = load_recipe(tmp_path).recipe
    assert recipe.network.attention.dropout == 0.2 and not recipe.network.output.tied
    assert not recipe.network.attention.bias and not recipe.network.feed_forward.bias
    assert recipe.training.micro_batches == 3


def test_training_does_not_continue_from_a_checkpoint_of_an_earlier_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = atento.train(TINY, out=tmp_path / "run", threads=1)
    monkeypatch.setattr("atento.training.saving.VERSION", 3)
    with pytest.raises(UsageError, match=r"earlier version .* `init: .*run` starts a run from its weights"):
        atento.train(TINY, {"training.steps": 4}, out=run.folder, threads=1)
