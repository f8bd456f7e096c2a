"""`training.minutes`: the updates are counted once, by time, and the run is that of so many steps, bit for bit."""

import json
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import atento
from atento.base.errors import RecipeError
from atento.config.reading.loading import load_recipe
from atento.runs import time_budget
from atento.storage.checkpoint_list import newest
from atento_cli.commands.demo import demo
from atento_cli.demo import results
from failing import fails

RECIPE: dict[str, Any] = {
    "task": "translation",
    "data": {"train": [{"world": "train", "count": 60}], "valid": [{"world": "valid", "count": 4}]},
    "tokenizer": {"kind": "bpe", "vocab_size": 340},
    "network": {"d_model": 16, "d_ff": 32, "n_heads": 2, "n_layers": 1, "norm": "pre", "dropout": 0.1},
    "training": {"batch_tokens": 200, "precision": "float32", "validate_every": 4, "checkpoint_every": 4},
    "decoding": {"beam": 1, "max_new_tokens": 4},
}


def train(out: Path, changes: dict[str, Any], **options: Any) -> Path:
    return atento.train(RECIPE, changes, out=out, threads=1, **options).folder


def content(run: Path) -> dict[str, bytes]:
    folder = newest(run / "checkpoints")
    return {name: (folder / name).read_bytes() for name in ("model.safetensors", "optimizer.safetensors")}


def steps_of(run: Path) -> int:
    return int(json.loads((run / "run.json").read_text(encoding="utf-8"))["minutes"]["steps"])


@pytest.fixture
def at_a_second(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Updates that take 10 s by the clock of the timing, which itself takes 20 s; how often they were timed."""
    calls: list[float] = []

    def timed(setup: Any, budget: float) -> tuple[float, float]:
        calls.append(budget)
        return 10.0, 20.0

    monkeypatch.setattr(time_budget, "_timed", timed)
    return calls


@pytest.mark.parametrize("schedule", ["inverse-sqrt", "linear"])
def test_a_run_by_the_clock_is_the_run_of_its_steps(
    tmp_path: Path, schedule: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timed updates leave nothing behind, and the schedule has its length from the first update on."""
    really, measured = time_budget._timed, []

    def timed(setup: Any, budget: float) -> tuple[float, float]:
        measured.append(really(setup, budget))
        return 10.0, 20.0

    monkeypatch.setattr(time_budget, "_SECONDS", 0.1)
    monkeypatch.setattr(time_budget, "_timed", timed)
    changes = {"training.schedule": schedule, "training.ema": 0.5}
    run = train(tmp_path / "timed", changes | {"training.minutes": 2})
    steps = steps_of(run)
    assert 0 < measured[0][0] <= measured[0][1]
    said = f"training.steps={steps} training.minutes=null gives the same weights"
    assert said in capsys.readouterr().err and steps > 1
    assert load_recipe(run / "recipe.yaml", environment={}).recipe.training.steps == steps
    assert content(run) == content(train(tmp_path / "counted", changes | {"training.steps": steps}))


def test_a_stopped_run_is_not_timed_again_and_one_of_two_processes_still_knows_their_number(
    tmp_path: Path, at_a_second: list[float]
) -> None:
    changes = {"training.minutes": 2, "training.schedule": "linear"}
    whole = train(tmp_path / "whole", changes)
    assert steps_of(whole) == 10 and at_a_second == [120]
    run = train(tmp_path / "run", changes, share=Fraction(1, 3))
    identity = json.loads((run / "run.json").read_text(encoding="utf-8"))
    (run / "run.json").write_text(json.dumps(identity | {"processes": 2}), encoding="utf-8")
    assert train(tmp_path / "run", changes) == run and len(at_a_second) == 2
    assert content(run) == content(whole)
    assert json.loads((run / "run.json").read_text(encoding="utf-8"))["processes"] == 2
    again = atento.train(run)  # by its folder, whose recipe has the steps
    assert again.already_finished and again.step == 10 and len(at_a_second) == 2


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({"training.steps": 3}, 3),
        ({"training.steps": 30}, 10),
        ({"training.epochs": 0.5}, None),
        ({"training.epochs": 500}, 10),
        ({}, 10),
    ],
)
def test_the_first_ends(tmp_path: Path, at_a_second: list[float], changes: dict[str, Any], steps: int | None) -> None:
    run = train(tmp_path / "run", {"training.minutes": 2} | changes)
    reached = steps_of(run)
    assert reached == steps or (steps is None and 1 <= reached < 10)
    again = atento.train(RECIPE, {"training.minutes": 2} | changes, out=run, threads=1)
    assert again.already_finished and again.step == reached and len(at_a_second) == 1


def test_more_minutes_extend_a_run_at_the_rate_of_its_start(tmp_path: Path, at_a_second: list[float]) -> None:
    run = train(tmp_path / "run", {"training.minutes": 1})
    assert steps_of(run) == 4
    assert steps_of(train(run, {"training.minutes": 2})) == 10 and len(at_a_second) == 1
    assert atento.train(run, {"training.minutes": 3}).step == 16 and len(at_a_second) == 1


@pytest.mark.parametrize(("precision", "tokens", "most"), [("bfloat16", 4096, 1200), ("float32", 2048, 2400)])
def test_the_demo_has_as_many_updates_as_the_machine_takes_in_time(
    tmp_path: Path,
    precision: str,
    tokens: int,
    most: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The number is said before training, and beside the scores; where products take longer, updates are smaller."""
    limits = []

    def timed(setup: Any, budget: float) -> tuple[float, float]:
        limits.append((setup.recipe.training.batch_tokens, time_budget._written(setup, None)))
        return budget / 3, 0.0

    monkeypatch.setattr(time_budget, "_timed", timed)
    monkeypatch.setattr("atento.base.precision.best_precision", lambda device: precision)
    monkeypatch.setattr("atento_cli.demo.results", partial(results, count=4))
    small = {"DATA__TRAIN__0__COUNT": "60", "DATA__VALID__0__COUNT": "3", "DATA__TEST__0__COUNT": "3"}
    small |= {"TOKENIZER__VOCAB_SIZE": "340", "DECODING__BEAM": "1", "DECODING__MAX_NEW_TOKENS": "4"}
    for name, value in small.items():
        monkeypatch.setenv(f"ATENTO_{name}", value)
    demo([], out=tmp_path / "demo", threads=1, precision="float32")
    shown = capsys.readouterr()
    assert "\nafter 3 updates:\n4 unseen combinations" in shown.out
    assert "training.minutes 4: 3 updates at 80 s each, besides validations; the number is fixed" in shown.err
    assert limits == [(tokens, most)]


def test_minutes_that_are_none() -> None:
    for value in (0, -1):
        fails(RecipeError, r"training\.minutes` must be above 0", load_recipe, RECIPE, {"training.minutes": value})
    said, both = r"`training\.minutes` cannot .* `training\.parallel\.shard`", {"training.minutes": 1}
    fails(RecipeError, said, load_recipe, RECIPE, both | {"training.parallel.shard": 2})
