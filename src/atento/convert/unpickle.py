"""Run as a program: the tensors of older weight files, and nothing else of them, written as safetensors.

    python -m atento.convert.unpickle FOLDER OUT

Pickle can run code; PyTorch's reader that takes weights alone refuses that, and a process of its own keeps whatever it
does, or eats, away from the caller.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

SINGLE, INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
_RENAMED = {"gamma": "weight", "beta": "bias"}  # what files converted from TensorFlow call a norm's two


def older_files(folder: Path) -> list[Path]:
    """The older weight files of a folder, in order; none if it has none."""
    if (folder / SINGLE).exists():
        return [folder / SINGLE]
    if (folder / INDEX).exists():
        names = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values()
        return [folder / Path(str(name)).name for name in sorted(set(names))]
    return []


def main(folder: Path, out: Path) -> None:
    """Write OUT/model.safetensors."""
    tensors: dict[str, Tensor] = {}
    seen: set[tuple[int, int, tuple[int, ...]]] = set()
    for file in older_files(folder):
        held = torch.load(file, map_location="cpu", weights_only=True)
        if not isinstance(held, dict):
            raise ValueError(f"{file} holds a {type(held).__name__}, not a table of tensors")
        for name, value in held.items():
            if not isinstance(value, Tensor):
                continue
            start, _, end = str(name).rpartition(".")
            place = (value.untyped_storage().data_ptr(), int(value.storage_offset()), tuple(value.shape))
            value = value.clone() if place in seen else value  # the format wants storage of their own
            seen.add(place)
            tensors[f"{start}.{_RENAMED.get(end, end)}" if start else str(name)] = value.contiguous()
    save_file(tensors, out / "model.safetensors", {"format": "pt"})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
