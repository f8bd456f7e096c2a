"""`init.new_decoder`: a released encoder reads the sources of a translator; its decoder is new (Rothe et al. 2020)."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

import atento
from atento.base.errors import RecipeError, UsageError
from atento.config.recipe import TokenizerConfig
from atento.networks import Encoder, EncoderDecoder
from atento.text import train_tokenizer
from conftest import ForkServer
from failing import fails
from runs import differences, events, last, tensors

WORDS = {"o": "the", "gato": "cat", "dorme": "sleeps", "come": "eats", "a": "the", "uva": "grape"}
SOURCES = [f"{a} {b} {c}" for a in ("o", "a") for b in ("gato", "uva") for c in ("dorme", "come", "gato")]
PAIRS = {"source": SOURCES, "target": [" ".join(map(WORDS.__getitem__, text.split())) for text in SOURCES]}
RECIPE: dict[str, Any] = {
    "task": "translation",
    "data": {},
    "tokenizer": {"kind": "bpe", "vocab_size": 280},
    "network": {"n_decoder_layers": 1, "dropout": 0.0, "attention": {"dropout": 0.0}},
    "training": {"steps": 60, "batch_tokens": 200, "warmup": 5, "learning_rate": 1e-2, "precision": "float32"}
    | {"checkpoint_every": 30, "validate_every": 30, "log_every": 30},
    "decoding": {"beam": 1, "max_new_tokens": 8},
    "metrics": ["bleu"],
}


def trained(folders: dict[str, Path], out: Path, share: str = "1", name: str = "bert", **init: Any) -> Path:
    recipe = RECIPE | {"init": {"model": str(folders[name]), "new_decoder": True, "train": "decoder"} | init}
    return atento.train(recipe, data={"train": PAIRS, "valid": PAIRS}, out=out, threads=1, share=Fraction(share)).folder


def test_the_encoder_stays_and_the_decoder_learns(folders: dict[str, Path], tmp_path: Path) -> None:
    """Its hidden vectors are BERT's, a second vocabulary writes, and a run in two parts is the same run."""
    whole = trained(folders, tmp_path / "whole")
    model, bert = atento.load(whole), atento.load(folders["bert"])
    network = model.network
    assert isinstance(network, EncoderDecoder) and isinstance(bert.network, Encoder)
    ids, _ = bert.tokenizer.with_specials(bert.tokenizer.encode("o gato dorme"))
    with torch.no_grad():
        ours, theirs = network.encode(torch.tensor([ids])), bert.network(torch.tensor([ids])).hidden
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    assert model.tokenizer.encode("o gato") == bert.tokenizer.encode("o gato")
    assert model.tokenizer.target.kind == "bpe" and network.config.n_layers != network.config.decoder_layers == 1
    assert len(model.translate(SOURCES)) == len(SOURCES) and events(whole, "valid")[-1]["nll"] < 3.0
    assert last(trained(folders, tmp_path / "parts", "1/2")).name == "step-00000030"
    assert differences(trained(folders, tmp_path / "parts"), whole) == []
    everything = tensors(last(trained(folders, tmp_path / "all", "1/2", train="all")) / "model.safetensors")
    kept = tensors(last(whole) / "model.safetensors")
    reads = [name for name in kept if name.startswith(("embedding.", "encoder.", "source_inputs."))]
    assert reads and all(everything[name] != kept[name] for name in reads if "bias" not in name and "norm" not in name)


@pytest.mark.parametrize(
    ("name", "init", "error", "message"),
    [
        ("gpt2", {}, UsageError, r"gpt2: `init.new_decoder` needs an encoder .*: got architecture 'decoder'"),
        ("bert", {"new_decoder": False}, UsageError, "architecture 'encoder', and task translation needs encoder-"),
        ("bert", {"train": "encoder"}, RecipeError, "must be all, head, last-N .*, bias or lora: got 'encoder'"),
    ],
)
def test_what_cannot_read_is_refused(
    folders: dict[str, Path], tmp_path: Path, name: str, init: dict[str, Any], error: type[Exception], message: str
) -> None:
    fails(error, message, trained, folders, tmp_path / "run", name=name, **init)
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_recipes_say_what_has_an_effect(folders: dict[str, Path], server: ForkServer, tmp_path: Path) -> None:
    written = RECIPE | {"init": {"model": str(folders["bert"]), "new_decoder": True}}
    for side in PAIRS:
        (tmp_path / side).write_text("\n".join(PAIRS[side]) + "\n", encoding="utf-8")
    written |= {"data": {"train": {"source": "source", "target": "target"}}}
    (tmp_path / "r.yaml").write_text(json.dumps(written), encoding="utf-8")
    done = server.run("config", "check", "r.yaml", cwd=tmp_path)
    assert done.stdout == "ok\n" and "tokenizer" not in done.stderr and "n_decoder_layers" not in done.stderr
    data = {"train": {"file": "a.tsv", "text": 0, "label": 1}}
    reads = {"task": "classification", "data": data, "init": written["init"]}
    (tmp_path / "c.yaml").write_text(json.dumps(reads), encoding="utf-8")
    done = server.run("config", "check", "c.yaml", cwd=tmp_path)
    assert done.status == 2 and "init.new_decoder needs sources and targets" in done.stderr
    done = server.run("data", "stats", "r.yaml", "--tokens", "--json", cwd=tmp_path)
    assert done.status == 0 and "tokenizer: bpe" in done.stderr


def test_a_tokenizer_of_the_recipe_is_that_of_targets(folders: dict[str, Path], tmp_path: Path) -> None:
    """Its path begins at the recipe's folder, and the run is resumed with it."""
    config = TokenizerConfig(kind="character", vocab_size=60)
    train_tokenizer(config, PAIRS["target"]).save(tmp_path / "recipes" / "pieces")
    for side in PAIRS:
        (tmp_path / "recipes" / side).write_text("\n".join(PAIRS[side]) + "\n", encoding="utf-8")
    written = RECIPE | {"init": {"model": str(folders["bert"]), "new_decoder": True}, "tokenizer": {"path": "pieces"}}
    written |= {"data": {"train": {"source": "source", "target": "target"}}, "metrics": []}
    (tmp_path / "recipes" / "r.yaml").write_text(json.dumps(written), encoding="utf-8")
    for steps in (1, 2):
        run = atento.train(tmp_path / "recipes" / "r.yaml", {"training.steps": steps}, out=tmp_path / "run", threads=1)
    tokenizer = atento.load(run.folder).tokenizer
    assert (tokenizer.kind, tokenizer.target.kind) == ("wordpiece", "character")
