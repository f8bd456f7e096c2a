"""From the word MODEL to files: runs, folders, hub names offline."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.utils import filter_repo_objects

from atento.base.errors import CheckpointError, UsageError
from atento.models import model_hub
from atento.models.load import read_model
from atento.models.model_folder import find_model
from atento.models.write import write_model
from atento.storage.checkpoint import save_checkpoint
from failing import fails

NETWORK = {"architecture": "encoder-decoder", "d_model": 8, "n_layers": 1, "n_decoder_layers": None, "vocab_size": 9}
CONFIG: dict[str, Any] = {"model_type": "atento", "version": 2, "task": "translation", "name": "x", "network": NETWORK}
WEIGHTS = {"w": torch.arange(4.0)}
_MODULES = (("Transformer", ""), ("Pooling", "1_Pooling"), ("Dense", "2_Dense"))


def save(run: Path, step: int, score: float | None = None, folder: str = "checkpoints") -> Path:
    parts: dict[str, Any] = {"config": CONFIG, "weights": WEIGHTS, "optimizer": {}, "run_id": "r"}
    return save_checkpoint(run / folder, step, state={"score": score}, **parts)


def test_a_run_stands_for_its_best_checkpoint_else_its_last(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path / "plain", step)
        save(tmp_path / "scored", step, [1.0, 5.0, 2.0][step - 1])
    assert find_model(tmp_path / "plain").name == "step-00000003"
    assert find_model(str(tmp_path / "scored")).name == "step-00000002"
    for score, folder in ((None, "checkpoints"), (4.0, "checkpoints"), (5.0, "checkpoints"), (6.0, "averaged")):
        save(tmp_path / "scored", 3, score, "averaged")
        assert find_model(tmp_path / "scored").parent.name == folder
    save(tmp_path / "plain", 3, None, "averaged")
    assert find_model(tmp_path / "plain").parent.name == "checkpoints"
    found = read_model(tmp_path / "scored" / "checkpoints" / "step-00000001")
    assert found.path.name == "step-00000001" and torch.equal(found.weights["w"], WEIGHTS["w"])


def test_no_model_or_nothing_of_a_run_there_and_a_name_under_a_folder_is_a_path(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("x", encoding="utf-8")
    Path("empty").mkdir()
    for name, said in (
        ("file", "file is a file; a model is a folder"),
        ("nothing", r"no model at nothing: give a run folder, a model folder or a hub name \(owner/name\)"),
        ("./runs/nothing", "no model at runs/nothing"),
        ("/no/such/place", "no model at /no/such/place"),
        ("a/b/c", "no model at a/b/c"),
        ("n" * 300, "no model at nnnn.*: File name too long"),
        ("a\0b", "no model at a.*: embedded null byte"),
        ("", r"the name of the model is empty: give a run folder"),
        ("empty", r"empty is neither a run \(no checkpoints\) nor a model folder \(no config.json\)"),
    ):
        fails(UsageError, said, read_model, name)
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    fails(UsageError, r"the run .*run has no checkpoint yet", find_model, tmp_path / "run")
    (save(tmp_path / "run", 1) / "model.safetensors").write_bytes(b"")
    fails(CheckpointError, r"every checkpoint of the run .*run is damaged", find_model, tmp_path / "run")
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000001"]  # only looked at
    # A typo in the name of a run never goes to the hub; the message names the run that was meant
    monkeypatch.setattr("atento.models.model_folder.fetched", lambda *_: pytest.fail("asked the hub"))
    monkeypatch.chdir(tmp_path)
    save(Path("runs/en-pt"), 1)
    for name, said in (
        ("runs/en_pt", "no model at runs/en_pt: the folder runs has no en_pt; did you mean runs/en-pt?"),
        ("runs/zzz", "no model at runs/zzz: the folder runs has no zzz"),
        ("en-tp", "hub name (owner/name); did you mean runs/en-pt?"),
    ):
        with pytest.raises(UsageError) as error:
            find_model(name)
        assert str(error.value).endswith(said), str(error.value)
        assert error.value.__cause__ is None


OFFLINE = """
import sys
from atento.base.errors import AtentoError
from atento.models.load import read_model
for name in sys.argv[1:]:
    try:
        found = read_model(name)
        print("found", found.path.name, found.config["name"], found.weights["w"].tolist())
    except AtentoError as error:
        print(type(error).__name__, error)
"""


def write_hub_model_without_dense_weights(cache: Path) -> None:
    """In the hub's cache, a sentence-transformers model whose Dense module had no safetensors to fetch."""
    snapshot = cache / "snapshots" / ("0" * 40)
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text("0" * 40, encoding="utf-8")
    for module in ("1_Pooling", "2_Dense"):
        (snapshot / module).mkdir(parents=True)
    rows = [{"type": f"sentence_transformers.models.{name}", "path": path} for name, path in _MODULES]
    (snapshot / "modules.json").write_text(json.dumps(rows), encoding="utf-8")
    (snapshot / "config.json").write_text('{"model_type": "bert"}', encoding="utf-8")
    (snapshot / "model.safetensors").write_bytes(b"not read")
    (snapshot / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}', encoding="utf-8")
    (snapshot / "2_Dense" / "config.json").write_text("{}", encoding="utf-8")


