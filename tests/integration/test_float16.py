"""Training in float16: the scale of the loss, skipped updates, and a run that goes on with the same bits."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import atento
from atento.base.errors import UsageError
from atento.training import run_state, step
from atento.training.optimizer import LossScale
from failing import fails
from runs import differences, events, state

RECIPE = {
    "task": "translation",
    "network": {"d_model": 16, "d_ff": 32, "n_heads": 2, "n_layers": 1},
    "tokenizer": {"kind": "word"},
    "training": {"steps": 12, "batch_tokens": 60, "validate_every": 6, "checkpoint_every": 4, "log_every": 1},
}
PAIRS = [{"source": f"a b {n}", "target": f"c {n} d"} for n in "efgh" * 5]


def train(out: Path, precision: Any = "float16", **changes: Any) -> None:
    data = {"train": PAIRS, "valid": PAIRS[:2]}
    atento.train(RECIPE, data=data, out=out, device="cpu", precision=precision, **changes)


def test_f5_a_run_in_float16_skips_what_overflows_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_fp16_supported", lambda: True)
    monkeypatch.setattr(step, "LossScale", partial(LossScale, 2.0**21))  # too large for the first updates
    train(tmp_path / "whole")
    skipped = events(tmp_path / "whole", "overflow")
    assert [event["step"] for event in skipped] == list(range(1, len(skipped) + 1)) and 1 < len(skipped) < 10
    assert skipped[-1]["loss_scale"] == 2.0 ** (21 - len(skipped))
    last = events(tmp_path / "whole", "train")[-1]
    assert (last["overflows"], last["loss_scale"]) == (len(skipped), skipped[-1]["loss_scale"])
    wanted = {"factor": last["loss_scale"], "taken": 12 - len(skipped), "overflows": len(skipped)}
    assert state(tmp_path / "whole")["loss_scale"] == wanted

    real = step.Updater.update
    for stop in (4, 9):  # behind a checkpoint, and among updates that are then taken once more

        def update(self: step.Updater, parts: Any, number: int, *rest: Any, stop: int = stop) -> Any:
            if number == stop:
                raise KeyboardInterrupt
            return real(self, parts, number, *rest)

        monkeypatch.setattr(step.Updater, "update", update)
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "parts")
    monkeypatch.setattr(step.Updater, "update", real)
    train(tmp_path / "parts")
    assert differences(tmp_path / "parts", tmp_path / "whole") == []
    assert events(tmp_path / "parts", "overflow") == skipped


def test_a_processor_without_float16_is_told_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_fp16_supported", lambda: False)
    fails(UsageError, r"^`training.precision: float16` .* auto is \w+ here$", train, tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_run_in_float16_begins_at_a_checkpoint_without_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of another type, as an earlier version wrote it."""
    monkeypatch.setattr(torch.cpu, "_is_amx_fp16_supported", lambda: True)
    with monkeypatch.context() as earlier:
        earlier.setattr(
            run_state, "asdict", lambda one: {k: value for k, value in asdict(one).items() if k != "loss_scale"}
        )
        train(tmp_path / "a", None)
    train(tmp_path / "b", from_=f"{tmp_path / 'a'}@12", overrides={"training.steps": 14})
    assert state(tmp_path / "b")["loss_scale"]["taken"] + len(events(tmp_path / "b", "overflow")) == 2
