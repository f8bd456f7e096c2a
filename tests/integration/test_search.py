"""`atento search` as it is typed: killed and resumed, with trials that fail, and with wrong input."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import atento
from conftest import ForkServer, Running, refused
from http_service import until
from runs import differences

SPACE = "training.learning_rate: {low: 1e-3, high: 2e-2, log: true}\nnetwork.dropout: [0, 0.1]\n"
COMMAND = ["search", "tiny.yaml", "training.schedule=cosine", "training.log_every=1", "training.validate_every=4"]
COMMAND += ["--space", "space.yaml", "--threads", "1"]
HALVING = [*COMMAND, "--trials", "3", "--strategy", "halving"]


@pytest.fixture
def folder(place: Path) -> Path:
    (place / "space.yaml").write_text(SPACE, encoding="utf-8")
    return place


def results(search: Path) -> list[dict[str, Any]]:
    """The records of trials, without what the clock says."""
    lines = (search / "results.jsonl").read_text(encoding="utf-8").splitlines()
    return [{name: value for name, value in json.loads(line).items() if name != "seconds"} for line in lines]


def wait_for(running: Running, path: Path) -> None:
    """Wait until a file or a folder with content exists, or the command has ended."""
    deadline = time.monotonic() + 120
    while not (path.is_file() or (path.is_dir() and any(path.iterdir()))):
        assert running.status() is None and time.monotonic() < deadline, running.stderr.read_text(encoding="utf-8")
        time.sleep(0.01)


def owner(run: Path) -> int:
    return int(json.loads((run / ".lock").read_text(encoding="utf-8"))["pid"])


@pytest.mark.slow  # test_run_resume.py has the same of one run
def test_a_search_that_is_stopped_and_killed_ends_as_an_undisturbed_one(server: ForkServer, folder: Path) -> None:
    printed = json.loads(server.good(*HALVING, "--out", "calm", "--json", cwd=folder).stdout)
    running = server.start(*HALVING, "--out", "hit", cwd=folder)
    wait_for(running, folder / "hit" / "trial-0001" / "checkpoints")
    os.kill(running.pid, signal.SIGTERM)
    stopped = running.end()
    assert stopped.status == 75 and "run the same command to resume" in stopped.stderr and not stopped.stdout
    running = server.start(*HALVING, "--out", "hit", cwd=folder)
    wait_for(running, folder / "hit" / "trial-0002" / "checkpoints")
    trial = owner(folder / "hit" / "trial-0002")
    os.kill(running.pid, signal.SIGKILL)
    assert running.end().status == -signal.SIGKILL
    until(lambda: not Path(f"/proc/{trial}").exists(), 20)  # the trial ends with its search
    done = server.run(*HALVING, "--out", "hit", cwd=folder)
    assert done.status == 0 and "resuming hit" in done.stderr, done.stderr
    assert results(folder / "hit") == results(folder / "calm")
    (best,) = [record for record in results(folder / "calm") if record["state"] == "finished"]
    assert printed["best"]["trial"] == best["trial"] and printed["metric"] == "chrf"
    assert [record["step"] for record in results(folder / "calm") if record["state"] == "dropped"] == [8, 8]
    assert [rung["step"] for rung in best["rungs"]] == [8, 24]
    assert best["score"] == max(record["score"] for record in results(folder / "calm"))
    assert differences(folder / "hit" / best["trial"], folder / "calm" / best["trial"]) == []
    # a trial that paused at a rung is the run that its recipe gives: a cosine has its whole length
    done = server.run("train", "calm/best.yaml", "--out", "again", "--threads", "1", cwd=folder)
    assert done.status == 0 and differences(folder / "again", folder / "calm" / best["trial"]) == [], done.stderr
    page = (folder / "calm" / "search.html").read_text(encoding="utf-8")
    assert page.count("<circle") == 6 and all(f"trial-000{n}</td>" in page for n in (1, 2, 3))


def test_failed_trials_are_recorded_and_the_search_goes_on(server: ForkServer, folder: Path) -> None:
    """One is killed by the system, two have no example that is short enough."""
    (folder / "space.yaml").write_text("data.max_len: [64, 1]\ntraining.steps: [100000, 4]\n", encoding="utf-8")
    command = [*COMMAND, "network.d_model=12", "--strategy", "grid", "--trials", "4", "--out", "s"]
    running = server.start(*command, cwd=folder)
    wait_for(running, folder / "s" / "trial-0001" / "checkpoints")
    os.kill(owner(folder / "s" / "trial-0001"), signal.SIGKILL)
    done = running.end()
    assert done.status == 0, done.stderr
    records = results(folder / "s")
    assert [record["state"] for record in records] == ["failed", "finished", "failed", "failed"]
    assert "its process was ended by SIGKILL, which is what the system sends when memory" in records[0]["error"]
    assert all("data.train" in record["error"] or "max_len" in record["error"] for record in records[2:])
    assert "best: trial-0002, " in done.stderr and done.stdout.splitlines()[1].startswith("trial-0002")
    recorded = (folder / "s" / "results.jsonl").read_bytes()
    again = server.run(*command, cwd=folder)
    assert again.status == 0 and (folder / "s" / "results.jsonl").read_bytes() == recorded
    assert "trial 1 of" not in again.stderr  # nothing is run again
    refused(server.run("runs", "show", "s", cwd=folder), "s is not a run; it has ", "such as s/trial-0001")


@pytest.mark.slow
def test_a_recipe_that_refuses_values_together_fails_their_trial_alone(server: ForkServer, folder: Path) -> None:
    """The others have equal scores after two steps, which is counted; their loss decides."""
    (folder / "space.yaml").write_text("network.d_model: [8, 12]\nnetwork.n_heads: [2, 8]\n", encoding="utf-8")
    command = [*COMMAND, "training.steps=2", "metrics=[bleu]", "--strategy", "grid", "--out", "s"]
    done = server.good(*command, cwd=folder)
    states = {tuple(record["values"].values()): record["state"] for record in results(folder / "s")}
    assert states == {(8, 2): "finished", (8, 8): "finished", (12, 2): "finished", (12, 8): "failed"}
    assert "space.yaml:2:22" in results(folder / "s")[3]["error"]
    best = min((record for record in results(folder / "s")[:3]), key=lambda record: -record["ties"][-1])
    assert f"best: {best['trial']} (of 3 with this score, by the next ones), bleu" in done.stderr


def test_wrong_input_is_refused_before_any_work(server: ForkServer, folder: Path) -> None:
    def refuse(said: str, space: str, *more: str) -> None:
        (folder / "space.yaml").write_text(space, encoding="utf-8")
        refused(server.run(*COMMAND, "--out", "s", *more, cwd=folder), said)

    rate, trials = "training.learning_rate: {low: 1e-3, high: 1e-2}\n", ("--trials", "2")
    refuse("space.yaml:1:21: training.schedule must", "training.schedule: [cosin, linear]\n", *trials)
    high = "training.clip: {low: 1, high: 2}\ntraining.learning_rate: {low: 1, high: 20}\n"
    refuse("space.yaml:2:25: `training.learning_rate` must be at most 10", high, *trials)
    refuse("space.yaml:1:19: `n_heads` must divide `d_model`", "network.n_heads: [3, 5]\n", *trials)
    refuse("--trials is missing: strategy random needs the number of trials", rate)
    refuse("has no data.valid (and no data.held_out)", rate, *trials, "~data.valid")
    refuse("tpu", rate, *trials, "--device", "tpu")
    assert "trial-0001" not in {path.name for path in (folder / "s").iterdir()}
    (folder / "valid.tsv").write_text("one column\n", encoding="utf-8")
    refuse("valid.tsv:1", rate, *trials)
    assert not (folder / "s" / "results.jsonl").exists()
    refuse("s is another search: seed: 1 -> 2", rate, *trials, "--seed", "2")


def test_a_search_from_python(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its trial is a process as a user's is, not a fork."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    space = {"network.n_layers": [2]}
    found = atento.search("tiny.yaml", space, strategy="grid", overrides={"training.steps": 2}, out="s", threads=1)
    assert [trial.state for trial in found.trials] == ["finished"] and found.best is not None
    model = atento.load(found.folder / found.best.name)
    assert model.config["network"]["n_layers"] == found.best.values["network.n_layers"] == 2
    assert "network.n_layers" in str(found) and "<table>" in found._repr_html_()
