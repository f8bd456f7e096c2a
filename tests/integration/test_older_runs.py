"""Runs of an earlier version: their recipes are read by the keys of today, their training is not continued."""

from pathlib import Path
from typing import Any

import pytest
import yaml

import atento
from atento.base.errors import UsageError
from atento.config.reading.loading import load_recipe
from failing import fails
from runs import events

TINY: dict[str, Any] = {
    "task": "language-modeling",
    "data": {"train": {"world": "train", "count": 20}, "max_len": 32},
    "tokenizer": {"kind": "character"},
    "network": {"d_model": 16, "d_ff": 32, "n_heads": 2, "n_layers": 1, "dropout": 0.0},
    "training": {"steps": 2, "batch_tokens": 64, "warmup": 0, "precision": "float32", "checkpoint_every": 2},
}


def test_the_recipe_of_an_older_run_is_read_by_the_keys_of_today(tmp_path: Path) -> None:
    network = TINY["network"] | {"attention_dropout": 0.2, "bias": False, "tied_embeddings": False, "sparse": None}
    older = {**TINY, "network": network, "training": {**TINY["training"], "accumulate": 3}}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(older), encoding="utf-8")
    fails(atento.AtentoError, "is now network", load_recipe, tmp_path / "recipe.yaml")  # a user's own recipe
    said = "training.accumulate is now training.micro_batches"
    fails(atento.AtentoError, said, load_recipe, TINY, ["training.accumulate=2"])
    (tmp_path / "run.json").write_text("{}", encoding="utf-8")
    recipe = load_recipe(tmp_path).recipe
    assert recipe.network.attention.dropout == 0.2 and not recipe.network.output.tied
    assert not recipe.network.attention.bias and not recipe.network.feed_forward.bias
    assert recipe.training.micro_batches == 3


def test_training_goes_on_from_no_earlier_versions_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = atento.train(TINY, out=tmp_path / "run", threads=1)
    monkeypatch.setattr("atento.training.run_state.VERSION", 3)
    said = "earlier version .* `init: .*run` starts a run from its weights"
    fails(UsageError, said, atento.train, TINY, {"training.steps": 4}, out=run.folder, threads=1)


def _rates(run: Path) -> list[float]:
    return [event["learning_rate"] for event in events(run, "train")]


def _open(**training: object) -> dict[str, object]:
    """The recipe without a warm-up, with a line of the log for each update."""
    kept = {key: value for key, value in TINY["training"].items() if key != "warmup"}
    return {**TINY, "training": {**kept, "log_every": 1, **training}}


def test_a_run_keeps_the_warm_up_that_it_began_with(tmp_path: Path) -> None:
    """A fifth of 10 updates, also where it is extended, continues in a branch, or was written by an earlier version."""
    run = atento.train(_open(steps=10), out=tmp_path / "run", threads=1).folder
    assert load_recipe(run).recipe.training.warmup == 2
    assert _rates(run)[:3] == pytest.approx([5e-4, 1e-3, 1e-3 * (2 / 3) ** 0.5])
    atento.train(_open(steps=20), out=run, threads=1)
    assert load_recipe(run).recipe.training.warmup == 2 and _rates(run)[19] == pytest.approx(1e-3 * 0.1**0.5)
    atento.train(_open(steps=30), out=tmp_path / "branch", threads=1, from_=f"{run}@last")
    assert load_recipe(tmp_path / "branch").recipe.training.warmup == 2
    older = atento.train(_open(steps=10, warmup=200), out=tmp_path / "older", threads=1).folder
    atento.train(_open(steps=20), out=older, threads=1)
    assert load_recipe(older).recipe.training.warmup == 200 and _rates(older)[19] == pytest.approx(1e-4)


@pytest.mark.parametrize("schedule", ["linear", "cosine", "wsd"])
def test_a_run_of_one_update_learns(tmp_path: Path, schedule: str) -> None:
    first = atento.train(_open(steps=1, schedule=schedule, learning_rate=0.0), out=tmp_path / "first", threads=1)
    run = atento.train(_open(steps=1, schedule=schedule), out=tmp_path / "run", threads=1)
    before, after = (atento.load(made.folder).network.state_dict() for made in (first, run))
    assert _rates(tmp_path / "run")[0] > 0 and any(not before[name].equal(after[name]) for name in before)


def test_a_run_says_what_its_length_does_not_allow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    training = {"steps": 9, "warmup": 200, "early_stop": 3, "average": 6}
    recipe = {**_open(**training), "data": {"train": {"world": "train", "count": 20}, "held_out": 2, "max_len": 32}}
    run = atento.train(recipe, out=tmp_path / "run", threads=1).folder
    said = [part for part in capsys.readouterr().err.split("warning: ") if part.startswith("`training.")]
    assert [line.split("`")[1] for line in said] == ["training.warmup", "training.early_stop", "training.average"]
    assert load_recipe(run).recipe.training.warmup == 200 and "4.5%" in said[0]
