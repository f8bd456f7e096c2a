"""The training engine in whole runs: optimizers, schedules, faults, checkpoints beside the steps, older runs."""

import threading
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor

import atento
import atento.training.run_state as saving
from atento.base.errors import CheckpointError, TrainingError, UsageError
from atento.config.reading.loading import load_recipe
from atento.data.batches.planning import PlannedBatches
from atento.storage.checkpoint import load_checkpoint
from atento.storage.writer import CheckpointWriter
from atento.training.metrics_log import read_journal
from atento.training.optimizer import Optimizer
from atento.training.step import Updater
from failing import fails
from runs import differences, events, facts, last, tensors

RECIPE: dict[str, Any] = {
    "task": "translation",
    "name": "tiny",
    "data": {"train": {"world": "train", "count": 60}, "valid": {"world": "valid", "count": 4}},
    "tokenizer": {"kind": "character"},
    "network": {"d_model": 8, "d_ff": 16, "n_heads": 2, "n_layers": 1, "norm": "pre", "dropout": 0.1},
    "training": {"steps": 12, "batch_tokens": 300, "warmup": 2, "learning_rate": 5e-3, "precision": "float32"}
    | {"validate_every": 6, "checkpoint_every": 4, "log_every": 1, "keep": 9},
    "decoding": {"beam": 1, "max_new_tokens": 2},
    "metrics": [],
}


def train(folder: Path, share: str = "1", shared: bool = True, **training: Any) -> Path:
    """A run of the tiny recipe; a share below 1 ends it early, as if it had been stopped."""
    changes = {f"training.{name}": value for name, value in training.items()} | {"tokenizer.shared": shared}
    return atento.train(RECIPE, changes, out=folder, threads=1, share=Fraction(share)).folder


def losses(run: Path) -> list[float]:
    return [event["loss"] for event in events(run, "train")]


ENGINES: list[dict[str, Any]] = [
    {"optimizer": "muon", "ema": 0.9, "schedule": "wsd", "decay": 0.5, "micro_batches": 2}
    | {"log_gradient_noise": True, "log_update_ratios": True, "log_every": 4, "activation_checkpointing": True},
    {"optimizer": "adafactor", "ema": 0.9, "precision": "bfloat16", "async_checkpoints": False, "shared": False},
]


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine["optimizer"])
def test_a_run_of_any_engine_resumes_bit_for_bit(tmp_path: Path, engine: dict[str, Any]) -> None:
    whole = train(tmp_path / "whole", **engine)
    train(tmp_path / "parts", "1/2", **engine)
    assert last(tmp_path / "parts").name == "step-00000006"
    assert differences(train(tmp_path / "parts", **engine), whole) == []
    model = atento.load(whole)
    tokenizer, table = model.tokenizer, dict(model.network.named_parameters()).get("target_embedding.weight")
    assert (tokenizer.target is tokenizer) == (table is None) == engine.get("shared", True)
    assert table is None or tokenizer.target.vocab_size == len(table) != tokenizer.vocab_size
    assert tokenizer.target.pad_id == tokenizer.pad_id and len(model.translate(["the cat"])) == 1


@pytest.mark.parametrize(("schedule", "said"), [("linear", 1), ("inverse-sqrt", 0), ("wsd", 0)])
def test_more_steps_that_change_the_schedule_are_said(tmp_path: Path, capsys: Any, schedule: str, said: int) -> None:
    """Half way through: a linear decrease becomes slower; wsd with a decay of the last quarter is still stable."""
    train(tmp_path / "run", "1/2", schedule=schedule, decay=0.25)
    capsys.readouterr()
    train(tmp_path / "run", schedule=schedule, decay=0.25, steps=14)
    message = "had 12 steps and has 14 steps now: with the schedule linear, the learning rate of step 7 is 3.08e-03 "
    assert capsys.readouterr().err.count(f"{message}instead of 2.73e-03") == said


