"""The tensors of a checkpoint from one file, or from the files of several shards, whose rows are joined."""

import re
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from atento.errors import CheckpointError
from atento.storage.manifest import Manifest
from atento.storage.tensorfile import read_safetensors

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors")


def part_name(name: str, shard: int, shards: int) -> str:
    """The name of the file of a shard, counted from 0: `model-00001-of-00002.safetensors` of `model.safetensors`."""
    return f"{name.removesuffix('.safetensors')}-{shard + 1:05d}-of-{shards:05d}.safetensors"


def is_part(name: str) -> bool:
    """Whether it is the name of the file of a shard."""
    return _PART.fullmatch(name) is not None


def read_parts(path: Path, directory_fd: int, manifest: Manifest, name: str) -> dict[str, Tensor]:
    """The tensors of `name`, or of the files of all shards of it.

    A tensor of all files is divided: each has some of its rows, in order. A tensor of the first file alone is whole.

    Raises:
        CheckpointError: neither is part of the checkpoint, one of the files is missing, or a file is malformed.
    """
    if manifest.entry(name) is not None:
        return read_safetensors(path, directory_fd, name)
    files = list(_files_of_shards(path, manifest, name))
    if not files:
        raise CheckpointError(
            f"checkpoint {path}: {name} is not part of it; a checkpoint has it, or a file for each of its shards"
        )
    first, *others = (read_safetensors(path, directory_fd, file) for file in files)
    for file, tensors in zip(files[1:], others):
        if unexpected := sorted(tensors.keys() - first.keys()):
            raise CheckpointError(f"checkpoint {path}: {file} has the tensor {unexpected[0]!r}, and {files[0]} has not")
    joined = {}
    for key, tensor in first.items():
        rows = [tensors[key] for tensors in others if key in tensors]
        if len(rows) not in (0, len(others)):
            raise CheckpointError(f"checkpoint {path}: the tensor {key!r} is missing in some of the files of {name}")
        try:
            joined[key] = torch.cat([tensor, *rows]) if rows else tensor
        except RuntimeError as error:
            raise CheckpointError(f"checkpoint {path}: the rows of {key!r} do not fit together: {error}") from None
    return joined


def _files_of_shards(path: Path, manifest: Manifest, name: str) -> Iterator[str]:
    """The names of the files of all shards, in order. Raises CheckpointError: one is missing."""
    matches = [match for entry in manifest.files if (match := _PART.fullmatch(entry.name))]
    counts = {int(match[3]) for match in matches if f"{match[1]}.safetensors" == name}
    for shards in sorted(counts)[:1]:
        for shard in range(shards):
            file = part_name(name, shard, shards)
            if manifest.entry(file) is None or len(counts) > 1:
                raise CheckpointError(f"checkpoint {path}: the shards of {name} are not complete: {file} is missing")
            yield file
