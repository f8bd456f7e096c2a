"""Fine-tuning: a run that starts from a trained model, and what of the model and the recipe it goes by."""

import json
import shutil
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import atento
from conftest import ForkServer, refused
from runs import differences, last, tensors

pytestmark = pytest.mark.integration

TUNE = ["train", "tune.yaml", "--threads", "1"]
RECIPE = """
task: translation
data: {train: {file: test.tsv, source: 0, target: 1}, valid: {file: valid.tsv, source: 0, target: 1}}
init: model
network: {dropout: 0.2}
training: {steps: 6, batch_tokens: 60, warmup: 2, precision: float32, validate_every: 3, checkpoint_every: 2}
decoding: {beam: 1, max_new_tokens: 4}
metrics: [chrf]
"""


@pytest.fixture
def tuning(here: Path) -> Path:
    """A recipe beside the model it starts from."""
    (here / "tune.yaml").write_text(RECIPE, encoding="utf-8", newline="\n")
    atento.load(here / "run").save(here / "model")
    return here


def test_it_starts_with_the_models_weights_tokenizer_and_sizes(server: ForkServer, tuning: Path) -> None:
    """With a learning rate of nothing, the weights after a step are the model's own."""
    still = ["training.learning_rate=0", "training.steps=1"]
    for number, init in enumerate(("model", "run", str(tuning / "model"))):
        done = server.run(*TUNE, *still, f"init={init}", "--out", f"still-{number}", cwd=tuning)
        assert done.status == 0 and "warning" not in done.stderr, done.stderr
        assert tensors(last(tuning / f"still-{number}") / "model.safetensors") == tensors(
            tuning / "model" / "model.safetensors"
        )
    config = json.loads((last(tuning / "still-0") / "config.json").read_text(encoding="utf-8"))["network"]
    before = json.loads((tuning / "model" / "config.json").read_text(encoding="utf-8"))["network"]
    assert config == before | {"dropout": 0.2}
    tokenizer = (tuning / "still-0" / "tokenizer" / "tokenizer.json").read_bytes()
    assert tokenizer == (tuning / "model" / "tokenizer.json").read_bytes()


def test_card_and_licence_of_the_model_go_with_what_is_trained_from_it(server: ForkServer, tuning: Path) -> None:
    (tuning / "model" / "MANIFEST.json").unlink()  # the folder is another's, with words of its own
    (tuning / "model" / "README.md").write_text("# Theirs\n\nOnly for reading.\n", encoding="utf-8")
    (tuning / "model" / "LICENSE").write_text("Their terms.\n", encoding="utf-8")
    assert server.run(*TUNE, "training.steps=2", "--out", "tuned", cwd=tuning).status == 0
    assert server.run(*TUNE, "training.steps=4", "--out", "tuned", cwd=tuning).status == 0  # the checkpoint's are kept
    out = atento.load(tuning / "tuned").save(tuning / "saved")
    assert (out / "LICENSE").read_text(encoding="utf-8") == "Their terms.\n"
    card = (out / "README.md").read_text(encoding="utf-8")
    assert card.startswith("# Theirs\n\nOnly for reading.\n") and "Trained with Atento" in card


def test_it_goes_on_without_the_model_it_started_from(server: ForkServer, tuning: Path) -> None:
    """Killed, and the model gone or another: once there is a checkpoint, the run is its own."""
    assert server.run(*TUNE, "--out", "whole", cwd=tuning).status == 0
    at = {"module": "atento.training.loop", "function": "learning_rate", "number": signal.SIGKILL}
    assert server.run(*TUNE, "--out", "run-2", cwd=tuning, fault="signal_in_call", call=2, **at).status == -9
    assert server.run(*TUNE, "--out", "run-2", cwd=tuning, fault="signal_in_call", call=4, **at).status == -9
    shutil.rmtree(tuning / "model")
    done = server.run(*TUNE, "--out", "run-2", cwd=tuning)
    assert done.status == 0, done.stderr
    assert differences(tuning / "run-2", tuning / "whole") == []
    assert "already finished" in server.run(*TUNE, "--out", "run-2", cwd=tuning).stderr
    refused(server.run(*TUNE, "--out", "new", cwd=tuning), "no model at model")


def test_what_the_model_brings_need_not_be_said(server: ForkServer, tuning: Path) -> None:
    said = ["network.d_model=64", "tokenizer.vocab_size=999", "network.dropout=0.3"]
    done = server.run("config", "check", "tune.yaml", *said, cwd=tuning)
    assert done.status == 0
    assert sorted(done.stderr.splitlines()) == [
        f"warning: command line: {key} has no effect: init names a trained model, which brings its own"
        for key in ("network.d_model", "tokenizer.vocab_size")
    ]


def test_a_model_that_cannot_be_started_from(server: ForkServer, tuning: Path) -> None:
    def broken(name: str) -> Path:
        shutil.copytree(tuning / "model", tuning / name)
        (tuning / name / "MANIFEST.json").unlink()
        return tuning / name

    weights = load_file(tuning / "model" / "model.safetensors")
    save_file({n: v for n, v in weights.items() if n != "encoder.norm.bias"}, broken("less") / "model.safetensors")
    save_file(weights | {"encoder.norm.bias": torch.zeros(3)}, broken("other") / "model.safetensors")
    (broken("mute") / "tokenizer.json").unlink()
    broken("strange").joinpath("config.json").write_text('{"model_type": "brt"}', encoding="utf-8")
    for init, said in (
        ("less", "weights do not match config.json: 1 missing ['encoder.norm.bias'], 0 unexpected []"),
        ("other", "encoder.norm.bias has shape (3,), config.json says (16,)"),
        ("mute", "no tokenizer in "),
        ("strange", "model_type 'brt' is not known here; did you mean 'bert'"),
        ("tune.yaml", "tune.yaml is a file; a model is a folder"),
        ("none", "no model at none: give a run folder, a model folder or a hub name (owner/name)"),
    ):
        refused(server.run(*TUNE, f"init={init}", "--out", "x", cwd=tuning), said)
    assert server.run(*TUNE, "--out", "x", cwd=tuning).status == 0  # nothing of that stands in the way
