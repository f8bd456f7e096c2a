"""A program that reads the tensors of older weight files, and nothing else in them, and writes them as safetensors.

    python -m atento.convert.unpickle FOLDER OUT

Pickle can run code. PyTorch's `weights_only` reader refuses that, and a separate process protects the caller from its
effects and its memory use.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from atento.limits import read_plain_text

SINGLE, INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
ADAPTER = "adapter_model.bin"  # of PEFT


def older_files(folder: Path) -> list[Path]:
    """The older weight files of a folder, sorted by name; empty if it has none."""
    if (folder / SINGLE).exists():
        return [folder / SINGLE]
    if (folder / INDEX).exists():
        names = json.loads(read_plain_text(folder / INDEX))["weight_map"].values()
        return [folder / Path(str(name)).name for name in sorted(set(names))]
    return [folder / ADAPTER] if (folder / ADAPTER).exists() else []


def safe_name(older: Path) -> str:
    """The safetensors file that takes the place of an older one."""
    return "adapter_model.safetensors" if older.name == ADAPTER else "model.safetensors"


def main(folder: Path, out: Path) -> None:
    """Write OUT/model.safetensors, or OUT/adapter_model.safetensors."""
    tensors: dict[str, Tensor] = {}
    storages: set[tuple[int, int, tuple[int, ...]]] = set()
    files = older_files(folder)
    for file in files:
        content = torch.load(file, map_location="cpu", weights_only=True)
        if not isinstance(content, dict):
            raise ValueError(f"{file} holds a {type(content).__name__}, not a table of tensors")
        for name, value in content.items():
            if not isinstance(value, Tensor):
                continue
            storage = (value.untyped_storage().data_ptr(), int(value.storage_offset()), tuple(value.shape))
            value = value.clone() if storage in storages else value  # the format has no shared storage
            storages.add(storage)
            tensors[str(name)] = value.contiguous()
    save_file(tensors, out / safe_name(files[0]), {"format": "pt"})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
