"""Fine-tuning: what a run takes of the model it starts from, what it trains of it (F7), and how it is resumed."""

import json
import shutil
import signal
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import atento
from atento.config.reading.loading import load_recipe
from atento.config.sections.network import NetworkConfig
from atento.models.peft import save_adapter
from atento.runs.fine_tuning import rate_warning
from conftest import ForkServer, refused
from released_folders import write_released
from runs import differences, events, last, tensors

TUNE = ["train", "tune.yaml", "--threads", "1"]


def test_it_starts_with_the_models_weights_tokenizer_and_sizes(server: ForkServer, tuning: Path) -> None:
    """With a learning rate of nothing, the weights after a step are the model's own."""
    still = ["training.learning_rate=0", "training.steps=1", "training.warmup=1"]
    for number, init in enumerate(("model", "run", str(tuning / "model"))):
        done = server.run(*TUNE, *still, f"init={init}", "--out", f"still-{number}", cwd=tuning)
        assert done.status == 0 and "warning" not in done.stderr, done.stderr
        found, right = last(tuning / f"still-{number}"), tuning / "model"
        assert tensors(found / "model.safetensors") == tensors(right / "model.safetensors")
    config = json.loads((last(tuning / "still-0") / "config.json").read_text(encoding="utf-8"))["network"]
    before = json.loads((tuning / "model" / "config.json").read_text(encoding="utf-8"))["network"]
    assert config == before | {"dropout": 0.2}
    tokenizer = (tuning / "still-0" / "tokenizer" / "tokenizer.json").read_bytes()
    assert tokenizer == (tuning / "model" / "tokenizer.json").read_bytes()


def test_the_default_rate_is_warned_of_where_it_spoils_a_trained_network(server: ForkServer, tuning: Path) -> None:
    """All weights of MiniLM at 1e-3, which nobody wrote, lose what they had learned."""
    config = NetworkConfig("encoder", vocab_size=9, d_model=256, d_ff=8, n_heads=2, n_layers=1, max_len=8)
    for origin, train, width, warned in (
        ("default", "all", 256, True),
        ("default", "lora", 256, False),
        ("default", "all", 128, False),
        ("tune.yaml:7:20", "all", 256, False),
    ):
        loaded = load_recipe(tuning / "tune.yaml", [f"init.train={train}"], environment={})
        loaded = replace(loaded, origins={**loaded.origins, "training.learning_rate": origin})
        assert ("256 wide usually takes 2e-5" in rate_warning(loaded, replace(config, d_model=width))) is warned
    assert "new networks" not in server.good(*TUNE, "training.steps=1", "--out", "narrow", cwd=tuning).stderr


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


def rated(tuning: Path) -> dict[str, float]:
    """Give the model rates of dropout of its own, and return them by their keys."""
    path = tuning / "model" / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["network"]["dropout"] = 0.3
    config["network"]["attention"]["dropout"], config["network"]["feed_forward"]["dropout"] = 0.2, 0.1
    path.write_text(json.dumps(config), encoding="utf-8")
    (tuning / "model" / "MANIFEST.json").unlink()
    return {"network.dropout": 0.3, "network.attention.dropout": 0.2, "network.feed_forward.dropout": 0.1}


TWO = {"network.dropout": 0.1, "network.feed_forward.dropout": 0.0}


@pytest.mark.parametrize(
    ("written", "changes"),
    [
        ([], {}),
        (["network.attention.dropout=0"], {"network.attention.dropout": 0.0}),
        (["network.dropout=0.1", "network.feed_forward.dropout=0"], TWO),
        (["network.preset=transformer-big"], {}),  # whose rates nobody wrote
    ],
    ids=["none", "attention", "two", "preset"],
)
def test_dropout_is_the_models_unless_written(server: ForkServer, tuning: Path, written: Any, changes: Any) -> None:
    """Attention dropout 0.1 of a BERT's config.json became 0 in fine-tuning, and nobody said so."""
    rates = rated(tuning)
    taken = {key: rate for key, rate in rates.items() if key not in changes}
    rates |= changes
    done = server.good(*TUNE, "~network.dropout", *written, "training.steps=1", "--out", "tuned", cwd=tuning)
    values = ", ".join(f"`{key}` {rate:g}" for key, rate in taken.items())
    assert f"dropout as in model: {values} (write them to choose otherwise)" in done.stderr
    for network in (
        json.loads((last(tuning / "tuned") / "config.json").read_text(encoding="utf-8"))["network"],
        load_recipe(tuning / "tuned" / "recipe.yaml").recipe.network,
        atento.load(tuning / "tuned").network.config,
    ):
        values = network if isinstance(network, dict) else asdict(network)
        parts = values, values["attention"], values["feed_forward"]
        assert [part["dropout"] for part in parts] == list(rates.values())


