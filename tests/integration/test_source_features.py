"""A released encoder reads the sources of a translator: by `init.new_decoder`, and by `network.features` (row F6)."""

import json
import shutil
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModel

import atento
from atento.attention.observe import observe
from atento.base.errors import CapabilityError, RecipeError, TokenizerError, UsageError
from atento.config.reading.loading import load_recipe
from atento.config.reading.sizes_by_data import FITTED
from atento.config.recipe import TokenizerConfig
from atento.config.sections.network import NetworkConfig, network_to_dict
from atento.config.sections.position_scheme import PositionConfig
from atento.data.batches.special_tokens import special_tokens_of
from atento.inference.choose import pack_weights
from atento.inference.encoder_reading import SourceReader
from atento.inference.packed_modules import copy_sharing_weights
from atento.inspection.ablation import attentions
from atento.models.transplant import to_encoder, with_positions
from atento.networks import Encoder, EncoderDecoder, build_network
from atento.networks.frozen import FeatureCache, frozen
from atento.text import train_tokenizer
from atento.training.optimizer import all_weights
from atento_cli.convert.ctranslate2_engine import why_not_held
from conftest import ForkServer, refused
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


def train(recipe: dict[str, Any], out: Path, share: str = "1") -> Path:
    return atento.train(recipe, data={"train": PAIRS, "valid": PAIRS}, out=out, threads=1, share=Fraction(share)).folder


def begun(folder: Path, out: Path, share: str = "1", **init: Any) -> Path:
    """A run whose encoder is that of a model, and whose decoder is new."""
    return train(RECIPE | {"init": {"model": str(folder), "new_decoder": True, "train": "decoder"} | init}, out, share)


def written(folder: Path, recipe: dict[str, Any]) -> Path:
    """The recipe as a file beside its data."""
    folder.mkdir(exist_ok=True)
    for side in PAIRS:
        (folder / side).write_text("\n".join(PAIRS[side]) + "\n", encoding="utf-8")
    recipe = recipe | {"data": {"train": {"source": "source", "target": "target"}}, "metrics": []}
    (folder / "r.yaml").write_text(json.dumps(recipe), encoding="utf-8")
    return folder / "r.yaml"


def test_the_encoder_stays_and_the_decoder_learns(folders: dict[str, Path], tmp_path: Path) -> None:
    """Its hidden vectors are BERT's, a second vocabulary writes, and a run in two parts is the same run."""
    whole = begun(folders["bert"], tmp_path / "whole")
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
    assert last(begun(folders["bert"], tmp_path / "parts", "1/2")).name == "step-00000030"
    assert differences(begun(folders["bert"], tmp_path / "parts"), whole) == []
    everything = tensors(last(begun(folders["bert"], tmp_path / "all", "1/2", train="all")) / "model.safetensors")
    kept = tensors(last(whole) / "model.safetensors")
    reads = [name for name in kept if name.startswith(("embedding.", "encoder.", "source_inputs."))]
    assert reads and all(everything[name] != kept[name] for name in reads if "bias" not in name and "norm" not in name)


def test_recipes_say_what_has_an_effect(folders: dict[str, Path], server: ForkServer, tmp_path: Path) -> None:
    init = {"model": str(folders["bert"]), "new_decoder": True}
    written(tmp_path, RECIPE | {"init": init})
    done = server.run("config", "check", "r.yaml", cwd=tmp_path)
    assert done.stdout == "ok\n" and "tokenizer" not in done.stderr and "n_decoder_layers" not in done.stderr
    reads = {"task": "classification", "data": {"train": {"file": "a.tsv", "text": 0, "label": 1}}, "init": init}
    (tmp_path / "c.yaml").write_text(json.dumps(reads), encoding="utf-8")
    refused(server.run("config", "check", "c.yaml", cwd=tmp_path), "init.new_decoder needs sources and targets")
    assert "tokenizer: bpe" in server.good("data", "stats", "r.yaml", "--tokens", "--json", cwd=tmp_path).stderr


OFTEN = {"steps": 40, "checkpoint_every": 20, "validate_every": 20, "log_every": 20, "subword_dropout": 0.2}
SIZES = {"d_model": 32, "n_heads": 2, "d_ff": 64, "n_layers": 1}


