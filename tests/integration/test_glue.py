"""`atento glue` through real files in the published layouts: all tasks, submission files, missing tasks, a kill."""

import csv
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from scipy import stats
from sklearn import metrics

import atento
from conftest import ForkServer, refused
from glue_data import write_glue, write_portuguese
from released_folders import write_released
from runs import events

FEW = ("training.steps=2", "training.precision=float32", "data.max_len=40", "--threads", "1")


@pytest.fixture(scope="module")
def folder(scratch: Path) -> Path:
    """The data of both tables and a BERT with random weights."""
    here = scratch / "glue"
    write_glue(here / "data")
    write_portuguese(here / "pt")
    write_released("bert", here / "bert")
    return here


@pytest.fixture(scope="module")
def result(folder: Path, server: ForkServer) -> dict[str, Any]:
    """All nine tasks, a few updates each."""
    done = server.good("glue", "data", "bert", *FEW, "--json", cwd=folder)
    assert "predictions for test files: runs/glue-bert/submission" in done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def rows(path: Path) -> list[dict[str, str]]:
    """A table with a header, by a reader of its own."""
    with path.open(encoding="utf-8-sig", newline="") as stream:
        return list(csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))


def right(folder: Path, name: str, file: str, column: str) -> list[str]:
    return [row[column] for row in rows(folder / "data" / name / file)]


def written(folder: Path, task: str, part: str) -> list[Any]:
    outputs = json.loads((folder / "runs" / "glue-bert" / task / "outputs" / f"{part}.json").read_text("utf-8"))
    return list(outputs["outputs"])


def test_each_score_is_that_of_scikit_learn_and_scipy(folder: Path, result: dict[str, Any]) -> None:
    every = [score for task in result["tasks"].values() for score in task["scores"]]
    scores = {(score["part"], score["metric"]): score["value"] / 100 for score in every}
    assert len(scores) == 13 and " ".join(result["tasks"]) == "CoLA SST-2 MRPC STS-B QQP MNLI QNLI RTE WNLI"
    cola = [line.split("\t")[1] for line in (folder / "data/CoLA/dev.tsv").read_text("utf-8").splitlines()]
    assert scores["CoLA", "Matthews"] == pytest.approx(metrics.matthews_corrcoef(cola, written(folder, "CoLA", "CoLA")))
    with_f1 = {"MRPC": "Quality", "QQP": "is_duplicate"}
    for name, column in (dict.fromkeys(("SST-2", "QNLI", "RTE", "WNLI"), "label") | with_f1).items():
        labels, outputs = right(folder, name, "dev.tsv", column), written(folder, name, name)
        assert scores[name, "accuracy"] == metrics.accuracy_score(labels, outputs), name
        if name in with_f1:
            assert scores[name, "F1"] == pytest.approx(metrics.f1_score(labels, outputs, pos_label="1")), name
    for part, kind in (("MNLI-m", "matched"), ("MNLI-mm", "mismatched")):
        labels = right(folder, "MNLI", f"dev_{kind}.tsv", "gold_label")
        assert scores[part, "accuracy"] == metrics.accuracy_score(labels, written(folder, "MNLI", part))
    numbers = list(map(float, right(folder, "STS-B", "dev.tsv", "score")))
    outputs = written(folder, "STS-B", "STS-B")
    assert scores["STS-B", "Pearson"] == pytest.approx(stats.pearsonr(numbers, outputs).statistic)
    assert scores["STS-B", "Spearman"] == pytest.approx(stats.spearmanr(numbers, outputs).statistic)
    by_task: dict[str, list[float]] = {}
    for (part, _), value in scores.items():
        by_task.setdefault(part.split("-m")[0], []).append(value)
    means = {name: sum(values) / len(values) for name, values in by_task.items()}
    assert result["average"] == pytest.approx(100 * sum(means.values()) / 9)
    del means["WNLI"]
    assert result["average_without_wnli"] == pytest.approx(100 * sum(means.values()) / 8)
    assert json.loads((folder / "runs/glue-bert/results.json").read_text("utf-8")) == result