def test_a_run_that_began_with_other_rates_goes_on_with_them(server: ForkServer, tuning: Path) -> None:
    """As a run of an earlier version, whose recipe.yaml says dropout 0.1 and 0 though the model has other rates."""
    rated(tuning)
    before = ["network.dropout=0.1", "network.attention.dropout=0", "network.feed_forward.dropout=0"]
    assert server.run(*TUNE, *before, "--out", "all-of-it", cwd=tuning).status == 0
    at = {"module": "atento.training.loop", "function": "learning_rate", "number": signal.SIGKILL}
    assert server.run(*TUNE, *before, "--out", "run-3", cwd=tuning, fault="signal_in_call", call=4, **at).status == -9
    assert "dropout as in" not in server.good(*TUNE, "~network.dropout", "--out", "run-3", cwd=tuning).stderr
    assert differences(tuning / "run-3", tuning / "all-of-it") == []


def test_what_the_model_brings_need_not_be_said_and_is_not_invented(server: ForkServer, tuning: Path) -> None:
    said = ["network.d_model=64", "tokenizer.vocab_size=999", "network.dropout=0.3"]
    done = server.run("config", "check", "tune.yaml", *said, cwd=tuning)
    none = "has no effect: init names a trained model, which brings its own"
    warned = [f"warning: command line: {key} {none}" for key in ("network.d_model", "tokenizer.vocab_size")]
    assert done.status == 0 and sorted(done.stderr.splitlines()) == warned
    command = ["config", "show", "tune.yaml"]
    lines = server.run(*command, "--origins", cwd=tuning).stdout.splitlines()
    assert any(line.startswith("  dropout: 0.2 ") and line.endswith("# tune.yaml:5:20") for line in lines)
    open_lines = [line for line in lines if line.endswith("# the initial model, read when training begins")]
    keys = [line.partition("  # the")[0].strip(" #").partition(":")[0] for line in open_lines]
    assert sorted(keys) == ["dropout", "dropout", "max_len"]
    (tuning / "shown.yaml").write_text(server.run(*command, cwd=tuning).stdout, encoding="utf-8")
    again = server.run("config", "show", "shown.yaml", cwd=tuning)
    assert again.stdout == (tuning / "shown.yaml").read_text(encoding="utf-8") and not again.stderr
    record = json.loads(server.run(*command, "--json", cwd=tuning).stdout)
    assert record["recipe"]["network"]["dropout"] == 0.2 and "dropout" not in record["recipe"]["network"]["attention"]


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
        ("strange", "model_type 'brt' is a network that is not known here; `transformers` may run it. Known: albert"),
        ("tune.yaml", "tune.yaml is a file; a model is a folder"),
        ("none", "no model at none: give a run folder, a model folder or a hub name (owner/name)"),
    ):
        refused(server.run(*TUNE, f"init={init}", "--out", "x", cwd=tuning), said)
    assert server.run(*TUNE, "--out", "x", cwd=tuning).status == 0  # nothing of that stands in the way


LORA = ["decoding.beam=2", "init.train=lora", "init.lora.rank=2", "init.lora.dropout=0.1"]
LORA += ["init.lora.targets=[query, value, outer]"]


def test_a_lora_run_keeps_the_model_and_loads_as_a_whole_one(server: ForkServer, tuning: Path) -> None:
    """Checkpoints hold the frozen weights and the adapters; loading joins them; validation scores what is loaded."""
    done = server.good(*TUNE, *LORA, "training.learning_rate=0.05", "--out", "tuned", cwd=tuning)
    before = tensors(tuning / "model" / "model.safetensors")
    held = tensors(last(tuning / "tuned") / "model.safetensors")
    assert {name: held[name] for name in before} == before
    adapters = {name for name in held if ".adapters." in name}
    assert held.keys() - before.keys() == adapters and len(adapters) == 2 * (2 + 2 + 2 + 2)
    assert {name.rpartition(".")[0] for name in load_file(last(tuning / "tuned") / "optimizer.safetensors")} == adapters
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


@pytest.mark.parametrize("init", [[], ["init.unfreeze.steps=2"], LORA], ids=["all", "stages", "lora"])
def test_killed_anywhere_it_goes_on_bit_for_bit(server: ForkServer, tuning: Path, init: list[str]) -> None:
    """Stages begin at updates 1, 3 and 5: killed in one, just before the next, without the model it started from."""
    assert server.run(*TUNE, *init, IN_TURN, "--out", "straight", cwd=tuning).status == 0
    at = {"module": "atento.training.loop", "function": "learning_rate", "number": signal.SIGKILL}
    command = [*TUNE, *init, IN_TURN, "--out", "run-2"]
    for call in (3, 2):
        assert server.run(*command, cwd=tuning, fault="signal_in_call", call=call, **at).status == -9
    shutil.rmtree(tuning / "model")  # once there is a checkpoint, the run is its own
    server.good(*command, cwd=tuning)
    assert differences(tuning / "run-2", tuning / "straight") == []
    assert "already finished" in server.run(*command, cwd=tuning).stderr
    refused(server.run(*TUNE, *init, "--out", "new", cwd=tuning), "no model at model")


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
