"""Folders of other projects, read strictly: every damage, gap and leftover is named in the error or the load report."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import atento
from atento.base.errors import AtentoError, CapabilityError, CheckpointError, ModelError, UsageError
from atento.config.sections.network import NetworkConfig, changed
from atento.config.sections.position_scheme import PositionConfig
from atento.model import Model
from atento.networks import build_network, presets
from atento.released import FAMILIES, release
from atento.storage.tensorfile import INDEX, SINGLE, TensorFiles
from atento_cli.convert.source_model import model_to_convert
from failing import fails
from folders import edited

SIZES = {"vocab_size": 11, "d_model": 8, "d_ff": 12, "n_heads": 2, "n_layers": 2, "max_len": 10}
IDS = {"ids": {"pad": 0, "bos": 1, "eos": 2, "unk": 3, "start": 1, "mask": 4}}


def tiny(config: NetworkConfig, **changes: Any) -> NetworkConfig:
    return changed(config, SIZES, IDS, changes)


def written(folder: Path, config: NetworkConfig) -> Path:
    """A folder in the released layout, of random weights."""
    torch.manual_seed(0)
    Model(build_network(config), None, {"name": "x", "network": asdict(config)}, None).save(folder, "huggingface")
    folder.joinpath("MANIFEST.json").unlink()  # what follows alters files; theirs have none
    return folder


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    return written(tmp_path / "bert", tiny(presets.bert_base()))


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    weights = load_file(folder / SINGLE)
    change(weights)
    save_file(weights, folder / SINGLE)


def configure(folder: Path, **changes: object) -> None:
    edited(folder / "config.json", *(name for name, value in changes.items() if value is None), **changes)


def test_c16_the_ledger_names_what_was_loaded_and_keys_that_nothing_reads(bert: Path) -> None:
    load_report, parts = atento.load(bert).load_report, ("query", "key", "value")
    theirs = tuple(f"encoder.layer.1.attention.self.{part}.weight" for part in parts)
    assert load_report is not None and load_report.loaded["stack.blocks.1.self_attention.input.weight"] == theirs
    assert str(load_report) == f"{len(load_report.loaded)} tensors loaded"
    configure(bert, attention_temperature=2.0, use_cache=True, early_stopping=True, hidden_act="gelu")
    load_report = atento.load(bert).load_report
    assert load_report is not None and load_report.unread == ["attention_temperature"]
    assert str(load_report).endswith("; 1 key of config.json not read (attention_temperature)")


@pytest.mark.parametrize(("name", "first"), [("t5_small", 0), ("bart_base", 2)])
def test_c16_a_decoder_without_a_first_token_begins_as_its_family(name: str, first: int, tmp_path: Path) -> None:
    """T5 with padding, BART with EOS, where no file of it names `decoder_start_token_id`."""
    folder = written(tmp_path / name, tiny(getattr(presets, name)()))
    assert atento.load(folder).network.config.start_id == 1
    folder.joinpath("generation_config.json").unlink()
    configure(folder, decoder_start_token_id=None)
    assert atento.load(folder).network.config.start_id == first


def test_c16_missing_weights_and_weights_without_a_place_are_errors_unless_allowed(bert: Path) -> None:
    rewrite(bert, lambda weights: weights.update(strange=torch.ones(2), **{"embeddings.position_ids": torch.arange(3)}))
    fails(ModelError, "1 weight has no place in this network: strange", atento.load, bert)
    load_report = atento.load(bert, allow_unused=True).load_report
    assert load_report and load_report.unused == ["strange"] and load_report.computed == ["embeddings.position_ids"]
    lost = ("strange", "encoder.layer.1.output.dense.weight")
    rewrite(bert, lambda weights: [weights.pop(name) for name in lost])
    fails(ModelError, r"weights of a BertModel \(1\): encoder\.layer\.1\.output\.dense\.weight", atento.load, bert)
    model = atento.load(bert, allow_missing=True)
    assert model.load_report is not None and model.load_report.new == ["stack.blocks.1.feed_forward.outer.weight"]
    assert not model.network.state_dict()["stack.blocks.1.feed_forward.outer.weight"].is_meta


def test_c16_shards_and_their_index(bert: Path) -> None:
    """Two shards load to the same weights; a shard that is missing, lacks a tensor or stands elsewhere is named."""
    before = atento.load(bert).network.state_dict()
    weights = load_file(bert / SINGLE)
    names = sorted(weights)
    for number, part in enumerate((names[::2], names[1::2])):
        save_file({name: weights[name] for name in part}, bert / f"part-{number}.safetensors")
    table = {name: f"part-{n % 2}.safetensors" for n, name in enumerate(names)}
    (bert / SINGLE).unlink()
    (bert / INDEX).write_text(json.dumps({"weight_map": table}))
    after = atento.load(bert).network.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)
    (bert / INDEX).write_text(json.dumps({"weight_map": table | {"ghost": "part-1.safetensors"}}))
    fails(CheckpointError, r"part-1\.safetensors lacks 1 tensor of the index: \['ghost'\]", atento.load, bert)
    (bert / INDEX).write_text(json.dumps({"weight_map": table | {"x": "../part-1.safetensors"}}))
    fails(CheckpointError, "must be a file of the same folder", atento.load, bert)
    (bert / INDEX).write_text(json.dumps({"weight_map": table}))
    (bert / "part-1.safetensors").unlink()
    fails(ModelError, r"part-1\.safetensors is missing", atento.load, bert)
    (bert / INDEX).write_text("[]")
    fails(CheckpointError, r"index\.json is damaged", atento.load, bert)


def test_c16_a_file_cut_anywhere_is_damaged(bert: Path) -> None:
    whole = (bert / SINGLE).read_bytes()
    for content in (whole + b"x", *(whole[:n] for n in (0, 5, 8, 100, len(whole) // 2, len(whole) - 1))):
        (bert / SINGLE).write_bytes(content)
        fails(CheckpointError, "damaged", atento.load, bert)


def test_c16_a_header_that_lies_is_damaged(tmp_path: Path) -> None:
    for entries in (
        {"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}},
        {"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": [2]}},
        {"a": 5},
        [],
    ):
        head = json.dumps(entries).encode()
        (tmp_path / SINGLE).write_bytes(len(head).to_bytes(8, "little") + head + bytes(8))
        lacks = entries == {"a": {"dtype": "F32", "shape": [2]}}
        fails(CheckpointError, "damaged: .* 'data_offsets'" if lacks else "damaged", TensorFiles, tmp_path)


BIAS = "embeddings.LayerNorm.bias"


def test_c16_nan_and_quantised_weights_are_refused(bert: Path) -> None:
    rewrite(bert, lambda named: named[BIAS][3].fill_(float("nan")))
    fails(CheckpointError, r"LayerNorm\.bias is not finite", atento.load, bert)
    rewrite(bert, lambda named: named.update({BIAS: named[BIAS].char()}))
    fails(ModelError, r"bias is of int8: quantised weights are", atento.load, bert)


def test_c16_quantised_weights_and_a_pointer_in_place_of_a_file_are_named(bert: Path, tmp_path: Path) -> None:
    """As AWQ and GPTQ store them: the message says what the model was made from."""
    name = "encoder.layer.0.intermediate.dense"
    rewrite(bert, lambda weights: weights.update({f"{name}.qweight": weights.pop(f"{name}.weight")}))
    configure(bert, quantization_config={"quant_method": "awq", "bits": 4})
    fails(ModelError, rf"{name}\.weight; `quantization_config`: give the model that was quantised", atento.load, bert)
    (tmp_path / SINGLE).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n")
    fails(ModelError, "is a Git LFS pointer, .*: fetch it with `git lfs pull`", TensorFiles, tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "brt"}, "model_type 'brt' is a network that is not known here; `transformers`"),
        ({"model_type": None}, r'is not Atento.s own .* its family there \("model_type": "bert"'),
        ({"hidden_act": "gleu"}, "activation 'gleu' is not known here"),
        ({"position_embedding_type": "relative_key"}, "`position_embedding_type` 'relative_key' is not built here"),
        ({"is_decoder": True}, "`is_decoder` True is not built here"),
        ({"hidden_size": None}, "it lacks the key 'hidden_size'"),
        ({"num_attention_heads": 3}, "`n_heads` must divide `d_model`: got 3 and 8"),
        ({"intermediate_size": 13}, r"dense\.weight, here .*inner\.weight, has shape \(12, 8\), .* says \(13, 8\)"),
        ({"vocab_size": "many"}, r"config\.json: `vocab_size` must be a whole number, 1 or more: got 'many'"),
        ({"hidden_size": True}, "`hidden_size` must be a whole number, 1 or more: got True"),
        ({"num_hidden_layers": 0}, "`num_hidden_layers` must be a whole number, 1 or more: got 0"),
        ({"layer_norm_eps": -1}, "`layer_norm_eps` must be a number above 0: got -1"),
        ({"hidden_dropout_prob": "0.1"}, "`hidden_dropout_prob` must be a number from 0 to 1: got '0.1'"),
    ],
)
def test_c16_a_configuration_that_is_wrong_is_named(bert: Path, changes: dict[str, object], message: str) -> None:
    configure(bert, **changes)
    fails(AtentoError, message, atento.load, bert)


@pytest.mark.parametrize(
    ("net", "key", "given", "ours", "new"),
    [
        (presets.bert_base(), "eos_token_id", 50256, "eos_id", 10),
        (presets.bert_base(), "bos_token_id", 11, "bos_id", 10),
        (presets.bert_base(), "pad_token_id", 30000, "pad_id", 0),
        (presets.gpt2(), "eos_token_id", 50256, "eos_id", 10),
        (presets.gpt2(), "eos_token_id", [50256, 7], "eos_id", 7),
        (presets.gpt2(), "pad_token_id", 50257, "pad_id", 2),
        (presets.roberta_base(), "eos_token_id", 50000, "eos_id", 2),
    ],
)
def test_c16_w23_a_special_id_beyond_the_vocabulary_is_a_warning(
    net: NetworkConfig, key: str, given: object, ours: str, new: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ids = IDS | {"ids": {"pad": 1}} if net.family == "roberta" else IDS
    folder = written(tmp_path / "model", changed(tiny(net), ids))
    whole = atento.load(folder)
    assert {record.name for record in caplog.records} <= {"atento.models.load"}  # that there is no manifest
    (folder / "generation_config.json").unlink(missing_ok=True)  # whose ends would hold
    configure(folder, **{key: given})
    network = atento.load(folder).network
    assert getattr(network.config, ours) == new
    [message] = [record.getMessage() for record in caplog.records if record.name != "atento.models.load"]
    assert f"`{key}` is {given if isinstance(given, int) else 50256}, outside the vocabulary of 11" in message
    assert message.endswith(f"no token has that id; {new} replaces it")
    states = network.state_dict()
    assert all(torch.equal(states[name], value) for name, value in whole.network.state_dict().items())


def test_c16_rotary_positions_not_built_are_named(tmp_path: Path) -> None:
    folder = written(tmp_path / "model", tiny(presets.llama3_8b(), attention={"n_kv_heads": 1}))
    configure(folder, rope_parameters={"rope_type": "yarn", "factor": 2.0, "truncate": False})
    fails(AtentoError, "`truncate` False is not built here", atento.load, folder)
    configure(folder, rope_parameters={"rope_type": "yarn", "factor": 0.5})
    fails(AtentoError, "`factor` must be at least 1: got 0.5", atento.load, folder)


def test_c16_older_weights_are_pointed_to_the_converter_and_a_pointer_in_their_place_is_named(bert: Path) -> None:
    (bert / SINGLE).rename(bert / "pytorch_model.bin")
    fails(ModelError, r"pytorch_model\.bin is an older format, which `atento convert", atento.load, bert)
    (bert / "pytorch_model.bin").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n")
    with pytest.raises(ModelError, match=r"pytorch_model\.bin is a Git LFS pointer"), model_to_convert(bert, "float32"):
        pass


@pytest.mark.parametrize(
    ("file", "engine"),
    [
        ("model.bin", "CTranslate2"),
        ("encoder_model.onnx", "ONNX Runtime"),
        ("onnx/model.onnx", "ONNX Runtime"),
        ("openvino_model.xml", "OpenVINO"),
        ("model-q4.gguf", "llama.cpp"),
    ],
)
def test_weights_of_an_engine_are_not_pointed_to_the_converter(bert: Path, file: str, engine: str) -> None:
    """`atento convert` cannot read them, and told people to run itself again."""
    (bert / file).parent.mkdir(exist_ok=True)
    (bert / SINGLE).rename(bert / file)
    fails(ModelError, rf"{file} is for {engine} and is not read back: give the model that it was", atento.load, bert)
    (bert / "config.json").unlink()
    fails(UsageError, rf"\(no config.json\); {file} is for {engine} and is not read back", atento.load, bert)


@pytest.mark.parametrize(
    ("file", "what"),
    [
        ("tf_model.h5", r"is of TensorFlow: transformers 4 reads it \(`from_tf=True`\)"),
        ("flax_model.msgpack", r"is of Flax: transformers 4 reads it \(`from_flax=True`\)"),
        ("original/consolidated.00.pth", "has its authors' own names: give the same model in the layout of Hugging"),
    ],
)
def test_weights_of_another_library_are_said_to_be_such(bert: Path, file: str, what: str) -> None:
    """Beside what a training left, which is no older file of weights."""
    (bert / file).parent.mkdir(exist_ok=True)
    (bert / SINGLE).rename(bert / file)
    (bert / "training_args.bin").write_bytes(b"x")
    fails(ModelError, rf"is missing; {file} {what}", atento.load, bert)


@pytest.mark.parametrize(("preset", "shared"), [(presets.llama3_8b, 1), (presets.gpt2, None)])
def test_a_decoder_that_reads_in_both_directions_is_refused(preset: Any, shared: int | None, tmp_path: Path) -> None:
    """`is_causal: false` of sentence encoders that were decoders: transformers leaves out the causal mask then."""
    folder = written(tmp_path / "model", tiny(preset(), attention={"n_kv_heads": shared}))
    configure(folder, is_causal=True)
    report = atento.load(folder).load_report
    assert report is not None and not report.unread
    configure(folder, is_causal=False)
    fails(ModelError, r"`is_causal` False is not built here", atento.load, folder)


def test_c16_what_a_layout_cannot_say_is_refused() -> None:
    llama = changed(presets.llama3_8b(), attention={"n_kv_heads": 1})
    for config, message in (
        (tiny(presets.transformer_tiny()), "only networks of a released family .*: this one is of no released family"),
        (tiny(presets.bert_base(), positions=PositionConfig("alibi")), "cannot hold this network"),
        (tiny(presets.gpt2(), norm="post"), "cannot hold this network's norm"),
        (tiny(llama, feed_forward={"activation": "relu", "gated": False}), "cannot hold this network"),
        (tiny(presets.t5_small(), positions=PositionConfig("t5", shared=False)), "cannot hold this network"),
    ):
        fails(CapabilityError, message, release, config, build_network(config).state_dict())


@pytest.mark.parametrize("name", sorted(name for name, made in presets.PRESETS.items() if made().family in FAMILIES))
def test_c16_every_released_preset_survives_the_layout(name: str) -> None:
    """Configuration out and in again is the same, tensor names of the full size included; nothing is allocated."""
    config = presets.PRESETS[name]()
    with torch.device("meta"):
        weights = build_network(config).state_dict()
    data, names = release(config, weights)
    assert data["model_type"] == config.family and len(names) >= len(weights)
