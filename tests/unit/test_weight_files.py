"""Weights written and read again: types, shards with an index, aligned tensors (W12, W13), in memory once (C16)."""

import json
import logging
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import atento
from atento.base.errors import CheckpointError, ModelError, UsageError
from atento.config.tables.head_kinds import HeadConfig
from atento.model import Model
from atento.networks import build_network, presets
from atento.storage.checkpoint import load_checkpoint, save_checkpoint
from failing import fails

IDS = {"ids": {"pad": 0, "bos": 1, "eos": 2, "unk": 3, "start": 1, "mask": 4}}
SIZES: dict[str, Any] = {"vocab_size": 37, "d_model": 12, "d_ff": 20, "n_heads": 2, "n_layers": 2, "max_len": 12} | IDS
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
LAYOUTS = ("atento", "huggingface")


def one_label() -> Model:
    """A BERT of one label: its last tensors have one number, so that in a file all behind them stand askew."""
    torch.manual_seed(0)
    config = presets.bert_base(**SIZES, heads=(HeadConfig("regression"),))
    network = build_network(config).eval().requires_grad_(False)
    for parameter in network.parameters():
        parameter.normal_(std=0.3)
    return Model(network, None, {"model_type": "atento", "name": "x", "network": asdict(config)}, None)


def types(folder: Path) -> set[torch.dtype]:
    return {value.dtype for file in folder.glob("*.safetensors") for value in load_file(file).values()}


def equal(one: Model, other: Model) -> bool:
    other_weights = other.network.state_dict()
    return all(torch.equal(value, other_weights[name]) for name, value in one.network.state_dict().items())