def test_submission_files_are_the_labels_of_each_model(folder: Path, result: dict[str, Any]) -> None:
    runs = folder / "runs" / "glue-bert"
    names = ["AX", "CoLA", "MNLI-m", "MNLI-mm", "MRPC", "QNLI", "QQP", "RTE", "SST-2", "STS-B", "WNLI"]
    assert sorted(path.stem for path in (runs / "submission").iterdir()) == names
    assert len(result["submission"]) == 11
    for part, task, file, columns in (
        ("AX", "MNLI", "diagnostic/diagnostic.tsv", ("sentence1", "sentence2")),
        ("QQP", "QQP", "QQP/test.tsv", ("question1", "question2")),
        ("MNLI-mm", "MNLI", "MNLI/test_mismatched.tsv", ("sentence1", "sentence2")),
        ("MRPC", "MRPC", "MRPC/test.tsv", ("#1 String", "#2 String")),
    ):
        model, tests = atento.load(runs / task), rows(folder / "data" / file)
        labels = [label.name for label in model.classify([(row[columns[0]], row[columns[1]]) for row in tests])]
        predictions = rows(runs / "submission" / f"{part}.tsv")
        assert [row["prediction"] for row in predictions] == labels, part
        assert [row["index"] for row in predictions] == [str(number) for number in range(len(tests))], part
    labels = {row["prediction"] for row in rows(runs / "submission" / "MNLI-m.tsv")}
    assert labels <= {"contradiction", "entailment", "neutral"}
    assert all(0 <= float(row["prediction"]) <= 5 for row in rows(runs / "submission" / "STS-B.tsv"))


def test_finished_tasks_are_not_trained_again(folder: Path, result: dict[str, Any], server: ForkServer) -> None:
    glue = ("glue", "data", "bert", *FEW, "--tasks", "rte,wnli")
    before = (folder / "runs/glue-bert/RTE/metrics.jsonl").read_bytes()
    done = server.run(*glue, "--seeds", "1,5", cwd=folder)
    assert done.status == 0 and done.stderr.count("already finished: ") == 2
    assert (folder / "runs/glue-bert/RTE/metrics.jsonl").read_bytes() == before
    assert (folder / "runs/glue-bert/RTE-seed-5/run.json").is_file() and "± seeds" in done.stdout
    assert "average of 2 tasks" in done.stdout and "over 2 seeds" in done.stdout
    (folder / "moved").symlink_to(folder / "data")  # the same files in another place
    moved = server.run("glue", "moved", *glue[2:], "--fail-under", "RTE=0", cwd=folder)
    assert moved.status == 0 and moved.stderr.count("already finished: ") == 2
    missed = server.run(*glue, "--fail-under", "average=101", cwd=folder)
    assert missed.status == 3 and "gate missed: average" in missed.stderr and "average" in missed.stdout
    refused(server.run(*glue, "--fail-under", "cola=10", cwd=folder), "unknown name 'cola'")
    data = "data.train={file: data/RTE/dev.tsv, text: sentence1, pair: sentence2, label: label}"
    for change, key in (("init=other", "init.model"), ("init.model=other", "init.model"), (data, "data.train")):
        refused(server.run(*glue, change, cwd=folder), f"`{key}` follows from the DATA and MODEL")
    refused(server.run(*glue, "--seeds", "1,x", cwd=folder), "--seeds takes whole numbers with commas between them")
    refused(server.run(*glue[:3], "training.steps=3", "--tasks", "rte", cwd=folder), "is a run of another recipe")


def test_missing_tasks_are_said_to_be_missing(folder: Path, server: ForkServer) -> None:
    (folder / "two").mkdir()
    for name in ("RTE", "WNLI"):
        (folder / "two" / name.lower()).symlink_to(folder / "data" / name)
    done = server.run("glue", "two", "bert", *FEW, "--out", "two-runs", "--fail-under", "sst-2=1", cwd=folder)
    assert done.status == 3 and "gate missed: sst-2 nan" in done.stderr
    assert "CoLA: missing, there is no CoLA/train.tsv" in done.stdout and done.stdout.count("missing") == 7
    assert "average of 2 tasks" in done.stdout