def test_ema_is_its_formula_and_what_is_saved_and_validated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Computed again from the weights after each update; the network trains on its own weights as without."""
    weights: list[dict[str, Tensor]] = []
    real = Updater.update

    def update(self: Updater, *arguments: Any, **options: Any) -> Any:
        if not weights:
            weights.append({name: value.detach().clone() for name, value in self.parameters.items()})
        result = real(self, *arguments, **options)
        weights.append({name: value.detach().clone() for name, value in self.parameters.items()})
        return result

    plain = train(tmp_path / "plain")
    monkeypatch.setattr(Updater, "update", update)
    run = train(tmp_path / "run", ema=0.6)
    expected = {name: value.double() for name, value in weights[0].items()}
    for step, values in enumerate(weights[1:], start=1):
        decay = min(0.6, (1 + step) / (10 + step))
        expected = {name: decay * expected[name] + (1 - decay) * value.double() for name, value in values.items()}
    saved = load_file(last(run) / "model.safetensors")
    for name, value in expected.items():
        torch.testing.assert_close(saved[name].double(), value, rtol=0, atol=1e-6, msg=name)
    assert losses(run) == losses(plain)
    raw = load_file(last(run) / "optimizer.safetensors")
    trained = load_file(last(plain) / "model.safetensors")
    assert all(torch.equal(raw[f"{name}.raw"], trained[name]) for name in expected)
    assert events(run, "valid") != events(plain, "valid")


def spoil(monkeypatch: pytest.MonkeyPatch, steps: set[int]) -> None:
    """Let the gradient of the embeddings be NaN in those updates."""
    real = Updater._part_gradients

    def part_gradients(self: Updater, part: Any, call: Any, scales: Any) -> Any:
        sums, gradients = real(self, part, call, scales)
        if call.step in steps:
            gradients[list(self.parameters).index("embedding.weight")].fill_(float("nan"))  # type: ignore[union-attr]
        return sums, gradients

    monkeypatch.setattr(Updater, "_part_gradients", part_gradients)


def test_n3_stop_and_rewind_keep_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, {7})
    fails(TrainingError, r"step 7: the gradient is not finite .* embedding\.weight\.", train, tmp_path / "stopped")
    assert last(tmp_path / "stopped").name == "step-00000006"
    run = train(tmp_path / "run", non_finite="rewind", validate_every=7, checkpoint_every=4)
    (event,) = events(run, "skip")
    assert (event["step"], event["rewound_to"]) == (7, 4)
    four, seven = (run / "checkpoints" / f"step-0000000{step}" for step in (4, 7))
    assert tensors(four / "model.safetensors") == tensors(seven / "model.safetensors")
    spoil(monkeypatch, {2})
    fails(TrainingError, r"step 2: .* no checkpoint yet to rewind to", train, tmp_path / "early", non_finite="rewind")


def test_n3_a_skipped_update_changes_nothing_and_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, {6})
    whole = train(tmp_path / "whole", non_finite="skip", checkpoint_every=1)
    before, after = (whole / "checkpoints" / f"step-0000000{step}" for step in (5, 6))
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert tensors(before / name) == tensors(after / name)
    assert [(event["step"], event["parameter"]) for event in events(whole, "skip")] == [(6, "embedding.weight")]
    assert last(whole).name == "step-00000012"
    train(tmp_path / "parts", "1/2", non_finite="skip", checkpoint_every=1)
    assert differences(train(tmp_path / "parts", non_finite="skip", checkpoint_every=1), whole) == []


def test_n3_more_than_a_thousandth_of_the_updates_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """12 updates: one may be skipped; in 20,000 updates 20 may, but not 11 in a row."""
    spoil(monkeypatch, {3, 9})
    fails(TrainingError, r"step 9: .*2 updates .*, 1 of .* at most 1", train, tmp_path / "run", non_finite="skip")
    spoil(monkeypatch, set(range(2, 20)))
    with pytest.raises(TrainingError, match=r"step 12: .*11 updates were not finite, 11 of them in a row: at most 20"):
        train(tmp_path / "more", non_finite="skip", steps=20_000)


Fault = Callable[[], BaseException]
FAULTS: list[Fault] = [
    lambda: torch.OutOfMemoryError("CUDA out of memory."),
    lambda: RuntimeError("[enforce fail at alloc_cpu.cpp:1] . DefaultCPUAllocator: can't allocate memory"),
]


@pytest.mark.covering
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("where", ["_part_gradients", "optimizer"])
def test_n4_without_memory_the_same_update_is_computed_in_more_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fault: Fault, where: str
) -> None:
    """The fifth update fails while it is in one piece: one warning, the curve of the run without the fault."""
    monkeypatch.setitem(RECIPE, "network", RECIPE["network"] | {"dropout": 0.0})
    plain = train(tmp_path / "plain")
    capsys.readouterr()
    owner: Any = Updater if where == "_part_gradients" else torch.optim.AdamW
    name = where if where == "_part_gradients" else "step"
    real, asked, pieces, parts = getattr(owner, name), [], dict[int, int](), PlannedBatches.parts

    def counted(self: PlannedBatches, update: int, micro_batches: int = 1, *ours: Any) -> Any:
        pieces[update] = micro_batches
        return parts(self, update, micro_batches, *ours)

    def failing(*arguments: Any, **options: Any) -> Any:
        if max(pieces) == 4 and pieces[4] == 1:
            asked.append(1)
            raise fault()
        return real(*arguments, **options)

    monkeypatch.setattr(PlannedBatches, "parts", counted)
    monkeypatch.setattr(owner, name, failing)
    run = train(tmp_path / "run")
    assert asked and [pieces[update] for update in range(12)] == [1] * 4 + [2] * 8
    assert losses(run) == pytest.approx(losses(plain), rel=1e-5)
    assert capsys.readouterr().err.count("memory ran out") == 1
    assert facts(last(run))["splits"] == 2


def test_n4_half_a_change_and_other_failures_are_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Muon changes matrix after matrix: if the second has no memory, the first has changed already."""
    first, second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    optimizer = Optimizer.__new__(Optimizer)
    optimizer.parameters = {"a": first.weight, "b": second.weight}

    class Failing(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            super().step()
            raise MemoryError("no more")

    optimizer.optimizers = [Failing([{"params": [first.weight, second.weight], "scale": 1.0}], lr=0.1)]
    first.weight.grad = torch.ones(4, 4)
    fails(TrainingError, "failed while it changed the weights", optimizer.step, 0.1)

    def failing(self: Updater, part: Any, call: Any, scales: Any) -> Any:
        raise RuntimeError("shapes cannot be multiplied")

    monkeypatch.setattr(Updater, "_part_gradients", failing)
    fails(RuntimeError, "shapes cannot be multiplied", train, tmp_path / "run")


def test_checkpoints_written_beside_the_steps_are_bit_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk so slow that later updates change the weights meanwhile: every file and every event is the same."""
    whole = train(tmp_path / "whole", async_checkpoints=False)
    real, threads, steps = saving.save_checkpoint, dict[int, threading.Thread](), []

    def slow(folder: Path, step: int, **contents: Any) -> Path:
        threads[step] = threading.current_thread()
        begun = len(steps)
        deadline = time.monotonic() + 20
        while step < 12 and len(steps) < begun + 2 and time.monotonic() < deadline:
            time.sleep(0.001)
        return real(folder, step, **contents)

    update = Updater.update

    def counted(self: Updater, *arguments: Any, **options: Any) -> Any:
        steps.append(1)
        return update(self, *arguments, **options)

    monkeypatch.setattr(saving, "save_checkpoint", slow)
    monkeypatch.setattr(saving, "IN_TURN", -1.0)
    monkeypatch.setattr(Updater, "update", counted)
    run = train(tmp_path / "run")
    assert threads.pop(12) is threading.main_thread()  # nothing follows the last one, so it is written without a copy
    assert threading.main_thread() not in threads.values() and len(set(threads.values())) == 3
    names = sorted(path.name for path in (whole / "checkpoints").iterdir())
    assert names == sorted(path.name for path in (run / "checkpoints").iterdir()) and len(names) == 4
    for name in names:
        for file in ("model.safetensors", "optimizer.safetensors", "config.json"):
            here, there = (path / "checkpoints" / name / file for path in (run, whole))
            assert here.read_bytes() == there.read_bytes()
    kinds = [[(one["event"], one["step"]) for one in read_journal(path / "metrics.jsonl")] for path in (run, whole)]
    assert kinds[0] == kinds[1] and differences(run, whole) == []


@pytest.mark.parametrize("share", [0.5, 1e9])
def test_a_quick_checkpoint_needs_no_copy(share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that takes half a second: more than half of the time between two, but less than 1e9 times as much."""
    real, beside = saving.save_checkpoint, []

    def slow(folder: Path, step: int, **contents: Any) -> Path:
        beside.append(threading.current_thread() is not threading.main_thread())
        time.sleep(0.5 if share < 1 else 0.0)
        return real(folder, step, **contents)

    monkeypatch.setattr(saving, "save_checkpoint", slow)
    monkeypatch.setattr(saving, "IN_TURN", share)
    train(tmp_path / "run")
    assert beside == [False, share < 1, share < 1, False]  # none was written before the first, none follows the last


def test_without_memory_for_a_thread_a_checkpoint_is_written_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    writer, written = CheckpointWriter(), []
    writer.start(4, lambda: written.append(4))
    assert written == [4] and writer.step == 4 and writer.done
    writer.wait()
    assert writer.step is None


def test_a_checkpoint_that_cannot_be_written_stops_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = saving.save_checkpoint

    def failing(folder: Path, step: int, **contents: Any) -> Path:
        if step == 8:
            raise CheckpointError("cannot save step 8: the disk is full")
        return real(folder, step, **contents)

    monkeypatch.setattr(saving, "save_checkpoint", failing)
    fails(CheckpointError, "cannot save step 8", train, tmp_path / "run", steps=5000, validate_every=5000)
    assert last(tmp_path / "run").name == "step-00000004"
    assert [event["step"] for event in events(tmp_path / "run", "checkpoint")] == [4]
    assert len(events(tmp_path / "run", "train")) < 100
    monkeypatch.setattr(saving, "save_checkpoint", real)
    assert load_checkpoint(last(train(tmp_path / "run", steps=12, validate_every=5000))).step == 12


def test_a_run_that_is_moved_away_stops_and_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints went on into a new folder that was no run, and a signal promised that it can be resumed."""
    run, away, update = tmp_path / "run", tmp_path / "away", Updater.update

    def moving(self: Updater, parts: Any, step: int, *rest: Any) -> Any:
        if step == 6:
            run.rename(away)
        return update(self, parts, step, *rest)

    monkeypatch.setattr(Updater, "update", moving)
    fails(CheckpointError, "run was removed or moved .* step 6 is not", train, run, async_checkpoints=False)
    assert not run.exists() and last(away).name == "step-00000004"
    monkeypatch.setattr(Updater, "update", update)
    away.rename(run)
    assert load_checkpoint(last(train(run, async_checkpoints=False))).step == 12


def test_the_recipe_of_an_older_run_is_read_by_the_keys_of_today(tmp_path: Path) -> None:
    network = RECIPE["network"] | {"attention_dropout": 0.2, "bias": False, "tied_embeddings": False, "sparse": None}
    older = {**RECIPE, "network": network, "training": {**RECIPE["training"], "accumulate": 3}}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(older), encoding="utf-8")
    fails(atento.AtentoError, "is now network", load_recipe, tmp_path / "recipe.yaml")  # a user's own recipe
    said = "training.accumulate is now training.micro_batches"
    fails(atento.AtentoError, said, load_recipe, RECIPE, ["training.accumulate=2"])
    (tmp_path / "run.json").write_text("{}", encoding="utf-8")
    recipe = load_recipe(tmp_path).recipe
    assert recipe.network.attention.dropout == 0.2 and not recipe.network.output.tied
    assert not recipe.network.attention.bias and not recipe.network.feed_forward.bias
    assert recipe.training.micro_batches == 3


def test_training_goes_on_from_no_earlier_versions_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = train(tmp_path / "run")
    monkeypatch.setattr("atento.training.run_state.VERSION", 3)
    fails(UsageError, "earlier version .* `init: .*run` starts a run from its weights", train, run, steps=14)


def rates(run: Path) -> list[float]:
    return [event["learning_rate"] for event in events(run, "train")]


def train_open(folder: Path, from_: str | None = None, **training: Any) -> Path:
    """A run of the tiny recipe without a word on its warm-up."""
    kept = {key: value for key, value in RECIPE["training"].items() if key not in ("warmup", "learning_rate")}
    return atento.train(RECIPE | {"training": kept | training}, out=folder, threads=1, from_=from_).folder


def test_a_run_keeps_the_warm_up_that_it_began_with(tmp_path: Path) -> None:
    """A fifth of 10 updates, also where it is extended, continues in a branch, or was written by an earlier version."""
    run = train_open(tmp_path / "run", steps=10)
    assert load_recipe(run).recipe.training.warmup == 2
    assert rates(run)[:3] == pytest.approx([5e-4, 1e-3, 1e-3 * (2 / 3) ** 0.5])
    train_open(run, steps=20)
    assert load_recipe(run).recipe.training.warmup == 2 and rates(run)[19] == pytest.approx(1e-3 * 0.1**0.5)
    assert load_recipe(train_open(tmp_path / "branch", f"{run}@last", steps=30)).recipe.training.warmup == 2
    older = train_open(tmp_path / "older", steps=10, warmup=200)
    assert load_recipe(train_open(older, steps=20)).recipe.training.warmup == 200
    assert rates(older)[19] == pytest.approx(1e-4)


@pytest.mark.parametrize("schedule", ["linear", "cosine", "wsd"])
def test_a_run_of_one_update_learns(tmp_path: Path, schedule: str) -> None:
    first = train_open(tmp_path / "first", steps=1, schedule=schedule, learning_rate=0.0)
    run = train_open(tmp_path / "run", steps=1, schedule=schedule)
    before, after = (atento.load(made).network.state_dict() for made in (first, run))
    assert rates(run)[0] > 0 and any(not before[name].equal(after[name]) for name in before)


def test_a_run_says_what_its_length_does_not_allow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train_open(tmp_path / "run", steps=9, warmup=200, early_stop=3, average=6)
    said = [part for part in capsys.readouterr().err.split("warning: ") if part.startswith("`training.")]
    assert [line.split("`")[1] for line in said] == ["training.warmup", "training.early_stop", "training.average"]
    assert load_recipe(run).recipe.training.warmup == 200 and "4.5%" in said[0]
