"""From the word MODEL to files: runs, folders, hub names offline; what is written whole, and what version 1 wrote."""

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
from safetensors.torch import save_file
from torch import Tensor

import atento
from atento.base.errors import AtentoError, CheckpointError, ModelError, RecipeError, UsageError
from atento.config.reading.loading import load_recipe
from atento.config.sections.network import NetworkConfig
from atento.config.tables.renamed_keys import VERSION, nested, renamed
from atento.models import model_hub
from atento.models.card import model_card
from atento.models.load import read_model
from atento.models.migration import migrated
from atento.models.model_folder import find_model
from atento.models.write import write_model
from atento.released.sentence_transformers import SentenceModules, sentence_folder
from atento.storage.checkpoint import save_checkpoint
from atento.storage.tensorfile import TensorFiles
from failing import fails

NETWORK = {"architecture": "encoder-decoder", "d_model": 8, "n_layers": 1, "n_decoder_layers": None, "vocab_size": 9}
CONFIG: dict[str, Any] = {"model_type": "atento", "version": 2, "task": "translation", "name": "x", "network": NETWORK}
WEIGHTS = {"w": torch.arange(4.0)}


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


def modules(folder: Path, *kinds: str, **pooling: object) -> Path:
    """A sentence-transformers folder without its network."""
    paths = [f"{n}_{kind}" if n else "" for n, kind in enumerate(kinds)]
    rows = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in zip(kinds, paths)]
    folder.joinpath("modules.json").write_text(json.dumps(rows))
    for row in rows[1:]:
        folder.joinpath(row["path"]).mkdir()
    if "Pooling" in kinds:
        folder.joinpath(f"{kinds.index('Pooling')}_Pooling", "config.json").write_text(json.dumps(pooling))
    return folder


def test_hub_names_offline_from_the_cache_or_refused(tmp_path: Path) -> None:
    """What was fetched before is read from the hub's cache, whose files are links; anything else is one sentence."""
    folder = write_model(tmp_path / "model", CONFIG, WEIGHTS, {"tokenizer.json": b"{}"})

    def cached(name: str) -> Path:
        """The folder of a model in the hub's cache."""
        cache = tmp_path / "hub" / f"models--someone--{name}"
        for path in ("blobs", "refs", f"snapshots/{'0' * 40}"):
            (cache / path).mkdir(parents=True)
        (cache / "refs" / "main").write_text("0" * 40, encoding="utf-8")
        return cache / "snapshots" / ("0" * 40)

    snapshot = cached("small")
    for path in folder.iterdir():  # all of it, as another tool would fetch it, but for the card
        if path.name != "README.md":
            (snapshot.parents[1] / "blobs" / path.name).write_bytes(path.read_bytes())
            (snapshot / path.name).symlink_to(Path("../../blobs") / path.name)
    (cached("older") / "config.json").write_text('{"model_type": "bert"}', encoding="utf-8")
    dense = cached("dense")  # whose Dense module had no safetensors to fetch
    modules(dense, "Transformer", "Pooling", "Dense", pooling_mode_mean_tokens=True)
    (dense / "2_Dense" / "config.json").write_text("{}", encoding="utf-8")
    (dense / "config.json").write_text('{"model_type": "bert"}', encoding="utf-8")
    (dense / "model.safetensors").write_bytes(b"not read")
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


def test_w3_a_model_folder_is_written_whole_with_its_folders(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "deep" / "model", CONFIG, WEIGHTS, {"tokenizer.json": b"{}"})
    found = read_model(folder)
    assert found.config == CONFIG and torch.equal(found.weights["w"], WEIGHTS["w"])
    (folder / "notes.txt").write_text("mine", encoding="utf-8")
    fails(CheckpointError, r"notes.txt does not belong to it", read_model, folder)
    # sentence-transformers keeps its pooling in a folder: written, verified, and nothing beside it
    folder = write_model(tmp_path / "model", CONFIG, WEIGHTS, {"1_Pooling/config.json": b"{}"})
    assert read_model(folder).config == CONFIG
    (folder / "1_Pooling" / "config.json").write_bytes(b"[]")
    fails(CheckpointError, r"1_Pooling/config.json was altered", read_model, folder)
    (folder / "1_Pooling" / "config.json").write_bytes(b"{}")
    (folder / "1_Pooling" / "notes.txt").write_text("mine", encoding="utf-8")
    fails(CheckpointError, r"1_Pooling/notes.txt does not belong to it", read_model, folder)
    (folder / "1_Pooling" / "notes.txt").unlink()
    (folder / "2_Normalize").mkdir()
    fails(CheckpointError, r"2_Normalize does not belong to it", read_model, folder)


