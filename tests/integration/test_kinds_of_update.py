"""Runs whose updates are computed in another way: in float16, by R-Drop, compiled; the same bits after a stop."""

import shutil
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import atento
from atento.attention.dropout import Randomness, add_dropout, dropout_mask
from atento.base.errors import RecipeError, UsageError
from atento.training import run_state, step
from atento.training.optimizer import LossScale
from failing import fails
from runs import differences, events, state

TRAINING = {"steps": 12, "batch_tokens": 60, "validate_every": 6, "checkpoint_every": 4, "log_every": 1}
RECIPE: dict[str, Any] = {
    "task": "translation",
    "network": {"d_model": 16, "d_ff": 32, "n_heads": 2, "n_layers": 1},
    "tokenizer": {"kind": "word"},
    "training": TRAINING | {"baseline": False},
}
R_DROP = {"training.r_drop": 5.0, "training.steps": 9, "training.micro_batches": 2, "training.validate_every": 9}
PAIRS = [{"source": f"a b {n}", "target": f"c {n} d"} for n in "efgh" * 5]
REAL = step.Updater.update


def train(out: Path, changes: Any = (), precision: Any = "float16", **more: Any) -> Path:
    data = {"train": PAIRS, "valid": PAIRS[:2]}
    return atento.train(RECIPE, changes, data=data, out=out, device="cpu", precision=precision, **more).folder


def stop_at(monkeypatch: pytest.MonkeyPatch, stop: int) -> None:
    """Interrupt the run instead of an update."""

    def update(self: step.Updater, parts: Any, number: int, *rest: Any) -> Any:
        if number == stop:
            raise KeyboardInterrupt
        return REAL(self, parts, number, *rest)

    monkeypatch.setattr(step.Updater, "update", update)


def test_f5_a_run_in_float16_skips_what_overflows_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_fp16_supported", lambda: True)
    monkeypatch.setattr(step, "LossScale", partial(LossScale, 2.0**21))  # too large for the first updates
    train(tmp_path / "whole")
    skipped = events(tmp_path / "whole", "overflow")
    assert [event["step"] for event in skipped] == list(range(1, len(skipped) + 1)) and 1 < len(skipped) < 10
    assert skipped[-1]["loss_scale"] == 2.0 ** (21 - len(skipped))
    told = events(tmp_path / "whole", "train")
    last = told[-1]
    assert [event["step"] for event in told if not {"loss", "nll"} & event.keys()] == [one["step"] for one in skipped]
    assert "step 1: no update, learning rate" in (tmp_path / "whole" / "train.log").read_text(encoding="utf-8")
    assert (last["overflows"], last["loss_scale"]) == (len(skipped), skipped[-1]["loss_scale"])
    wanted = {"factor": last["loss_scale"], "taken": 12 - len(skipped), "overflows": len(skipped)}
    assert state(tmp_path / "whole")["loss_scale"] == wanted
    for stop in (4, 9):  # behind a checkpoint, and among updates that are then taken once more
        stop_at(monkeypatch, stop)
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "parts")
    monkeypatch.setattr(step.Updater, "update", REAL)
    assert differences(train(tmp_path / "parts"), tmp_path / "whole") == []
    assert events(tmp_path / "parts", "overflow") == skipped


