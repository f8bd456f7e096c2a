"""What one sees of runs: `atento runs` and the checkpoint in use (W7), samples while they train, and trackers."""

import json
import shutil
import time
import xml.etree.ElementTree as ET
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import atento
import atento.training.trackers as trackers
from atento.base.errors import MissingPartError, RecipeError
from atento.config.reading.loading import load_recipe
from atento.models.model_folder import find_model
from atento.storage.checkpoint import load_checkpoint, save_checkpoint
from atento.storage.checkpoint_list import newest
from atento.training.metrics_log import read_journal
from atento.training.trackers import TrackedRun, Trackers, scalars
from conftest import ForkServer, each_refused
from failing import fails
from runs import differences, events, facts, last, tensors

TINY = ["train", "tiny.yaml", "--threads", "1"]
TEST = ["data.test.0.file=test.tsv", "data.test.0.source=0", "data.test.0.target=1"]


@pytest.fixture(scope="module")
def two(server: ForkServer, data: Path, scratch: Path) -> Path:
    """A folder with two runs: `first` ends worse than it was, `second` is averaged and tested."""
    folder = scratch / "two"
    rising = ["training.learning_rate=3", "training.warmup=60", "training.validate_every=1", "metrics=[]"]
    second = ["training.average=2", *TEST, "network.d_ff=64"]
    for name, more in (("first", [*rising, "training.steps=16", *TEST]), ("second", second)):
        server.good(*TINY, *more, "--out", folder / name, cwd=data)
    return folder


def test_w7_show_and_the_list_name_the_checkpoint_in_use_and_its_score(server: ForkServer, two: Path) -> None:
    run = two / "first"
    valid = {event["step"]: event["nll"] for event in events(run, "valid")}
    best = min(valid, key=lambda step: (valid[step], step))
    assert best != 16 and find_model(run).name == f"step-{best:08d}"  # the run gets worse, as this test wants it
    record = json.loads(server.run("runs", "show", run, "--json", cwd=two).stdout)
    assert record["metric"] == "nll" and record["best"] == {"step": best, "value": valid[best]}
    assert record["in_use"] == {"word": "best", "checkpoint": find_model(run).name, "step": best, "score": valid[best]}
    assert record["scores"]["nll"] == valid[best]
    [end] = events(run, "end")
    assert record["test"] == {"loss": end["test_loss"], "nll": end["test_nll"]} and record["finished"]
    shown = server.run("runs", "show", run, cwd=two).stdout
    assert not shown.startswith("{")  # for a person, unless asked
    assert f"the best checkpoint, step {best}, nll {valid[best]:.2f} ({find_model(run)})" in shown
    assert f"nll {valid[best]:.2f} at step {best}, of 16 validations" in shown
    assert f"nll {end['test_nll']:.2f}" in shown.split("test ")[1].splitlines()[0]
    assert "validation nll" in shown and "encoder-decoder, 16 wide, 1 + 1 layers, 11,392 parameters" in shown
    assert "360 pieces, bpe" in shown and record["vocabulary"] == 360
    assert "16 of 16, finished in " in shown and "translation, recipe tiny" in shown
    listed = server.run("runs", two, cwd=two).stdout.splitlines()
    rows = {Path(line.split("\t")[0]).name: line.split("\t") for line in listed}
    best = min(event["nll"] for event in events(two / "first", "valid"))
    assert rows["first"][1:3] == ["step 16", "finished"] and rows["first"][3].startswith(f"nll {best:.2f}, best (step ")
    assert rows["second"][4] == f"test chrf {events(two / 'second', 'end')[0]['test_chrf']:.2f}"


def test_one_validation_is_one(server: ForkServer, place: Path, two: Path) -> None:
    shutil.copytree(two / "first", run := place / "once")
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    later = [line for line in lines if '"valid"' in line][1:]
    (run / "metrics.jsonl").write_text("".join(line for line in lines if line not in later), encoding="utf-8")
    assert ", of 1 validation\n" in server.run("runs", "show", "once", cwd=place).stdout