def test_what_fails_while_writing_leaves_nothing_and_the_card_counts_both_stacks(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    # the name beside the second, while writing, is too long
    for target in (tmp_path / "file" / "model", tmp_path / ("n" * 254)):
        fails(AtentoError, r"cannot be written: ", write_model, target, CONFIG, WEIGHTS, {})
    with pytest.raises(AtentoError, match=r"cannot be written: .* is not made of A-Z a-z 0-9"):
        write_model(tmp_path / "model", CONFIG, WEIGHTS, {"ação.json": b"{}"})
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    card = model_card(CONFIG, NetworkConfig(d_model=8, n_layers=1, n_decoder_layers=3, vocab_size=9))
    assert "1 + 3 layers" in card and "vocabulary 9" in card
    assert json.loads(json.dumps(CONFIG))["network"]["d_model"] == NetworkConfig(d_model=8).d_model


def write_tensors(file: Path, **tensors: float) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file({name.replace("__", "."): torch.full((2,), value) for name, value in tensors.items()}, file)


def test_k2_several_variants_are_refused_by_name_and_old_names_give_way_to_todays(tmp_path: Path) -> None:
    for variant in ("fp16", "bf16"):
        write_tensors(tmp_path / f"model.{variant}.safetensors", weight=1.0)
    fails(ModelError, r"leave one of model\.bf16\.safetensors, model\.fp16", TensorFiles, tmp_path)
    write_tensors(tmp_path / "model.safetensors", weight=3.0)
    with TensorFiles(tmp_path) as files:
        assert files.read("weight").tolist() == [3.0, 3.0]
    write_tensors(tmp_path / "other" / "adapter_model.fp16.safetensors", weight=1.0)  # no variant of a model
    fails(ModelError, r"model\.safetensors is missing", TensorFiles, tmp_path / "other")
    # An old name is renamed, but not over a tensor that has today's name already
    write_tensors(tmp_path / "model.safetensors", a__gamma=1.0, a__beta=2.0, b__gamma=3.0, b__weight=4.0, gamma=5.0)
    with TensorFiles(tmp_path) as files:
        files.with_todays_names()
        found = {name: files.read(name)[0].item() for name in files.entries}
    assert found == {"a.weight": 1.0, "a.bias": 2.0, "b.gamma": 3.0, "b.weight": 4.0, "gamma": 5.0}


def test_g8_a_sentence_transformers_folder_says_how_it_pools(tmp_path: Path) -> None:
    folder = modules(tmp_path, "Transformer", "Pooling", "Normalize", pooling_mode_cls_token=True)
    folder.joinpath("sentence_bert_config.json").write_text('{"max_seq_length": 128}')
    expected = SentenceModules(folder, {"pooling": "first", "normalize": True, "max_len": 128})
    assert sentence_folder(folder) == expected and sentence_folder(tmp_path / "1_Pooling") is None


def test_g8_a_module_or_pooling_that_is_not_built_is_refused(tmp_path: Path) -> None:
    folder = modules(tmp_path, "Transformer", "Pooling", pooling_mode_median_tokens=True)
    fails(ModelError, "and no others: got pooling_mode_median_tokens", sentence_folder, folder)
    fails(ModelError, r"\.CNN' is not built", sentence_folder, modules(tmp_path, "Transformer", "CNN"))
    tmp_path.joinpath("modules.json").write_text("{")
    fails(ModelError, r"modules\.json is damaged", sentence_folder, tmp_path)
    (tmp_path / "config.json").write_text("[]", encoding="utf-8")
    (tmp_path / "modules.json").write_text('[{"type": "a.Pooling", "path": ""}]', encoding="utf-8")
    fails(ModelError, r"config\.json must hold one JSON object: got list", sentence_folder, tmp_path)


CASES: dict[str, Any] = json.loads(Path(__file__).with_name("version_1.json").read_text(encoding="utf-8"))
IDS, CHARACTERS = torch.tensor([[4, 9, 7, 10, 5]]), torch.arange(10).view(1, 2, 5)


def written(folder: Path, case: Any) -> Path:
    """The folder as version 1 wrote it."""
    weights = {
        name: torch.rand(shape, generator=torch.Generator().manual_seed(n)) - 0.5
        for n, (name, shape) in enumerate(sorted(case["shapes"].items()))
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(case["config"]), encoding="utf-8")
    save_file(weights, folder / "model.safetensors")
    return folder


@torch.no_grad()
def outputs(name: str, network: Any) -> dict[str, Tensor]:
    ids = CHARACTERS if name == "elmo-characters" else IDS
    out = network(ids, ids[:, :3]) if network.config.reads_source else network(ids)
    found = {"hidden": out.hidden, "logits": out.logits, "pooled": out.pooled}
    if name == "encoder":
        found |= {head: network.read(head, out) for head in ("next-sentence", "classification")}
    if name.startswith("elmo"):
        found["logits"] = network.project(network.directions(ids)[-1][0])
    return {key: value for key, value in found.items() if value is not None}


@pytest.mark.parametrize("name", CASES)
def test_a_folder_of_version_1_gives_the_same_numbers_in_order_and_saved_again_its_bits(tmp_path, name) -> None:
    case = CASES[name]
    network = atento.load(written(tmp_path / "old", case), device="cpu").network
    found = outputs(name, network)
    assert found.keys() == case["outputs"].keys()
    for key, value in found.items():
        assert list(value.shape) == case["outputs"][key]["shape"]
        wanted = torch.tensor(case["outputs"][key]["values"])
        torch.testing.assert_close(value.flatten()[: len(wanted)], wanted, rtol=1e-5, atol=1e-6)
    # The order decides the bits of the gradient's norm: every weight stands where its old self stood
    old = {key: torch.tensor(float(n)) for n, key in enumerate(case["order"])}
    _, moved = migrated(case["config"], old, "x")
    assert [float(moved[key]) for key, _ in network.named_parameters()] == list(range(len(old)))
    model = atento.load(written(tmp_path / "older", case), device="cpu")
    if model.words is not None:  # word vectors are kept as text
        return
    again = atento.load(model.save(tmp_path / "new"), device="cpu")
    config = json.loads((tmp_path / "new" / "config.json").read_text(encoding="utf-8"))
    assert config["version"] == VERSION and config["network"]["attention"].keys() >= {"dropout", "bias"}
    assert again.network.config == model.network.config
    one, two = outputs(name, model.network), outputs(name, again.network)
    assert all(torch.equal(one[key], two[key]) for key in one)


def test_a_later_version_is_refused(tmp_path: Path) -> None:
    folder = written(tmp_path / "new", {**CASES["decoder"], "config": CASES["decoder"]["config"] | {"version": 3}})
    fails(ModelError, r"new: config\.json is of version 3, .* up to 2", atento.load, folder, device="cpu")
    recipe = tmp_path / "my.yaml"
    recipe.write_text("task: translation\ndata: {train: {world: train, count: 9}}\nnetwork: {attention_dropout: 0.1}\n")
    fails(RecipeError, r"my\.yaml:3:11: network\.attention_dropout is now network\.attention\.dro", load_recipe, recipe)
    assert renamed("network", "bias") == "network.bias is now network.attention.bias and network.feed_forward.bias"
    assert renamed("network", "d_model") is None
    now = {"attention": {"bias": False}, "feed_forward": {"bias": False}, "d_model": 4, "ids": {"pad": 1}}
    assert nested({"bias": False, "d_model": 4, "ids": {"pad": 1}}) == now