def test_f5_w13_a_loaded_model_and_a_checkpoint_are_aligned_and_give_the_same_bits(tmp_path: Path) -> None:
    for layout in LAYOUTS:
        model = one_label()
        again = atento.load(model.save(tmp_path / layout, layout))
        assert {value.data_ptr() % 64 for value in again.network.state_dict().values()} == {0}
        for shape in ((1, 3), (3, 9), (8, 12)):
            ids = torch.randint(5, 37, shape)
            one, two = model.network(ids), again.network(ids)
            assert torch.equal(one.logits, two.logits) and torch.equal(one.hidden, two.hidden)
    weights = {"a": torch.randn(1), "b": torch.randn(3, 5), "c": torch.randn(64, 64), "empty": torch.zeros(0)}
    path = save_checkpoint(tmp_path, 1, config={}, weights=weights, optimizer={"m": torch.randn(7)}, state={})
    found = load_checkpoint(path)
    for name, value in (found.weights | found.optimizer).items():
        assert value.data_ptr() % 64 == 0 or not value.numel(), name
    assert all(torch.equal(found.weights[name], value) for name, value in weights.items())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_w12_shards_named_as_transformers_names_them(layout: str, tmp_path: Path) -> None:
    """No shard is larger than asked, but for a larger tensor alone; the index names each tensor's shard and the sum."""
    model = one_label()
    whole = load_file(model.save(tmp_path / "whole", layout) / SINGLE)
    folder = model.save(tmp_path / "shards", layout, max_shard_size=3000)
    shards = sorted(folder.glob("*.safetensors"))
    wanted = [f"model-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
    assert [file.name for file in shards] == wanted
    held = {file.name: load_file(file) for file in shards}
    for tensors in held.values():
        assert sum(value.numel() * 4 for value in tensors.values()) <= 3000 or len(tensors) == 1
    index = json.loads((folder / INDEX).read_text())
    assert index["weight_map"] == {name: file for file, tensors in held.items() for name in tensors}
    assert index["metadata"]["total_size"] == sum(value.numel() * 4 for value in whole.values())
    joined = {name: value for tensors in held.values() for name, value in tensors.items()}
    assert joined.keys() == whole.keys() and all(torch.equal(joined[name], value) for name, value in whole.items())
    assert equal(atento.load(folder), model) and not (folder / SINGLE).exists()
    assert not (model.save(tmp_path / "one", layout, max_shard_size="1MB") / INDEX).exists()


def test_w12_shards_stand_in_the_manifest(tmp_path: Path) -> None:
    """One flipped bit in any of them is found; one that is missing is named."""
    for layout in LAYOUTS:
        folder = one_label().save(tmp_path / layout, layout, max_shard_size="4KB")
        shard = sorted(folder.glob("*.safetensors"))[1]
        content = shard.read_bytes()
        shard.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        fails(CheckpointError, f"{shard.name} was altered", atento.load, folder)
        shard.unlink()
        fails(CheckpointError, f"{shard.name} is missing", atento.load, folder)
        (folder / "MANIFEST.json").unlink()
        fails(ModelError, f"{shard.name} is missing", atento.load, folder)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.float32])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_w12_types_are_kept_when_nothing_is_lost(layout: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """Loaded as the file holds it, or in the usual float32 where that is wider, and saved: the same bytes."""
    name = str(dtype).removeprefix("torch.")
    folder = one_label().save(tmp_path / "given", layout, precision=name)
    assert types(folder) == {dtype}
    again = atento.load(folder, precision="auto")
    assert next(again.network.parameters()).dtype == dtype and again.precision == name
    assert (again.save(tmp_path / "again", layout) / SINGLE).read_bytes() == (folder / SINGLE).read_bytes()
    if dtype != torch.float64:
        usual = atento.load(folder)
        assert next(usual.network.parameters()).dtype == torch.float32
        assert (usual.save(tmp_path / "usual", layout) / SINGLE).read_bytes() == (folder / SINGLE).read_bytes()
    if layout == "huggingface":
        assert json.loads((folder / "config.json").read_text())["torch_dtype"] == name


def test_w12_what_was_changed_or_narrowed_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = atento.load(one_label().save(tmp_path / "half", precision="bfloat16"))
    with torch.no_grad():
        model.network.embedding.weight.add_(1e-4)
    again = load_file(model.save(tmp_path / "changed") / SINGLE)
    rows = again["embedding.weight"]
    assert rows.dtype == torch.float32 and torch.equal(rows, model.network.embedding.weight)
    assert {value.dtype for name, value in again.items() if name != "embedding.weight"} == {torch.bfloat16}
    assert not caplog.records
    wide = one_label().save(tmp_path / "wide", precision="float64")
    with caplog.at_level(logging.WARNING):
        assert types(atento.load(wide).save(tmp_path / "narrowed")) == {torch.float32}
    assert [record.getMessage() for record in caplog.records] == [
        f"{wide} holds weights in float64; they were loaded and are written in float32 "
        "(precision 'auto' loads them as they are)"
    ]


def test_w12_a_type_or_size_that_cannot_be_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    model = one_label()
    with pytest.raises(UsageError, match="`precision` must be one of float32, bfloat16, float16, float64: got 'int4'"):
        model.save(tmp_path / "model", precision="int4")
    with torch.no_grad():
        model.network.embedding.weight[0, 0] = 70_000.0
    with pytest.raises(UsageError, match=r"'embedding\.weight' does not fit float16: its largest number is 7000"):
        model.save(tmp_path / "model", precision="float16")
    assert not list(tmp_path.iterdir())
    for size in ("5", "GB", "many", "0GB", "-1GB", 0, -5):
        with pytest.raises(UsageError, match="`max_shard_size` must be a size above 0 such as 5GB or 200MB: got "):
            one_label().save(tmp_path / "model", max_shard_size=size)
        assert not list(tmp_path.iterdir())


def test_numbers_that_are_not_finite_are_named_wherever_they_are_read_or_written(tmp_path: Path) -> None:
    """Our own layout too: such a model gives nothing but NaN, and a file that was damaged is the usual cause."""
    for bad in (float("nan"), float("inf")):

        def spoiled(weights: dict[str, Tensor], bad: float = bad) -> dict[str, Tensor]:
            weights["embedding.weight"][1, 2] = bad
            return weights

        folder = one_label().save(tmp_path / str(bad))
        (folder / "MANIFEST.json").unlink()
        save_file(spoiled(load_file(folder / SINGLE)), folder / SINGLE, {"format": "pt"})
        fails(CheckpointError, r"tensor embedding\.weight is not finite: .* NaN", atento.load, folder)
        model = one_label()
        spoiled(model.network.state_dict())
        fails(CheckpointError, r"tensor 'embedding\.weight' is not finite", model.save, tmp_path / "other")
        assert not (tmp_path / "other").exists()


PROGRAM = """
import json, sys
from pathlib import Path
import atento, torch
from atento.model import load
modules, state = len(sys.modules), torch.get_rng_state()
load(sys.argv[2])  # once, small: whatever loading brings with it is there
assert torch.equal(state, torch.get_rng_state())
modules = len(sys.modules) - modules

def kibibytes(name):
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1])

Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
before = kibibytes("VmRSS")
model = load(sys.argv[1])
parameters = sum(p.numel() for p in model.network.parameters())
print(json.dumps({"peak": kibibytes("VmHWM") - before, "parameters": parameters, "modules": modules}))
"""


def written(folder: Path, **sizes: int) -> Path:
    ids = dict.fromkeys(("pad", "bos", "eos", "unk", "start"), 0)
    config = presets.gpt2(vocab_size=20000, n_heads=8, max_len=64, ids=ids, **sizes)
    torch.manual_seed(0)
    model = Model(build_network(config), None, {"name": "x", "network": asdict(config)}, None)
    return model.save(folder, layout="huggingface")


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's account of memory")
def test_c16_loading_takes_a_tenth_more_than_the_file_at_most(tmp_path: Path) -> None:
    """GPT-2's layout is the hardest: its matrices are turned round on the way, and heads stand stacked."""
    small = written(tmp_path / "small", d_model=8, d_ff=8, n_layers=1)
    large = written(tmp_path / "large", d_model=512, d_ff=2048, n_layers=12)
    command = [sys.executable, "-c", PROGRAM, str(large), str(small)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    size = (large / "model.safetensors").stat().st_size
    assert found["parameters"] * 4 == pytest.approx(size, rel=0.01)
    assert found["peak"] * 1024 <= 1.1 * size
    assert found["modules"] < 100  # 800 of PyTorch, which take a second, where initial values are drawn for nothing
