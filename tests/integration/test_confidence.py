"""Probabilities of classifiers: a temperature, thresholds by precision, silence, reliability; kept with the model."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import atento
from atento.base.errors import AtentoWarning, CapabilityError, DataError, ModelError, UsageError
from atento.base.splitmix import hashes, uniform
from atento.config.sections.confidence import ConfidenceConfig
from atento.data.records.splits import Split
from atento.evaluation import calibrate
from atento.inspection.figures.classifier_figures import reliability_svg, wilson
from atento.models.model_hash import model_files
from atento.runs.train import TrainedRun
from atento.tasks.calibrating import _steps, fit_confidence, fitted_temperature
from conftest import ForkServer, refused
from failing import fails
from test_classification import NAMES, WORDS, recipe

NETWORK = {"preset": "bert-tiny", "n_layers": 1, "d_model": 32, "d_ff": 64, "n_heads": 2, "dropout": 0.0, "max_len": 32}


def noisy(count: int, seed: int) -> list[tuple[str, str]]:
    """Texts whose labels are wrong in a third of the cases, but for those of the first word of each label."""
    texts = []
    for number, draw in enumerate(np.random.default_rng(seed).random(count).tolist()):
        kind, place = number % 3, (number // 3) % 3
        texts.append((f"eu vejo {WORDS[kind][place]}", NAMES[(kind + (place > 0 and draw < 1 / 3)) % 3]))
    return texts


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    data = {"train": noisy(90, 1), "valid": noisy(200, 2)}
    sources: dict[str, Any] = {name: {"memory": name} for name in data}
    out = tmp_path_factory.mktemp("confidence") / "run"
    return atento.train(recipe(sources, NETWORK, steps=60, baseline=False), data=data, out=out, threads=1)


def test_the_temperature_is_that_of_the_smallest_loss() -> None:
    scores = 4 * torch.randn(300, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    marks = np.eye(4, dtype=bool)[torch.distributions.Categorical(logits=scores / 2.5).sample()]
    found = fitted_temperature(scores.numpy(), marks, several=False)
    grid = np.exp(np.linspace(-2, 2, 4001))
    soft = (300 * torch.from_numpy(marks).double() + 1) / 304  # each label once more
    losses = [float(torch.nn.functional.cross_entropy(scores / t, soft)) for t in grid]
    assert found == pytest.approx(float(grid[np.argmin(losses)]), rel=2e-3) and found == pytest.approx(2.5, rel=0.3)
    sets = torch.bernoulli(torch.sigmoid(scores / 0.5)).numpy().astype(bool)
    of_sets = fitted_temperature(scores.numpy(), sets, several=True)
    entropy = torch.nn.functional.binary_cross_entropy_with_logits
    losses = [float(entropy(scores / t, (300 * torch.from_numpy(sets).double() + 1) / 302)) for t in grid]
    assert of_sets == pytest.approx(float(grid[int(np.argmin(losses))]), rel=2e-3)


@pytest.mark.parametrize("margin", [30.0, 3.0, 0.05])
def test_labels_without_a_mistake_are_no_certainty(margin: float) -> None:
    """Answers have (n + 1) / (n + 2) of two labels; scores too near for a temperature leave probabilities alone."""
    marks = np.eye(2, dtype=bool)[np.arange(200) % 2]
    found = fitted_temperature(margin * marks, marks, several=False)
    share = 1 / (1 + math.exp(-margin / found))
    assert share == pytest.approx(201 / 202, abs=1e-6) if margin > 1 else found == pytest.approx(0.05)


def test_what_says_little_of_probabilities_is_said(run: TrainedRun) -> None:
    model = atento.load(run.folder)
    right = [(text, model.classify(text).name) for text, _ in noisy(60, 9)]
    found = fit_confidence(model, split_of(right))
    assert found.config.temperature > 0.06 and any("all of 60 predicted labels are right" in x for x in found.doubts())
    with pytest.warns(AtentoWarning, match="`abstain` keeps every text, also one of another kind"):
        calibrate(model, right)
    assert not fit_confidence(model, split_of(noisy(60, 9))).doubts()


def test_a_threshold_is_the_lowest_of_a_precision_and_leaves_out_answers_just_below() -> None:
    """Last two groups whose probabilities differ in the fifth digit: the lower one is wrong."""
    config = ConfidenceConfig(1.0, 100, (0.4, 0.7, 0.9), (0.6, 0.8, 1.0))
    assert [config.threshold(wanted) for wanted in (0.5, 0.6, 0.61, 0.81, 1.0)] == [0.4, 0.4, 0.7, 0.9, 0.9]
    assert ConfidenceConfig(1.0, 100, (0.4,), (0.6,)).threshold(0.61) is None
    answers = np.array([0.63218] * 20 + [0.63217] * 20 + [0.632174] * 5 + [0.6321836] * 5)
    thresholds, precisions = _steps(answers, np.array([True] * 20 + [False] * 25 + [True] * 5))
    threshold = ConfidenceConfig(1.0, 50, thresholds, precisions).threshold(1.0)
    assert precisions == (0.5, 1.0) and threshold is not None
    assert (answers >= threshold).tolist() == [True] * 20 + [False] * 25 + [True] * 5


def test_training_keeps_what_the_validation_data_say(run: TrainedRun, tmp_path: Path) -> None:
    kept = json.loads((run.folder / "confidence.json").read_text("utf-8"))
    model = atento.load(run.folder)
    assert kept["checkpoint"] == f"checkpoints/{model.path.name}" and kept["records"] == 200
    assert model.confidence.temperature == kept["temperature"] != 1
    texts = [text for text, _ in noisy(30, 4)]
    raw = atento.load(run.folder)
    raw.config["confidence"] = {}
    for label, other in zip(model.classify(texts), raw.classify(texts)):
        assert label.name == other.name and label.probability != other.probability
    for layout in ("atento", "huggingface"):
        assert atento.load(model.save(tmp_path / layout, layout=layout)).confidence == model.confidence
    found = fit_confidence(model, split_of(noisy(400, 5)))
    again = fit_confidence(model, split_of(noisy(400, 5)), temperature=1.0)
    assert again.before.value == again.after.value and found.after.value <= found.before.value + 0.02


def split_of(records: list[tuple[str, str]]) -> Any:
    return Split(dict(zip(("text", "label"), map(list, zip(*records)))), "")


def test_a_model_is_silent_where_not_precise_and_another_by_its_temperature(run: TrainedRun, tmp_path: Path) -> None:
    model = atento.load(run.folder)
    texts = [text for text, _ in noisy(90, 6)]
    answered = model.classify(texts, abstain=0.95)
    sure = {text for text, label in zip(texts, answered) if label is not None}
    assert sure and sure <= {f"eu vejo {words[0]}" for words in WORDS}  # the words whose labels are always right
    assert model.classify("eu vejo cão", abstain=0.95) is None
    assert [label.name for label in answered if label] == [model.classify(text).name for text in texts if text in sure]
    assert None not in model.classify(texts, abstain=0.3)
    model.config["confidence"] = {"temperature": 1.0, "records": 200, "thresholds": [0.4], "precisions": [0.8]}
    assert model.classify(texts[:3], abstain=0.9) == [None] * 3  # it never was that precise
    folder = shutil.copytree(run.folder, tmp_path / "run")
    before = model_files(str(folder))
    assert model_files(str(folder)) == before
    kept = json.loads((folder / "confidence.json").read_text("utf-8"))
    (folder / "confidence.json").write_text(json.dumps(kept | {"temperature": 3.0}), encoding="utf-8")
    assert model_files(str(folder))[1] != before[1]


def test_the_most_probable_label_alone_is_sure_and_the_service_leaves_out_others(run: TrainedRun) -> None:
    """Below a half several labels may pass a threshold; the precision that was measured is of the first."""
    verbs = pytest.importorskip("atento_serve.engine.verbs")
    model = atento.load(run.folder)
    model.config["confidence"] = {"temperature": 20.0, "records": 200, "thresholds": [0.2], "precisions": [0.9]}
    texts = [text for text, _ in noisy(9, 1)]
    for text, labels in zip(texts, verbs.values_of(model, "classify", texts, {"abstain": 0.9})):
        best = model.classify(text, abstain=0.9)
        assert best is not None and best.probability < 0.5 and [label["name"] for label in labels] == [best.name]
    model = atento.load(run.folder)
    certain = next(text for text, _ in noisy(9, 1) if model.classify(text, abstain=0.95))
    sure, silent = verbs.values_of(model, "classify", [certain, "eu vejo cão"], {"abstain": 0.95})
    assert sure[0]["name"] == model.classify(certain).name and len(sure) == 1 and silent == []
    ((best, *others),) = verbs.values_of(model, "classify", [certain], {"threshold": 0.5})
    assert best["name"] == sure[0]["name"] and not others


def test_labels_that_are_never_predicted_leave_a_run_without_a_temperature(tmp_path: Path) -> None:
    """Of several labels none may reach a half after few updates; the run ends, and says so."""
    rows = [{"text": text, "label": [label] * (n % 20 == 0)} for n, (text, label) in enumerate(noisy(400, 1))]
    data = {"train": rows[:200], "valid": rows[200:]}
    sources: dict[str, Any] = {name: {"memory": name} for name in data}
    settings = recipe(sources, NETWORK, steps=20, baseline=False) | {"task": "multi-label-classification"}
    log = (atento.train(settings, data=data, out=tmp_path / "run", threads=1).folder / "train.log").read_text("utf-8")
    assert "warning: probabilities are not calibrated: the model predicts no label for any record" in log
    assert atento.train(settings, data=data, out=tmp_path / "run").already_finished


def test_labels_of_several_are_left_out(run: TrainedRun, server: ForkServer, tmp_path: Path) -> None:
    data = [{"text": text, "label": [label]} for text, label in noisy(60, 1)]
    settings = recipe({"train": {"memory": "train"}}, steps=30) | {"task": "multi-label-classification"}
    atento.train(settings, data={"train": data}, out=tmp_path / "run", threads=1)
    model = atento.load(tmp_path / "run")
    fails(CapabilityError, "nothing is kept of", model.classify, "eu vejo gato", abstain=0.9)
    found = calibrate(model, data)
    assert found.config.records == 60 and model.confidence == found.config
    assert all(isinstance(one, list) for one in model.classify([record["text"] for record in data], abstain=0.9))
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, data)), encoding="utf-8")
    done = server.run("evaluate", str(tmp_path / "run"), "data.jsonl", "--report", cwd=tmp_path)
    assert "precision     recall         f1    support" in done.stdout and "micro average" in done.stdout, done.stderr


def test_the_commands(run: TrainedRun, server: ForkServer, tmp_path: Path) -> None:
    model = atento.load(run.folder).save(tmp_path / "model")
    config = json.loads((model / "config.json").read_text("utf-8"))
    certain = next(text for text, _ in noisy(9, 1) if atento.load(model).classify(text, abstain=0.95))
    done = server.run("classify", str(model), "--abstain", "0.95", cwd=tmp_path, stdin=f"{certain}\n\neu vejo cão\n")
    assert done.stdout.splitlines()[1:] == ["", ""] and done.stdout.splitlines()[0].count("\t") == 1
    done = server.run("classify", str(model), "--abstain", "0.95", "--json", cwd=tmp_path, stdin="eu vejo cão\n")
    record = json.loads(done.stdout)
    assert record["silent"] is True and len(record["labels"]) == 3
    lines = (f"{text}\t{label}\n" for text, label in noisy(90, 3))
    (tmp_path / "more.tsv").write_text("".join(lines), encoding="utf-8")
    words = ["evaluate", str(model), "more.tsv", "--columns", "text=0,label=1"]
    done = server.run(*words, "--calibrate", "--reliability", "curve.svg", cwd=tmp_path)
    assert done.status == 0 and "confidence: temperature " in done.stdout and "precision 0.8: from prob" in done.stdout
    assert "calibration error" in (tmp_path / "curve.svg").read_text("utf-8")
    loaded = atento.load(model)
    assert loaded.confidence.records == 90 and config["confidence"]["records"] == 200
    facts = json.loads(server.run(*words, "--reliability", "curve.svg", "--json", cwd=tmp_path).stdout)["confidence"]
    assert facts["temperature"] == loaded.confidence.temperature and len(facts["calibration_error"]["interval"]) == 2
    assert atento.load(model).confidence == loaded.confidence  # measured alone
    (model / "confidence.json").unlink()
    (model / "confidence.json").symlink_to(tmp_path / "gone" / "confidence.json")  # not even root can write it
    done = server.run(*words, "--calibrate", "--reliability", "late.svg", cwd=tmp_path)
    assert done.status == 1 and "accuracy" in done.stdout and "confidence: temperature " in done.stdout
    assert "error: temperature and thresholds were not saved: " in done.stderr and (tmp_path / "late.svg").exists()
    (model / "confidence.json").unlink()
    done = server.run("evaluate", "micro-world-en-pt", "more.tsv", "--calibrate", cwd=tmp_path)
    assert done.status == 2 and "has no classification head" in done.stderr and done.stdout == ""
    for value, sentence in (("1", "`abstain` is a precision between 0 and 1: got 1.0"), ("0", "got 0.0")):
        refused(server.run("classify", str(model), "--abstain", value, cwd=tmp_path, stdin="eu vejo gato\n"), sentence)
    (model / "confidence.json").write_text("{", encoding="utf-8")
    done = server.run("classify", str(model), cwd=tmp_path, stdin="eu vejo gato\n")
    assert done.status == 1 and "confidence.json is damaged" in done.stderr and "delete it" in done.stderr


def test_what_cannot_be_fitted_is_refused(run: TrainedRun, tmp_path: Path) -> None:
    model = atento.load(run.folder)
    with pytest.raises(UsageError, match=r"`abstain` chooses the threshold: got `threshold` 0.5 too"):
        model.classify("eu vejo gato", threshold=0.5, abstain=0.9)  # type: ignore[call-overload]
    fails(DataError, "a temperature is .* at least 20 records: got 3", calibrate, model, noisy(3, 1))
    (tmp_path / "few.tsv").write_text("text\tlabel\n" + "a\tfruta\n" * 30 + "b\tpedra\n", encoding="utf-8")
    fails(DataError, r"few.tsv:32: .*'pedra'; the model's labels are", calibrate, model, tmp_path / "few.tsv")
    for other in ("micro-world-en-pt", "micro-world-entities"):
        fails(CapabilityError, "and has no classification head", calibrate, atento.load(other), tmp_path / "few.tsv")
    model.config["confidence"] = {"temperature": 0}
    fails(ModelError, r"`confidence.temperature` must be above 0: got 0", model.classify, "eu vejo gato")


def test_the_picture_of_reliability() -> None:
    answers = 0.5 + uniform(hashes(400, 1)) / 2
    right = uniform(hashes(400, 2)) < answers
    drawing = reliability_svg(answers.tolist(), right.tolist(), "calibration error 0.010", "a & b")
    assert drawing.count("<rect") == 2 + 5 and "a &amp; b" in drawing  # paper, field, five ranges
    inside = (answers > 0.9).sum(), right[answers > 0.9].sum()
    assert f"0.9 to 1: {inside[1]} of {inside[0]} right" in drawing
    low, high = wilson(8, 10)
    assert (low, high) == pytest.approx((0.4901, 0.9433), abs=1e-3)  # by hand: 8 of 10, z = 1.96
