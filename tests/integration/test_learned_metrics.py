"""Learned metrics on the command line: what they print, read and refuse."""

import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner, Result

import atento
from atento import load
from atento.data.records.splits import Split
from atento.models.shipped import shipped_models
from atento.tasks.learned_metrics import learned_metric
from atento.tasks.split_evaluation import sources_of
from atento_cli.commands.score import register
from atento_cli.convert import comet_checkpoint
from atento_cli.convert.layouts import convert
from atento_cli.convert.unpickle import unpickle
from atento_world import write
from comet_folders import CASES, write_comet
from failing import fails
from test_convert import Evil

ENCODER = str(shipped_models()["micro-world-mlm"])
OUTPUTS = ["The cat is on the mat.", "Good day.", ""]
REFERENCES = ["The cat is sitting on the mat.", "Good day.", "Good day."]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, lines in {"out": OUTPUTS, "ref": REFERENCES, "other": REFERENCES[::-1], "short": ["Hi."]}.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    return tmp_path


@pytest.fixture(scope="module")
def comet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `theirs-NAME` and `NAME`, for comet and comet-kiwi."""
    folder = tmp_path_factory.mktemp("comet")
    with pytest.MonkeyPatch.context() as patch:
        for name, case in {"comet": "wmt22-comet-da", "comet-kiwi": "wmt22-cometkiwi-da"}.items():
            write_comet(folder / f"theirs-{name}", CASES[case])
            convert(folder / f"theirs-{name}", folder / name, "atento")
            in_this_process(patch)  # the second: a process less to wait for
    return folder


def in_this_process(patch: pytest.MonkeyPatch) -> None:
    """Read checkpoints here, in less time; those that are hostile are read by the other process."""
    patch.setattr(comet_checkpoint, "unpickle_into", unpickle)


def run(*arguments: str) -> Result:
    app = typer.Typer()

    @app.callback()
    def main() -> None:
        """Stands for the whole command line."""

    register(app)
    return CliRunner().invoke(app, ["score", *arguments])


def refused(*arguments: str) -> str:
    error = run(*arguments).exception
    assert isinstance(error, atento.AtentoError), error
    return str(error)


def test_bertscore_with_interval_gate_and_another_system(files: Path) -> None:
    line = run("bertscore", "out", "ref", "--model", ENCODER, "--interval").stdout
    assert line.startswith("BERTScore 0.")
    assert line.endswith(" model:micro-world-mlm|layer:2|idf:no|rescaled:no|nrefs:1\n")
    done = run("bertscore", "ref", "ref", "other", "--model", ENCODER, "--against", "out", "--json")
    record = json.loads(done.stdout)
    assert record["value"] == pytest.approx(1, abs=1e-6) and record["parts"]["count"] == 3
    assert record["against"]["value"] < 1 and record["settings"].endswith("nrefs:2")
    missed = run("bertscore", "out", "ref", "--model", ENCODER, "--idf", "--layer", "0", "--fail-under", "recall=0.9")
    assert missed.exit_code == 3 and "|layer:0|idf:yes|" in missed.stdout


def test_bad_inputs_are_one_sentence(files: Path) -> None:
    model = f"--model {ENCODER}"
    for line, said in {
        "bertscore out ref": "bertscore is computed by a model: give its folder, --model FOLDER",
        f"bertscore out {model}": "bertscore compares outputs with references: got none",
        f"bertscore out ref --source ref {model}": "bertscore does not read sources: got them",
        f"bertscore out short {model}": "line N of out must correspond to line N of short: got 3 and 1 lines",
        f"bertscore out ref {model} --language pt": "--language has no effect on bertscore",
        f"bertscore out ref {model} --layer 9": "`layer` must lie between -3 and 2: got 9",
        f"bleu out ref {model}": "--model has no effect on bleu",
        "bleu out": "bleu needs references: give their file behind that of the outputs",
    }.items():
        assert refused(*line.split()) == said
    assert refused("bertscore", "out", "ref", "--model", "nowhere").startswith("no model at nowhere")
    assert refused("bertscor", "out", "ref").startswith("unknown metric 'bertscor'; did you mean 'bertscore'?")


def test_comet_reads_sources_without_the_prefix_of_their_task_and_kiwi_no_references(files: Path, comet: Path) -> None:
    """A prefix tells the model what to do, and says nothing to a metric."""
    sources = ("--source", "other")
    line = run("comet", "out", "ref", *sources, "--model", str(comet / "comet"), "--against", "other").stdout
    assert line.startswith("COMET ") and line.splitlines()[0].endswith(" model:comet|nrefs:1")
    line = run("comet-kiwi", "out", *sources, "--model", str(comet / "comet-kiwi"), "--interval").stdout
    assert line.endswith("] model:comet-kiwi|nrefs:0\n")
    assert load(comet / "comet").embed("The cat.").shape == (16,)  # the folder is also one of the encoder
    split = Split({"source": ["translate: a cat", "sum: a dog", "translate to: it"]}, "")
    assert sources_of(split, ["translate", "translate: ", "sum: "]) == ["a cat", "a dog", " to: it"]
    assert sources_of(split, []) == split["source"] and sources_of(Split({"text": ["a"]}, ""), ["a"]) is None


def test_each_bad_input_of_comet_is_one_sentence(files: Path, comet: Path) -> None:
    ours, kiwi, theirs = (str(comet / name) for name in ("comet", "comet-kiwi", "theirs-comet"))
    sources, read = ("--source", "ref"), "comet out ref --source ref"
    alone = "comet-kiwi compares outputs with their sources alone, without references: got references"
    none = f"{ENCODER} has no head of comet: metric.json is missing, which `atento convert` writes"
    unread = f"{theirs} is as COMET writes it: `atento convert {theirs} --to atento --out DIR` reads it"
    short = "line N of short must correspond to line N of ref: got 1 and 3 lines"
    unsaid = "comet reads the source of each output: got none (`sources`, or --source FILE)"
    for line, said in {
        f"comet out ref --model {ours}": unsaid,
        f"comet-kiwi out ref --source ref --model {kiwi}": alone,
        f"{read} --model {ours} ref": "comet takes one reference for each output: got 2 sets of references",
        read: "comet is computed by a model: give its folder, --model FOLDER",
        f"comet out ref --source short --model {ours}": short,
        f"{read} --model {ENCODER}": none,
        f"{read} --model {kiwi}": f"{kiwi} has the head of comet-kiwi, not of comet",
        f"{read} --model {theirs}": unread,
        f"{read} --model {ours} --idf": "--idf has no effect on comet",
    }.items():
        assert refused(*line.split()) == said
    settings, lacking = json.loads((comet / "comet" / "metric.json").read_text("utf-8")), files / "lacking"
    lacking.mkdir()
    for key in settings:
        (lacking / "metric.json").write_text(json.dumps({name: settings[name] for name in settings if name != key}))
        said = f"{lacking}/metric.json is damaged: it lacks the key {key!r}"
        assert refused("comet", "out", "ref", *sources, "--model", str(lacking)) == said


def refused_checkpoint(folder: Path) -> str:
    with pytest.raises(atento.AtentoError) as caught:
        convert(folder, folder.parent / "never", "atento")
    assert not (folder.parent / "never").exists()
    return str(caught.value)


def test_a_checkpoint_that_is_not_comets_is_refused(files: Path) -> None:
    write_comet(files / "theirs", CASES["wmt22-comet-da"])
    checkpoint, hparams = files / "theirs" / "checkpoints" / "model.ckpt", files / "theirs" / "hparams.yaml"
    content = torch.load(checkpoint, weights_only=True)
    content["state_dict"].pop("layerwise_attention.gamma")
    torch.save(content, checkpoint)
    with pytest.MonkeyPatch.context() as patch:
        in_this_process(patch)
        lacks_gamma = refused_checkpoint(files / "theirs")
    no_metric, gamma = "the checkpoint is not that of a metric of COMET", "layerwise_attention.gamma"
    assert lacks_gamma == f"{files}/theirs: {no_metric}: it lacks the key {gamma!r}"
    torch.save({"state_dict": {}, "callbacks": Evil(files / "mark")}, checkpoint)
    unread = "model.ckpt cannot be read: it holds more than weights, and is not loaded"
    assert refused_checkpoint(files / "theirs") == f"{files}/theirs: {unread}" and not (files / "mark").exists()
    (files / "theirs" / "config.json").unlink()
    hparams.write_text(hparams.read_text().replace(f"pretrained_model: {files}/theirs", "pretrained_model: xlm-none"))
    left = "COMET leaves out the encoder's files: put config.json and the tokenizer of xlm-none beside hparams.yaml"
    assert refused_checkpoint(files / "theirs") == f"{files}/theirs: {left}"
    checkpoint.unlink()
    assert "checkpoints/ must hold the one checkpoint (.ckpt)" in refused_checkpoint(files / "theirs")
    hparams.write_text("class_identifier: ranking_metric\n")
    known = "read are regression_metric and unified_metric (mt, src) on XLM-RoBERTa"
    assert refused_checkpoint(files / "theirs") == f"{hparams}: {known}: got ['ranking_metric', None, None]"


def test_objects_of_lightning_are_left_out(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older checkpoints name its classes, which need not be installed: nothing of them is imported."""
    write_comet(files / "theirs", CASES["wmt22-comet-da"])
    checkpoint = files / "theirs" / "checkpoints" / "model.ckpt"
    module = types.ModuleType("pytorch_lightning.callbacks")
    kept = type("ModelCheckpoint", (), {"__module__": module.__name__})
    module.ModelCheckpoint = kept  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pytorch_lightning", types.ModuleType("pytorch_lightning"))
        patch.setitem(sys.modules, module.__name__, module)
        one = kept()
        one.best = 3
        torch.save(torch.load(checkpoint, weights_only=True) | {"callbacks": {kept: one}}, checkpoint)
    in_this_process(monkeypatch)
    convert(files / "theirs", files / "ours", "atento")
    assert (files / "ours" / "metric.safetensors").exists()