def test_a_processor_without_float16_is_told_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_fp16_supported", lambda: False)
    fails(UsageError, r"^`training.precision: float16` .* auto is \w+ here$", train, tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_run_in_float16_begins_at_a_checkpoint_without_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of another type, as an earlier version wrote it."""
    monkeypatch.setattr(torch.cpu, "_is_amx_fp16_supported", lambda: True)
    with monkeypatch.context() as earlier:
        earlier.setattr(run_state, "asdict", lambda one: {k: v for k, v in asdict(one).items() if k != "loss_scale"})
        train(tmp_path / "a", precision=None)
    train(tmp_path / "b", {"training.steps": 14}, from_=f"{tmp_path / 'a'}@12")
    assert state(tmp_path / "b")["loss_scale"]["taken"] + len(events(tmp_path / "b", "overflow")) == 2


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_a_stopped_r_drop_goes_on_bit_for_bit(precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_fp16_supported", lambda: True)
    whole = train(tmp_path / "whole", R_DROP, precision)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stop_at(patch, 7)
        train(tmp_path / "parts", R_DROP, precision)
    assert differences(whole, train(tmp_path / "parts", R_DROP, precision)) == []
    every = [event for event in events(whole, "train") if "loss" in event]
    assert every and all(event["loss"] > event["nll"] for event in every)


def test_r_drop_without_dropout_is_refused_before_its_first_update(tmp_path: Path) -> None:
    said = r"`training\.r_drop` compares two passes .* got 5"
    fails(RecipeError, said, train, tmp_path / "run", R_DROP | {"network.dropout": 0.0}, None)
    assert not list(tmp_path.glob("run/checkpoints/*"))


def train_compiled(task: str, folder: Path, **changes: Any) -> Path:
    network = {"d_model": 32, "d_ff": 64, "n_heads": 2, "n_layers": 2, "dropout": 0.1, "attention": {"dropout": 0.1}}
    data = {"train": {"world": "train", "count": 300}, "valid": {"world": "valid", "count": 6}, "max_len": 48}
    recipe = {"task": task, "data": data, "network": network, "tokenizer": {"kind": "word", "vocab_size": 400}}
    recipe["training"] = TRAINING | {"steps": 6, "batch_tokens": 600, "warmup": 2, "checkpoint_every": 6}
    recipe["training"] |= {"learning_rate": 1e-2, "precision": "float32"}
    return atento.train(recipe | {"metrics": []}, changes, out=folder, threads=1).folder


@pytest.mark.slow
@pytest.mark.parametrize("task", ["language-modeling", "masked-language-modeling", "translation"])
def test_compiled_training_has_the_losses_of_training_and_few_variants(task: str, tmp_path: Path) -> None:
    if not any(shutil.which(name) for name in ("g++", "clang++", "c++")):
        pytest.skip("no C++ compiler")
    counters = torch._dynamo.utils.counters
    torch._dynamo.reset()
    counters.clear()
    plain = train_compiled(task, tmp_path / "plain")
    compiled = train_compiled(task, tmp_path / "compiled", **{"training.compile": True})
    losses = [[event["loss"] for event in events(run, "train")] for run in (compiled, plain)]
    assert losses[0][0] == pytest.approx(losses[1][0], rel=1e-6)  # other masks of dropout would change it by a percent
    # Adam divides gradients that are nearly 0, such as those of key biases, by their size, and so enlarges rounding
    assert losses[0] == pytest.approx(losses[1], rel=5e-4)
    valid = [events(run, "valid")[0]["nll"] for run in (compiled, plain)]
    assert valid[0] == pytest.approx(valid[1], rel=1e-3)
    assert not counters["graph_break"], counters["graph_break"]
    assert counters["stats"]["unique_graphs"] <= 8


def test_compiled_code_draws_the_same_dropout() -> None:
    """Keys as tensors are the keys as numbers, and so are the masks."""
    plain, x = Randomness(7, step=3, slot=2, use=5), torch.ones(3, 5, 8)
    traced = plain.as_tensor(x.device)
    for _ in range(4):
        number, tensor = plain.key(), traced.key()
        assert isinstance(tensor, torch.Tensor) and int(tensor) == number
        assert torch.equal(dropout_mask(x.shape, 0.3, number, x), dropout_mask(x.shape, 0.3, tensor, x))
    assert torch.equal(add_dropout(x, x, 0.5, traced), add_dropout(x, x, 0.5, Randomness(7, step=3, slot=2, use=9)))


def test_what_cannot_be_compiled_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile = {"training.compile": True}
    said = "`training.compile` needs a Transformer: got architecture 'recurrent-lm'"
    other = compile | {"network.architecture": "recurrent-lm"}
    fails(RecipeError, said, train_compiled, "language-modeling", tmp_path / "a", **other)
    monkeypatch.setenv("CXX", "no-such-compiler")
    said = r"needs a C\+\+ compiler: there is no no-such-compiler on this machine"
    fails(UsageError, said, train_compiled, "language-modeling", tmp_path / "b", **compile)