def trained(folder: Path, out: Path, share: str = "1", **features: Any) -> Path:
    recipe = RECIPE | {"network": SIZES | {"features": {"model": str(folder)} | features}}
    return train(recipe | {"training": RECIPE["training"] | OFTEN}, out, share)


def tuning(steps: int) -> dict[str, Any]:
    """The recipe of a later run, which has the tokenizer of the model that it starts from."""
    kept = {name: value for name, value in RECIPE.items() if name != "tokenizer"}
    return kept | {"training": RECIPE["training"] | OFTEN | {"steps": steps}}


@pytest.fixture(scope="module")
def whole(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(folders["bert"], tmp_path_factory.mktemp("run") / "whole")


def test_the_inputs_are_the_layers_of_the_encoder(folders: dict[str, Path], whole: Path) -> None:
    """They are transformers' vectors, normalised and joined; the encoder keeps its bits."""
    model, theirs = atento.load(whole), AutoModel.from_pretrained(folders["bert"]).eval()
    network = model.network
    assert isinstance(network, EncoderDecoder) and network.source_features is not None
    features = network.source_features
    depth = features.encoder.config.n_layers
    assert features.layers == tuple(sorted({round(depth * part / 3) for part in range(4)}))
    ids = torch.tensor([[5, 9, 7, 6], [5, 8, 6, 0]])
    real = torch.tensor([[True, True, True, True], [True, True, True, False]])
    with torch.no_grad():
        states = theirs(ids, attention_mask=real.long(), output_hidden_states=True).hidden_states
        joined = torch.cat([F.layer_norm(states[layer], states[layer].shape[-1:]) for layer in features.layers], -1)
        ours = network.embed_source(ids, real)
    torch.testing.assert_close(ours[real], (joined @ features.output.weight.T)[real], rtol=0, atol=1e-4)
    kept = atento.load(folders["bert"]).network.state_dict()
    for name, value in features.encoder.state_dict().items():
        assert torch.equal(value, kept[name]), name
    assert all("features.encoder" not in name for name in all_weights(build_network(network.config)).begins)
    assert not network.train().source_features.encoder.training
    assert len(model.translate(SOURCES)) == len(SOURCES) and events(whole, "valid")[-1]["nll"] < 2.0


def test_packed_sources_and_observed_attention(whole: Path) -> None:
    """The fast reading pass is the plain one; the encoder's own attention is not that of the network."""
    network = atento.load(whole).network
    rows = [[5, 9, 7, 8, 6], [5, 8, 6]]
    ids = torch.tensor([rows[0], [*rows[1], 0, 0]])
    real = ids != 0
    with torch.inference_mode():
        plain = network.encode(ids, source_token_mask=real)
        reader = SourceReader(copy_sharing_weights(network), "float32")
        packed, _ = reader.encoded(ids, real)
        torch.testing.assert_close(packed[real], plain[real], rtol=0, atol=1e-5)
        torch.testing.assert_close(reader.rows(rows), plain[real], rtol=0, atol=1e-5)
        pack_weights(held := copy_sharing_weights(network))  # as a service holds it
        torch.testing.assert_close(held.encode(ids, source_token_mask=real)[real], plain[real], rtol=0, atol=1e-5)
    assert set(attentions(network)) == {("encoder", 0), ("decoder", 0), ("cross", 0)}
    with observe(network) as seen:
        network(ids, torch.tensor([[1, 2], [1, 2]]), source_token_mask=real)
    assert seen.n_layers == {"encoder": 1, "decoder": 1, "cross": 1} and seen["encoder", 0].shape == (2, 2, 5, 5)
    assert "network.features" in str(why_not_held(network.config))


def test_a_run_is_resumed_without_encoder_and_fine_tuned(folders: dict[str, Path], whole: Path, tmp_path: Path) -> None:
    """In two parts it is the same run, its second of the checkpoint alone; tuned, its encoder stays as it is."""
    bert = shutil.copytree(folders["bert"], tmp_path / "bert")
    assert last(trained(bert, tmp_path / "parts", "1/2")).name == "step-00000020"
    shutil.rmtree(bert)
    assert differences(trained(tmp_path / "elsewhere" / "bert", tmp_path / "parts"), whole) == []
    tuned = train(tuning(2) | {"init": {"model": str(whole)}}, tmp_path / "tuned")
    old, new = (tensors(last(run) / "model.safetensors") for run in (whole, tuned))
    same = {name for name in old if old[name] == new[name]}
    assert same == {name for name in old if name.startswith("source_features.encoder.")}


def test_stored_vectors(folders: dict[str, Path], whole: Path, tmp_path: Path) -> None:
    """Each text is read once; later runs and resumed ones read its vectors, whose 16 bits hardly change the loss."""
    cache = str(tmp_path / "cache")
    first = trained(folders["bert"], tmp_path / "first", cache=cache)
    again = trained(folders["bert"], tmp_path / "again", "1/2", cache=cache)
    again = trained(folders["bert"], tmp_path / "again", cache=cache)
    assert differences(again, first) == []
    assert f"vectors of {len(SOURCES)} texts: {len(SOURCES)} computed" in (first / "train.log").read_text()
    log = (again / "train.log").read_text()
    assert log.count(f"vectors of {len(SOURCES)} texts: 0 computed") == log.count("vectors of") == 2
    losses = [events(run, "valid")[-1]["nll"] for run in (first, whole)]
    assert losses[0] == pytest.approx(losses[1], abs=0.02)


def test_paths_begin_at_the_recipe(folders: dict[str, Path], server: ForkServer, tmp_path: Path) -> None:
    """Those of the encoder, of its stored vectors and of the tokenizer of targets; a missing model is said."""
    home = tmp_path / "recipes"
    shutil.copytree(folders["bert"], home / "bert")
    train_tokenizer(TokenizerConfig(kind="character", vocab_size=60), PAIRS["target"]).save(home / "pieces")
    own = {"tokenizer": {"path": "pieces"}}
    begins = {"init": {"model": str(folders["bert"]), "new_decoder": True}}
    features = {"network": SIZES | {"features": {"model": "bert", "cache": "vectors"}}}
    for name, more in (("new-decoder", begins), ("run", features)):
        file = written(home, RECIPE | own | more)
        for steps in (1, 2):
            run = atento.train(file, {"training.steps": steps}, out=tmp_path / name, threads=1)
        tokenizer = atento.load(run.folder).tokenizer
        assert (tokenizer.kind, tokenizer.target.kind) == ("wordpiece", "character")
    assert [path.suffix for path in (home / "vectors").iterdir()] == [".safetensors"]
    saved = load_recipe(tmp_path / "run" / "recipe.yaml", environment={}).recipe.network.features
    assert saved is not None and (saved.model, saved.cache) == (str(home / "bert"), str(home / "vectors"))
    assert f"pieces, that of {home / 'bert'}" in server.run("runs", "show", "run", cwd=tmp_path).stdout
    assert server.run("data", "stats", "recipes/r.yaml", "--tokens", "--json", cwd=tmp_path).status == 0
    branch = ("--from", "run@last", "training.steps=3", "network.features.cache=other", "--out", "next")
    assert "starting from step 2 of run" in server.good("train", "recipes/r.yaml", *branch, cwd=tmp_path).stderr
    done = server.run("config", "check", "recipes/r.yaml", "network.features.model=nowhere", cwd=tmp_path)
    assert "network.features: no model at" in done.stderr


def test_an_encoder_of_atento_and_what_is_trained_later(tmp_path: Path) -> None:
    """Sources have the special tokens that it was trained with; its positions limit them alone; it never learns."""
    run = trained(Path("micro-world-mlm"), tmp_path / "run", layers=[2, 0])
    model = atento.load(run)
    config, tokenizer = model.network.config, model.tokenizer
    assert config.features is not None and config.features.layers == (2, 0) and config.features.template == "bos-eos"
    ids, _ = special_tokens_of(config, tokenizer).apply(tokenizer.encode("o gato"))
    assert (ids[0], ids[-1]) == (tokenizer.bos_id, tokenizer.eos_id)
    assert (config.position_limit, config.source_limit, config.features.max_len) == (None, 64, 64)
    old = tensors(last(run) / "model.safetensors")
    for trains in ("decoder", "lora", "last-1"):
        tuned = train(tuning(1) | {"init": {"model": str(run), "train": trains}}, tmp_path / trains)
        new = tensors(last(tuned) / "model.safetensors")
        assert [name for name in new if name.startswith("source_features.") and old.get(name) != new[name]] == []
        assert trains != "decoder" or old["embedding.weight"] != new["embedding.weight"]  # of targets
        assert len(atento.load(tuned).translate(SOURCES[:2])) == 2


def test_the_encoder_is_no_part_of_the_network(folders: dict[str, Path], whole: Path) -> None:
    """For what changes the network's own positions or halves; a teacher beside a run does not read its vectors."""
    network = atento.load(whole).network
    assert isinstance(network, EncoderDecoder) and network.source_features is not None
    moved, _ = with_positions(network, PositionConfig("rotary"))
    for name, value in network.source_features.state_dict().items():
        assert torch.equal(moved.state_dict()[f"source_features.{name}"], value)
    fails(CapabilityError, r"`network\.features` is no encoder by itself", to_encoder, network)
    ids, vectors = torch.tensor([[5, 9, 6]]), FeatureCache(None, kind="features")
    with frozen(vectors), torch.no_grad():
        network.eval().embed_source(ids, None)
        assert not vectors.rows
        network.train().embed_source(ids, None)
        width = network.source_features.output.in_features
        assert [(row.shape, row.dtype) for row in vectors.rows.values()] == [((3, width), np.float16)]
    assert "features" not in network_to_dict(NetworkConfig())
    with pytest.raises(TokenizerError, match="must be one that Atento trained"):
        atento.load(whole).tokenizer.with_target(atento.load(folders["bert"]).tokenizer)
    written = {"task": "translation", "data": {"train": {"world": "train"}}}
    written["network"] = {"features": {"model": "micro-world-mlm", "layers": [0, 2]}}
    assert load_recipe(written, environment={}).origins["network.d_model"] == FITTED


@pytest.mark.parametrize(
    ("start", "name", "given", "error", "message"),
    [
        (begun, "gpt2", {}, UsageError, r"gpt2: `init.new_decoder` needs an encoder .*: got architecture 'decoder'"),
        (
            begun,
            "bert",
            {"new_decoder": False},
            UsageError,
            "architecture 'encoder', and task translation needs encoder-",
        ),
        (begun, "bert", {"train": "encoder"}, RecipeError, "must be all, head, last-N .*, bias or lora: got 'encoder'"),
        (trained, "gpt2", {}, UsageError, "gpt2: `network.features` needs an encoder such as BERT: got .* 'decoder'"),
        (
            trained,
            "bert",
            {"layers": [0, 9]},
            UsageError,
            "bert: `network.features.layers` must be at most [0-9]: got 9",
        ),
        (trained, "bert", {"layers": [1, 1]}, RecipeError, r"`features.layers` must be different .* 0: got \[1, 1\]"),
        (trained, "bert", {"model": ""}, RecipeError, "`features.model` must name a model: got ''"),
        (trained, "bert", {"model": "nowhere"}, UsageError, "no model at .*nowhere"),
    ],
)
def test_what_cannot_read_is_refused(
    folders: dict[str, Path], tmp_path: Path, start: Any, name: str, given: Any, error: type[Exception], message: str
) -> None:
    fails(error, message, start, folders[name], tmp_path / "run", **given)
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_task_of_one_text_has_no_such_inputs(folders: dict[str, Path], server: ForkServer, tmp_path: Path) -> None:
    recipe = {"task": "classification", "data": {"train": {"file": "a.tsv", "text": 0, "label": 1}}}
    for architecture, message in (
        ("encoder", "features` belongs to architecture encoder-decoder: got 'encoder'"),
        ("encoder-decoder", "network.features needs sources and targets, and a network that reads sources"),
    ):
        network = {"architecture": architecture, "features": {"model": str(folders["bert"])}}
        (tmp_path / "r.yaml").write_text(json.dumps(recipe | {"network": network}), encoding="utf-8")
        refused(server.run("config", "check", "r.yaml", cwd=tmp_path), message)
