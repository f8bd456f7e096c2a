"""Experiment trackers: their own readers find the numbers of `metrics.jsonl`; a tracker that fails stops nothing."""

import json
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import atento
import atento.training.trackers as trackers
from atento.base.errors import MissingPartError, RecipeError
from atento.training.metrics_log import read_journal
from atento.training.trackers import TrackedRun, Trackers, scalars
from failing import fails
from runs import differences

RECIPE: dict[str, Any] = {
    "task": "language-modeling",
    "name": "tiny",
    "data": {"train": {"world": "train", "count": 60}, "valid": {"world": "valid", "count": 4}},
    "tokenizer": {"kind": "character"},
    "network": {"d_model": 8, "d_ff": 16, "n_heads": 2, "n_layers": 1},
    "training": {"steps": 12, "batch_tokens": 300, "warmup": 2, "precision": "float32", "log_update_ratios": True}
    | {"validate_every": 6, "checkpoint_every": 4, "log_every": 1, "samples": 1},
    "decoding": {"beam": 1},
}


def train(folder: Path, *names: str, share: str = "1") -> Path:
    changes = {"training.report_to": list(names)}
    return atento.train(RECIPE, changes, out=folder, threads=1, share=Fraction(share)).folder


def expected(run: Path) -> dict[str, list[tuple[int, float]]]:
    """The curves of `metrics.jsonl` by the names that trackers give them."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for event in read_journal(run / "metrics.jsonl"):
        for name, value in scalars(event).items():
            curves.setdefault(name, []).append((event["step"], value))
    return curves


def test_tensorboard_reads_the_curves_of_a_run_that_was_resumed(tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    train(tmp_path / "run", "tensorboard", share="1/2")
    run = train(tmp_path / "run", "tensorboard")
    log = reader.EventAccumulator(str(run / "tensorboard"))
    log.Reload()
    curves = expected(run)
    assert {"train/loss", "valid/perplexity", "train/update_ratios/layer 1"} <= curves.keys() or curves.keys()
    assert set(log.Tags()["scalars"]) == curves.keys()
    for name, points in curves.items():
        values = [(scalar.step, scalar.value) for scalar in log.Scalars(name)]
        assert [step for step, _ in values] == [step for step, _ in points], name
        assert [value for _, value in values] == pytest.approx([value for _, value in points], rel=1e-6)
    assert {"sample/1/text_summary", "recipe/text_summary"} <= set(log.Tags()["tensors"])


@pytest.mark.slow
def test_mlflow_has_the_metrics_and_samples_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    train(tmp_path / "run", "mlflow", share="1/2")
    run = train(tmp_path / "run", "mlflow")
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("atento")
    (tracked,) = client.search_runs([experiment.experiment_id])  # resumed, not started again
    assert tracked.info.status == "FINISHED" and tracked.info.run_name == "tiny"
    assert tracked.data.params["training.steps"] == "12"
    for name, points in expected(run).items():
        history = client.get_metric_history(tracked.info.run_id, trackers._mlflow_name(name))
        assert [(metric.step, metric.value) for metric in history] == points, name
    names = [file.path for file in client.list_artifacts(tracked.info.run_id, "samples")]
    assert names == ["samples/step-00000006-1.txt", "samples/step-00000012-1.txt"]


def leveldb_records(content: bytes) -> list[bytes]:
    """The records of a log in LevelDB's format: blocks of 32 KiB, of chunks with checksum, length and type."""
    records, record, at, header = [], b"", 0, 7  # the first block of the file is shorter by its own header of 7 bytes
    while at + 7 <= len(content):
        left = 32768 - (at + header) % 32768
        if left < 7:
            at += left
            continue
        length, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        record += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last chunk
            records.append(record)
            record = b""
    return records


@pytest.mark.slow
def test_wandb_writes_a_run_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    monkeypatch.setenv("WANDB_MODE", "offline")
    run = train(tmp_path / "run", "wandb")
    wandb.teardown()  # its process has written the file
    (file,) = (run / "wandb").glob("offline-run-*/run-*.wandb")
    curves: dict[str, list[tuple[int, Any]]] = {}
    for data in leveldb_records(file.read_bytes()[7:]):
        record = Record()
        record.ParseFromString(data)
        values = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        for name, value in values.items():
            curves.setdefault(name, []).append((values["_step"], value))
    for name, points in expected(run).items():
        assert curves[name] == points, name
    assert len(curves["sample/1"]) == 2


class Broken:
    """A tracker whose server is gone at its second event."""

    def __init__(self, run: TrackedRun) -> None:
        self.count = 0

    def log(self, event: dict[str, Any]) -> None:
        self.count += 1
        if self.count == 2:
            raise ConnectionError("no route to the server")

    def close(self, status: str) -> None:
        raise AssertionError("closed")


def test_a_tracker_that_fails_is_left_out_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = train(tmp_path / "whole")
    monkeypatch.setattr(trackers, "_MADE", {"mlflow": Broken})
    monkeypatch.setattr(trackers, "find_spec", lambda name: object())
    run = train(tmp_path / "run", "mlflow")
    message = "warning: mlflow failed, and is not written any more (no route to the server); training continues"
    assert capsys.readouterr().err.count(message) == 1 and differences(run, whole) == []


def test_a_tracker_that_hangs_keeps_the_end_for_a_limited_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Hanging(Broken):
        def log(self, event: dict[str, Any]) -> None:
            time.sleep(5)

    monkeypatch.setattr(trackers, "_MADE", {"wandb": Hanging})
    monkeypatch.setattr(trackers, "WAIT", 0.05)
    said: list[str] = []
    begun = time.monotonic()
    with Trackers(["wandb"], TrackedRun(tmp_path, "tiny", "1", 0, {}), said.append) as tracked:
        tracked.log({"event": "train", "step": 1, "loss": 1.0})
    assert time.monotonic() - begun < 2 and len(said) == 1 and "did not end within" in said[0]


def test_only_finite_numbers_are_sent_to_known_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    event = {"event": "end", "step": 3, "test_bleu": 20.5, "test_nll": float("nan"), "note": "resumed"}
    assert scalars(event) == {"test/bleu": 20.5} and scalars({"event": "skip", "step": 3, "rewound_to": 2}) == {}
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    fails(MissingPartError, r"report_to` wandb needs .*'\.\[wandb\]'", train, tmp_path / "run", "wandb")
    fails(RecipeError, "'tensorbord'; did you mean 'tensorboard'", train, tmp_path / "run", "tensorbord")
    assert not (tmp_path / "run").exists()