def test_the_portuguese_table(folder: Path, server: ForkServer) -> None:
    """Every set but most of PLUE; WikiANN without its marks, FaQuAD by its dev file."""
    done = server.good("glue", "pt", "bert", *FEW, "--table", "pt", "--json", cwd=folder)
    result = json.loads(done.stdout)
    on = {name: task["scored_on"] for name, task in result["tasks"].items()}
    sets = "ASSIN-BR-RTE ASSIN-BR-STS ASSIN-PT-RTE ASSIN-PT-STS ASSIN-2-RTE ASSIN-2-STS STS-B-PT LeNER-Br WikiANN-PT"
    assert on == dict.fromkeys(sets.split(), "test") | dict.fromkeys(("FaQuAD", "PLUE-MNLI", "PLUE-RTE"), "dev")
    assert [score["metric"] for score in result["tasks"]["FaQuAD"]["scores"]] == ["F1", "exact match"]
    assert [len(result["tasks"][name]["scores"]) for name in ("LeNER-Br", "PLUE-MNLI", "ASSIN-2-RTE")] == [1, 2, 2]
    assert len(result["missing"]) == 7 and result["missing"]["PLUE-CoLA"] == "PLUE/CoLA/train.tsv"
    content = (folder / "runs/glue-pt-bert/ASSIN-2-RTE/outputs/ASSIN-2-RTE.json").read_text("utf-8")
    outputs = json.loads(content)["outputs"]
    labels = ["Entailment" if number % 2 == 0 else "None" for number in range(6)]
    accuracy, f1 = (score["value"] / 100 for score in result["tasks"]["ASSIN-2-RTE"]["scores"])
    assert accuracy == pytest.approx(metrics.accuracy_score(labels, outputs))
    assert f1 == pytest.approx(metrics.f1_score(labels, outputs, average="macro"))
    assert "the mark 'pt:' before every word is left out" in done.stderr


def test_training_data_are_held_out_where_there_is_no_other_labelled_file(folder: Path, server: ForkServer) -> None:
    (folder / "part" / "RTE").mkdir(parents=True)
    (folder / "part" / "RTE" / "train.tsv").write_bytes((folder / "data" / "RTE" / "train.tsv").read_bytes())
    done = server.run("glue", "part", "bert", *FEW, "--out", "part-runs", "--json", cwd=folder)
    assert done.status == 0 and "2 of 24 training examples held out for validation" in done.stderr
    task = json.loads(done.stdout)["tasks"]["RTE"]
    assert task["scored_on"] == "held out" and task["scores"][0]["examples"] == 2
    assert task["value"] == pytest.approx(100 * events(folder / "part-runs/RTE", "valid")[0]["accuracy"])


@pytest.mark.slow  # test_run_resume.py kills a run; the test above goes on with finished tasks
def test_a_killed_command_goes_on_with_the_run_it_was_in(folder: Path, server: ForkServer) -> None:
    glue = ("glue", "data", "bert", "training.steps=30", "training.checkpoint_every=5", "--tasks", "rte,wnli")
    straight = server.good(*glue, "--threads", "1", "--out", "straight", "--json", cwd=folder)
    running = server.start(*glue, "--threads", "1", "--out", "killed", "--json", cwd=folder)
    for _ in range(3000):
        if any((folder / "killed" / "WNLI" / "checkpoints").glob("step-*[05]/MANIFEST.json")):
            break
        time.sleep(0.01)
    os.kill(running.pid, signal.SIGKILL)
    running.end()
    assert not (folder / "killed" / "results.json").exists()
    again = server.run(*glue, "--threads", "1", "--out", "killed", "--json", cwd=folder)
    assert again.status == 0 and "already finished: killed/RTE" in again.stderr
    assert "resuming killed/WNLI from step" in again.stderr
    values = [json.loads(done.stdout)["tasks"]["WNLI"]["scores"] for done in (straight, again)]
    assert values[0] == values[1]
    weights = [atento.load(folder / name / "WNLI").network.state_dict() for name in ("straight", "killed")]
    assert all(value.equal(weights[1][name]) for name, value in weights[0].items())