def test_w7_an_averaged_checkpoint_in_use_is_called_so(server: ForkServer, place: Path, two: Path) -> None:
    run = place / "run"
    shutil.copytree(two / "second", run)
    word = "averaged" if find_model(run).parent.name == "averaged" else "best"
    record = json.loads(server.run("runs", "show", "run", "--json", cwd=place).stdout)
    assert record["in_use"]["word"] == word
    assert record["in_use"]["score"] == facts(find_model(run))["score"] and record["scores"]["chrf"] is not None
    for path in (run / "checkpoints").glob("step-*/state.json"):  # no validated one is left but the average
        shutil.rmtree(path.parent) if facts(path.parent)["step"] != 24 else None
    kept = load_checkpoint(run / "checkpoints" / "step-00000024")
    shutil.rmtree(kept.path)
    parts = {"config": kept.config, "weights": kept.weights, "optimizer": {}, "run_id": kept.run_id}
    save_checkpoint(run / "checkpoints", 24, state={"score": -1.0}, **parts)
    assert find_model(run) == newest(run / "averaged")
    record = json.loads(server.run("runs", "show", "run", "--json", cwd=place).stdout)
    score = facts(find_model(run))["score"]
    assert record["in_use"] == {"word": "averaged", "checkpoint": "step-00000024", "step": 24, "score": score}
    assert "the averaged checkpoint, step 24, chrf " in server.run("runs", "show", "run", cwd=place).stdout


def test_a_run_under_way_and_a_damaged_one_do_not_hide_the_others(server: ForkServer, place: Path, two: Path) -> None:
    for name in ("damaged", "begun", "whole"):
        shutil.copytree(two / "second", place / "runs" / name)
    (place / "runs" / "damaged" / "metrics.jsonl").write_text("no event\n{}\n", encoding="utf-8")
    for name in ("checkpoints", "averaged"):
        shutil.rmtree(place / "runs" / "begun" / name)
    (place / "runs" / "begun" / "metrics.jsonl").unlink()
    done = server.run("runs", cwd=place)
    wanted = [["runs/begun", "step 0", "unfinished"], ["runs/whole", "step 24", "finished"]]
    assert [line.split("\t")[:3] for line in done.stdout.splitlines()] == wanted
    assert done.stderr.startswith("warning: runs/damaged: ") and "metrics.jsonl:1: not an event" in done.stderr
    assert "no checkpoint yet" in server.run("runs", "show", "runs/begun", cwd=place).stdout


def test_time_goes_on_with_the_run_and_pauses_do_not_count(server: ForkServer, place: Path) -> None:
    command = [*TINY, "--out", "run"]
    assert server.run(*command, "training.steps=8", cwd=place).status == 0
    before = json.loads(server.run("runs", "show", "run", "--json", cwd=place).stdout)["seconds"]
    assert server.run(*command, "training.steps=16", cwd=place).status == 0
    assert 0 < before < json.loads(server.run("runs", "show", "run", "--json", cwd=place).stdout)["seconds"]


def test_compare_tells_what_differs_and_the_scores_side_by_side(server: ForkServer, two: Path) -> None:
    done = server.run("runs", "compare", "first", "second", cwd=two)
    assert done.status == 0 and done.stderr == ""
    rows = {line.split("  ")[0]: line.split()[-2:] for line in done.stdout.splitlines()[1:]}
    assert done.stdout.split()[:2] == ["first", "second"]
    assert rows["network.d_ff"] == ["32", "64"] and rows["training.learning_rate"] == ["3.0", "0.005"]
    assert rows["training.average"] == ["0", "2"] and "network.d_model" not in rows and "name" not in rows
    ends = [events(two / name, "end")[0]["test_nll"] for name in ("first", "second")]
    assert rows["test nll"] == [f"{value:.2f}" for value in ends]
    assert "test loss" not in rows and rows["step"] == ["16", "24"]
    told = json.loads(server.run("runs", "compare", "first", "second", "first", "--json", cwd=two).stdout)
    assert told["differences"]["network.d_ff"] == ["32", "64", "32"] and len(told["runs"]) == 3