def test_it_validates_and_evaluates(files: Path, comet: Path) -> None:
    """A recipe names the folder behind a colon; references and sources are those of the records."""
    metrics = [f"comet:{comet / 'comet'}", f"comet-kiwi:{comet / 'comet-kiwi'}"]
    splits = {"train": "train", "valid": "valid", "test": "combinations"}
    recipe: dict[str, Any] = {
        "task": "translation",
        "data": {name: [{"world": world, "count": 8}] for name, world in splits.items()},
        "network": {"d_model": 8, "d_ff": 8, "n_heads": 1, "n_layers": 1},
        "tokenizer": {"vocab_size": 300},
        "training": {"steps": 1, "validate_every": 1},
        "decoding": {"beam": 1, "max_new_tokens": 3},
        "metrics": metrics,
    }
    run = atento.train(recipe, out="run")
    assert run.test is not None and run.best is not None
    pairs = [(one.source, one.target) for one in write("combinations", 8)]
    scores = atento.evaluate(run.folder, pairs, metrics=metrics, beam=1, max_new_tokens=3)
    expected = {name: run.test[name] for name in metrics}
    assert {name: score.value for name, score in scores.items()} == pytest.approx(expected, abs=1e-5)
    for wrong, sentence in {
        "comet": "recipe: comet is computed by a model: name its folder, comet:FOLDER",
        "comet:": "recipe: comet:FOLDER names a model folder: got none",
        "bertscore:nowhere": "no model at nowhere",
    }.items():
        fails(atento.AtentoError, sentence, atento.train, recipe | {"metrics": [wrong]}, out="never")
    with pytest.raises(atento.AtentoError, match="comet:nowhere does not score classification"):
        atento.evaluate(shipped_models()["micro-world-tense"], [("I see.", "past")], metrics="comet:nowhere")


