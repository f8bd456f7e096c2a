"""Runs with R-Drop: exact after a stop, in each precision; without dropout it is refused at once."""

from pathlib import Path
from typing import Any

import pytest
import torch

import atento
from atento.base.errors import RecipeError
from atento.training import step
from failing import fails
from runs import differences, events

RECIPE: dict[str, Any] = {
    "task": "translation",
    "network": {"d_model": 16, "d_ff": 32, "n_heads": 2, "n_layers": 1},
    "tokenizer": {"kind": "word"},
    "training": {"r_drop": 5.0, "steps": 9, "batch_tokens": 60, "micro_batches": 2, "validate_every": 9, "log_every": 1}
    | {"checkpoint_every": 4, "baseline": False},
}
PAIRS = [{"source": f"a b {n}", "target": f"c {n} d"} for n in "efgh" * 5]


def train(out: Path, recipe: dict[str, Any] = RECIPE, **changes: Any) -> Path:
    return atento.train(recipe, data={"train": PAIRS, "valid": PAIRS[:2]}, out=out, device="cpu", **changes).folder


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_a_stopped_run_goes_on_bit_for_bit(precision: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_fp16_supported", lambda: True)
    whole = train(tmp_path / "whole", precision=precision)
    real = step.Updater.update

    def update(self: step.Updater, parts: Any, number: int, *rest: Any) -> Any:
        if number == 7:
            raise KeyboardInterrupt
        return real(self, parts, number, *rest)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(step.Updater, "update", update)
        train(tmp_path / "parts", precision=precision)
    train(tmp_path / "parts", precision=precision)
    assert differences(whole, tmp_path / "parts") == []
    every = [event for event in events(whole, "train") if "loss" in event]
    assert every and all(event["loss"] > event["nll"] for event in every)


def test_a_run_without_dropout_is_refused_before_its_first_update(tmp_path: Path) -> None:
    still = RECIPE | {"network": RECIPE["network"] | {"dropout": 0.0}}
    fails(RecipeError, r"`training\.r_drop` compares two passes .* got 5", train, tmp_path / "run", still)
    assert not list(tmp_path.glob("run/checkpoints/*"))