def test_plot_draws_every_curve_of_every_run(server: ForkServer, place: Path, two: Path) -> None:
    pytest.importorskip("matplotlib")
    names = [two / "first", two / "second"]
    for kind in ("svg", "png", "html"):
        done = server.run("runs", "plot", *names, "--out", f"c.{kind}", cwd=place)
        assert (done.status, done.stdout) == (0, "") and done.stderr.endswith(f"wrote c.{kind}\n"), done.stderr
    assert (place / "c.png").read_bytes().startswith(b"\x89PNG\r\n")
    root = ET.fromstring((place / "c.svg").read_text(encoding="utf-8"))
    texts = {"".join(one.itertext()) for one in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {str(two / "first"), str(two / "second"), "validation chrf", "learning rate", "step"} <= texts
    paths = [(one.attrib.get("style", ""), one.attrib["d"]) for one in root.iter("{http://www.w3.org/2000/svg}path")]
    lines = [line for style, line in paths if "stroke: #0072b2" in style and "stroke-width: 1.6" in style]
    points = max(line.replace("M", "L").count("L") for line in lines)
    assert points == len(events(two / "first", "valid"))  # 16 validations of the first, in its colour
    page = (place / "c.html").read_text(encoding="utf-8")
    assert "<script" not in page and "<svg" in page and "http-equiv" in page


def test_what_runs_refuses(server: ForkServer, two: Path) -> None:
    refusals = {
        "runs compare first": "takes two or more run folders: got 1",
        "runs plot first": "takes run folders and --out FILE",
        "runs show first --out x.svg": "--out is an option of `atento runs plot`",
        "runs plot first --out x.pdf": "--out must end in .svg, .png or .html",
        "runs plot first --out none/x.svg": "there is no folder none",
        "runs plot none --out x.svg": "none is not a run",
        "runs show frist": "is not a run; did you mean 'first'?",
    }
    each_refused(server, two, refusals)


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


def test_a_failing_tracker_is_left_out_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
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


def sampled(task: str, folder: Path, share: str = "1", **changes: Any) -> Path:
    often = dict.fromkeys(("validate_every", "checkpoint_every", "log_every"), 4) | {"learning_rate": 1e-2}
    recipe = RECIPE | {"task": task, "tokenizer": {"kind": "word", "vocab_size": 400}, "metrics": [], "decoding": {}}
    recipe["training"] = RECIPE["training"] | often | {"steps": 8, "batch_tokens": 128, "samples": 2}
    recipe["network"] = {"d_model": 16, "d_ff": 32, "n_heads": 2, "n_layers": 1, "dropout": 0.1}
    return atento.train(recipe, changes, out=folder, threads=1, share=Fraction(share)).folder


def written_again(task: str, folder: Path, sample: dict[str, Any]) -> str:
    """What the checkpoint of the last validation writes for the input of a sample."""
    model = atento.load(last(folder), precision="float32")
    if task == "translation":
        return str(model.translate(sample["input"]))
    if task == "language-modeling":
        return str(model.generate(sample["input"], max_new_tokens=len(model.tokenizer.encode(sample["reference"]))))
    return model.fill(sample["input"], top=1)[0].text


@pytest.mark.parametrize("task", ["translation", "language-modeling", "masked-language-modeling", "span-corruption"])
def test_a_sample_is_what_the_saved_model_writes(task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = sampled(task, tmp_path / "run")
    shown = events(run, "sample")
    assert [(event["step"], event["number"]) for event in shown] == [(4, 1), (4, 2), (8, 1), (8, 2)]
    assert shown[0]["input"] == shown[2]["input"] and shown[0]["reference"] == shown[2]["reference"]
    for sample in shown[2:]:
        assert written_again(task, run, sample) == sample["output"]
    log = (run / "train.log").read_text(encoding="utf-8")
    assert log.count(": sample\n") == 4 and f"\n  reference {shown[0]['reference']}" in log


def test_samples_resume_and_change_no_weight(tmp_path: Path) -> None:
    whole = sampled("translation", tmp_path / "whole")
    sampled("translation", tmp_path / "parts", "1/2")
    parts = sampled("translation", tmp_path / "parts")
    assert differences(parts, whole) == [] and events(parts, "sample") == events(whole, "sample")
    without = sampled("translation", tmp_path / "without", **{"training.samples": 0})
    assert events(without, "sample") == []
    assert tensors(last(without) / "model.safetensors") == tensors(last(whole) / "model.safetensors")


def test_what_samples_cannot_show_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A word that each output must have, longer than a sample may be; a task that writes nothing."""
    words = {"decoding.required_words": ["a" * 30], "decoding.beam": 2, "tokenizer.kind": "character"}
    run = sampled("language-modeling", tmp_path / "run", **words)
    assert capsys.readouterr().err.count("no samples: `prefix` and `required_words` take") == 2
    assert events(run, "sample") == [] and events(run, "end")
    recipe = {"task": "tagging", "data": {"train": {"world": "train", "labels": "pos"}}, "training": {"samples": 2}}
    assert any("training.samples has no effect: this task writes no text" in w for w in load_recipe(recipe).warnings)