def test_it_chooses_among_candidates(comet: Path) -> None:
    """Minimum Bayes risk by each learned metric; comet-kiwi ranks an n-best list."""
    model, text = load("micro-world-en-pt"), "I see a cat."
    beam: Any = {"candidates": 4, "candidates_from": "beam"}
    kept: list[str] = []
    model.translate(text, mbr=lambda ours, theirs: (kept.extend(ours), np.zeros((len(ours), len(theirs))))[1], **beam)
    scores = learned_metric("comet-kiwi", comet / "comet-kiwi", device="cpu")(kept, sources=[text] * 4).per_sentence()
    assert model.translate(text, mbr=f"comet-kiwi:{comet / 'comet-kiwi'}", **beam) == kept[int(np.argmax(scores))]
    regression = learned_metric("comet", comet / "comet", device="cpu")
    expected = {one: regression([one] * 4, kept, sources=[text] * 4).value for one in kept}
    written = model.translations([text, "I see a dog."], mbr=f"comet:{comet / 'comet'}", **beam)[0][0]
    assert written.text == max(expected, key=expected.__getitem__)
    assert written.hypothesis.score == pytest.approx(expected[written.text], abs=1e-5)
    assert model.translate(text, mbr=f"bertscore:{ENCODER}", **beam) in kept
    fails(atento.AtentoError, r"`mbr` comet:MODEL names a model folder: got none", model.translate, text, mbr="comet")
    with pytest.raises(atento.AtentoError, match=r"'aggregated'|aggregated"):
        model.translate(text, mbr=f"bertscore:{ENCODER}", mbr_method="aggregated", **beam)
