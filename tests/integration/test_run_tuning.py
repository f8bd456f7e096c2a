"""Fine-tuning by recipe (F7): what is trained, what a checkpoint holds, resuming at a change of stage, refusals."""

import json
import shutil
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import atento
from atento.models.peft import save_adapter
from conftest import ForkServer, refused
from released_folders import write_released
from runs import differences, events, last, tensors

TUNE = ["train", "tune.yaml", "--threads", "1", "decoding.beam=2"]
LORA = ["init.train=lora", "init.lora.rank=2", "init.lora.dropout=0.1", "init.lora.targets=[query, value, outer]"]


def test_a_lora_run_keeps_the_model_and_loads_as_a_whole_one(server: ForkServer, tuning: Path) -> None:
    """Checkpoints hold the frozen weights and the adapters; loading joins them; validation scores what is loaded."""
    done = server.good(*TUNE, *LORA, "training.learning_rate=0.05", "--out", "tuned", cwd=tuning)
    before = tensors(tuning / "model" / "model.safetensors")
    held = tensors(last(tuning / "tuned") / "model.safetensors")
    assert {name: held[name] for name in before} == before
    adapters = {name for name in held if ".adapters." in name}
    assert held.keys() - before.keys() == adapters and len(adapters) == 2 * (2 + 2 + 2 + 2)
    trained = load_file(last(tuning / "tuned") / "optimizer.safetensors")
    assert {name.rpartition(".")[0] for name in trained} == adapters
    count = sum(load_file(last(tuning / "tuned") / "model.safetensors")[name].numel() for name in adapters)
    assert f"parameters, {count:,} trained (lora, " in done.stderr
    model = atento.load(last(tuning / "tuned"))
    assert model.network.state_dict().keys() == before.keys() and "lora" not in model.config
    lines = (tuning / "valid.tsv").read_text(encoding="utf-8").splitlines()
    score = atento.evaluate(model, [tuple(line.split("\t")) for line in lines], metrics=["chrf"])
    assert score["chrf"].value == events(tuning / "tuned", "valid")[-1]["chrf"]
    states = (one.network.state_dict().values() for one in (atento.load(model.save(tuning / "saved")), model))
    assert all(map(torch.equal, *states))
    assert server.run("average", "tuned", cwd=tuning).status == 0
    averaged = atento.load(tuning / "tuned" / "averaged" / last(tuning / "tuned").name)
    assert averaged.network.state_dict().keys() == before.keys()


IN_TURN = "training.async_checkpoints=false"  # a checkpoint is complete when the next update begins


@pytest.mark.parametrize("init", [["init.unfreeze.steps=2"], LORA], ids=["stages", "lora"])
def test_killed_anywhere_it_goes_on_bit_for_bit(server: ForkServer, tuning: Path, init: list[str]) -> None:
    """Stages begin at updates 1, 3 and 5: killed in one, just before the next, without the model it started from."""
    assert server.run(*TUNE, *init, IN_TURN, "--out", "straight", cwd=tuning).status == 0
    at = {"module": "atento.training.loop", "function": "learning_rate", "number": signal.SIGKILL}
    command = [*TUNE, *init, IN_TURN, "--out", "run-2"]
    for call in (3, 2):
        assert server.run(*command, cwd=tuning, fault="signal_in_call", call=call, **at).status == -9
    shutil.rmtree(tuning / "model")
    server.good(*command, cwd=tuning)
    assert differences(tuning / "run-2", tuning / "straight") == []


def test_a_folder_keeps_its_way_of_tuning(server: ForkServer, tuning: Path) -> None:
    assert server.run(*TUNE, *LORA, "training.steps=2", "--out", "tuned", cwd=tuning).status == 0
    refused(server.run(*TUNE, "--out", "tuned", cwd=tuning), "init.train: lora -> all")
    other = server.run(*TUNE, "--from", "tuned@2", "--out", "x", cwd=tuning)
    refused(other, "its adapters are not those of the recipe")
    assert server.run(*TUNE, *LORA, "--from", "tuned@2", "--out", "y", cwd=tuning).status == 0
    config = json.loads((last(tuning / "tuned") / "config.json").read_text(encoding="utf-8"))
    assert config["lora"] == {"rank": 2, "alpha": 16.0, "dropout": 0.1, "targets": ["query", "value", "outer"]}


def test_what_cannot_be_trained_is_refused_and_keys_without_effect_are_named(server: ForkServer, tuning: Path) -> None:
    for said, message in (
        (["init.train=last-3"], "`init.train` last-3: the network has 2 layers; train all, or fewer"),
        (["init.train=head"], "has no head with weights of its own"),
        (["init.unfreeze.steps=5"], "the last stage begins at update 11, and the run has 6"),
        (["init.train=lora", "init.lora.targets=[qeury]"], "unknown linear map 'qeury'; did you mean 'query'?"),
        (["~init", "init.train=lora"], "init.model is missing"),
    ):
        refused(server.run(*TUNE, *said, "--out", "x", cwd=tuning), message)
    said = ["init.lora.rank=4", "init.train=head", "init.layer_decay=0.9"]
    done = server.run("config", "check", "tune.yaml", *said, cwd=tuning)
    warned = ("layer_decay has no effect: init.train is head, which has the whole learning rate",)
    warned += ("lora.rank has no effect: init.train is head, and only lora has adapters",)
    assert sorted(done.stderr.splitlines()) == [f"warning: command line: init.{one}" for one in warned]


def test_a_tiny_bert_is_tuned_written_for_peft_and_tuned_on(tmp_path: Path) -> None:
    """A pretrained folder in the Hugging Face layout; the adapter's folder loads as the run does, and begins a run."""
    base = write_released("bert", tmp_path / "base")
    texts = ["o gato dorme", "a menina lê", "the cat sleeps", "the girl reads"] * 6
    labels = ["português", "português", "inglês", "inglês"] * 6
    training = {"steps": 4, "batch_tokens": 8, "learning_rate": 0.05, "warmup": 0, "precision": "float32"}
    data = {"train": {"memory": "train"}, "valid": {"memory": "train"}}
    init = {"model": str(base), "train": "lora", "lora": {"rank": 2}}
    recipe = {"task": "classification", "data": data, "init": init, "training": training}
    atento.train(recipe, data=(texts, labels), out=tmp_path / "run", threads=1)
    frozen, held = load_file(base / "model.safetensors"), load_file(last(tmp_path / "run") / "model.safetensors")
    assert torch.equal(held["embedding.weight"], frozen["bert.embeddings.word_embeddings.weight"])
    model = atento.load(tmp_path / "run")
    folder = save_adapter(tmp_path / "run", tmp_path / "adapter")
    settings = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    assert (settings["base_model_name_or_path"], settings["r"], settings["task_type"]) == (str(base), 2, "SEQ_CLS")
    with torch.no_grad():
        ids = torch.tensor([model.tokenizer.encode("o gato lê")])
        ours, theirs = (each.network(ids).logits for each in (model, atento.load(folder)))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert model.classify(texts[:4]) == atento.load(folder).classify(texts[:4])  # by the names of the labels
    recipe["init"] = {"model": str(folder), "train": "head"}
    atento.train(recipe, data=(texts, labels), out=tmp_path / "next", threads=1)
    again = load_file(last(tmp_path / "next") / "model.safetensors")
    name = "stack.blocks.0.self_attention.input.weight"
    assert torch.equal(again[name], atento.load(folder).network.state_dict()[name])
    assert not torch.equal(again[name], held[name])  # the adapter is joined to it
