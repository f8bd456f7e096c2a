"""Which file of a folder holds its weights, and the names of old files: TensorFiles on folders as published (K2)."""

from pathlib import Path

import torch
from safetensors.torch import save_file

from atento.base.errors import ModelError
from atento.storage.tensorfile import TensorFiles
from failing import fails


def _write(file: Path, **tensors: float) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file({name.replace("__", "."): torch.full((2,), value) for name, value in tensors.items()}, file)


def test_k2_several_variants_are_refused_by_name_and_old_names_give_way_to_todays(tmp_path: Path) -> None:
    for variant in ("fp16", "bf16"):
        _write(tmp_path / f"model.{variant}.safetensors", weight=1.0)
    fails(ModelError, r"leave one of model\.bf16\.safetensors, model\.fp16", TensorFiles, tmp_path)
    _write(tmp_path / "model.safetensors", weight=3.0)
    with TensorFiles(tmp_path) as files:
        assert files.read("weight").tolist() == [3.0, 3.0]
    _write(tmp_path / "other" / "adapter_model.fp16.safetensors", weight=1.0)  # of an adapter, no variant of a model
    fails(ModelError, r"model\.safetensors is missing", TensorFiles, tmp_path / "other")
    # An old name is renamed, but not over a tensor that has today's name already
    _write(tmp_path / "model.safetensors", a__gamma=1.0, a__beta=2.0, b__gamma=3.0, b__weight=4.0, gamma=5.0)
    with TensorFiles(tmp_path) as files:
        files.with_todays_names()
        found = {name: files.read(name)[0].item() for name in files.entries}
    assert found == {"a.weight": 1.0, "a.bias": 2.0, "b.gamma": 3.0, "b.weight": 4.0, "gamma": 5.0}
