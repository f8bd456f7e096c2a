"""`atento runs`: list, show, compare and plot say what the folders hold, and name the checkpoint that is used (W7)."""

import json
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from atento.models.model_folder import find_model
from atento.storage.checkpoint import load_checkpoint, save_checkpoint
from atento.storage.checkpoint_list import newest
from conftest import ForkServer, each_refused
from runs import events

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


def state(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "state.json").read_text(encoding="utf-8"))
    return found


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
    assert record["in_use"]["score"] == state(find_model(run))["score"] and record["scores"]["chrf"] is not None
    for path in (run / "checkpoints").glob("step-*/state.json"):  # no validated one is left but the average
        shutil.rmtree(path.parent) if state(path.parent)["step"] != 24 else None
    kept = load_checkpoint(run / "checkpoints" / "step-00000024")
    shutil.rmtree(kept.path)
    parts = {"config": kept.config, "weights": kept.weights, "optimizer": {}, "run_id": kept.run_id}
    save_checkpoint(run / "checkpoints", 24, state={"score": -1.0}, **parts)
    assert find_model(run) == newest(run / "averaged")
    record = json.loads(server.run("runs", "show", "run", "--json", cwd=place).stdout)
    score = state(find_model(run))["score"]
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
    assert max(line.replace("M", "L").count("L") for line in lines) == len(
        events(two / "first", "valid")
    )  # 16 validations of the first, in its colour
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