def test_hub_names_offline_from_the_cache_or_refused(tmp_path: Path) -> None:
    """What was fetched before is read from the hub's cache, whose files are links; anything else is one sentence."""
    folder = write_model(tmp_path / "model", CONFIG, WEIGHTS, {"tokenizer.json": b"{}"})
    cache = tmp_path / "hub" / "models--someone--small"
    snapshot = cache / "snapshots" / ("0" * 40)
    for path in (snapshot, cache / "blobs", cache / "refs"):
        path.mkdir(parents=True)
    (cache / "refs" / "main").write_text("0" * 40, encoding="utf-8")
    for path in folder.iterdir():  # all of it, as another tool would fetch it, but for the card
        if path.name != "README.md":
            (cache / "blobs" / path.name).write_bytes(path.read_bytes())
            (snapshot / path.name).symlink_to(Path("../../blobs") / path.name)
    bare = tmp_path / "hub" / "models--someone--older"
    (bare / "refs").mkdir(parents=True)
    (bare / "refs" / "main").write_text("0" * 40, encoding="utf-8")
    (bare / "snapshots" / ("0" * 40)).mkdir(parents=True)
    (bare / "snapshots" / ("0" * 40) / "config.json").write_text('{"model_type": "bert"}', encoding="utf-8")
    write_hub_model_without_dense_weights(tmp_path / "hub" / "models--someone--dense")
    names = ["someone/small", "someone/older", "someone/dense", "nobody/nothing", "runs/a--b", "runs/.hidden"]
    names.append(f"x/{'y' * 200}")
    own = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", OFFLINE, *names]
    done = subprocess.run(command, env=own, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    lines = done.stdout.splitlines()
    assert lines[0] == f"found {'0' * 40} x [0.0, 1.0, 2.0, 3.0]", done.stderr
    offline = "it is not in the hub's cache, and the hub cannot be reached: you are offline"
    wrong = "it cannot be a hub name (owner/name) either"
    for line, name, where in zip(lines[1:3], names[1:3], ("", " in 2_Dense"), strict=True):
        convert = f"`atento convert {name} --to atento --out DIR` reads them"
        older = f"if it has older weight files (pytorch_model.bin), {convert}"
        assert line == f"ModelError {name} has no safetensors{where} on the hub; {older}"
    for name, line, reason in zip(names[3:], lines[3:], (offline, wrong, wrong, wrong), strict=True):
        assert line == f"UsageError {name} is no local folder, and {reason}; give the path of a local folder"


def test_of_a_hub_model_only_what_is_read_is_fetched(tmp_path: Path) -> None:
    """Vocabularies of modules in folders too, and not the same weights again in other forms."""
    read = {"config.json", "vocab.txt", "model.safetensors", "tokenizer.model", "additional_chat_templates/rag.jinja"}
    read |= {f"0_Transformer/{name}" for name in ("vocab.txt", "merges.txt", "spiece.model")} | {
        "1_Pooling/config.json"
    }
    other = {"consolidated.safetensors", "original/params.json", "onnx/config.json", "checkpoint-500/model.safetensors"}
    other |= {"pytorch_model.bin", "tf_model.h5", "openvino/openvino_model.xml"}
    patterns = {"allow_patterns": model_hub._HUB_FILES, "ignore_patterns": model_hub._NOT_FETCHED}
    assert set(filter_repo_objects(read | other, **patterns)) == read
    for folder in ("0_Transformer", "2_Dense"):
        (tmp_path / folder).mkdir()
    (tmp_path / "2_Dense" / "model.safetensors").write_bytes(b"")
    older = {"pytorch_model-00001-of-00002.bin", "0_Transformer/pytorch_model.bin", "adapter_model.bin"}
    patterns = model_hub._older_patterns(tmp_path)
    bins = {"2_Dense/pytorch_model.bin", "training_args.bin"}
    assert set(filter_repo_objects(older | bins, allow_patterns=patterns)) == older


def test_an_unreachable_hub_is_refused_in_one_sentence_after_one_connection(tmp_path, monkeypatch) -> None:
    tried: list[object] = []

    def unreachable(address: object, timeout: float) -> None:
        tried.append((address, timeout))
        raise OSError("Network is unreachable")

    monkeypatch.setattr("socket.create_connection", unreachable)
    monkeypatch.setattr("atento.models.model_hub.getproxies", dict)
    started = time.monotonic()
    fails(UsageError, "not in the hub's cache, .*: you are offline", find_model, "nobody/nothing-at-all")
    assert tried == [(("huggingface.co", 443), 5.0)] and time.monotonic() - started < 10
    # Without the tracebacks of the library that was asked
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("atento.models.model_hub._answers", lambda: False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UsageError, match="no local folder") as error:
        find_model("nobody/nothing-at-all")
    assert error.value.__suppress_context__
