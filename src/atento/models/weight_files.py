"""The weights of a model folder, in one file or in shards with an index: read, cast, and laid out for writing.

See docs/notes.md#f5.
"""

import json
import logging
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from huggingface_hub import split_state_dict_into_shards_factory
from torch import Tensor

from atento.base.errors import UsageError
from atento.networks.int8_projection import coded_rows
from atento.storage.tensorfile import INDEX, Chunk, TensorFiles, check_finite, safetensors_chunks

MAX_SHARD_SIZE = "5GB"
_SCALES = ".row_scales"  # behind the name of a matrix that is stored in 8 bits
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
_SIZE = re.compile(r"\s*(?=[\d.]*[1-9])\d+(\.\d+)?\s*[KMGT]B\s*", re.IGNORECASE)
_log = logging.getLogger(__name__)


def type_name(dtype: torch.dtype) -> str:
    """The name of a type without the prefix: "float32"."""
    return str(dtype).removeprefix("torch.")


def widest(weights: Iterable[Tensor]) -> torch.dtype:
    """The type that can hold every number of the weights; float32 where none is a floating-point number."""
    dtype: torch.dtype | None = None
    for value in weights:
        if value.is_floating_point():
            dtype = value.dtype if dtype is None else torch.promote_types(dtype, value.dtype)
    return torch.float32 if dtype is None else dtype


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder, from one file or from shards, on the CPU; those that are stored in 8 bits, in float32.

    They are copied, not mapped: in a mapped file a tensor may begin at any byte, and some processors round products of
    unaligned tensors differently.
    Raises ModelError: there are no weights. CheckpointError: a damaged file, or a number that is not finite.
    """
    with TensorFiles(folder) as files:
        weights = {name: files.read(name) for name in files.entries}
    for name, value in weights.items():
        check_finite(folder, name, value)
    for name in [name for name in weights if name.endswith(_SCALES) and name.removesuffix(_SCALES) in weights]:
        weights[name.removesuffix(_SCALES)] = weights[name.removesuffix(_SCALES)] * weights.pop(name).unsqueeze(1)
    return weights


def in_types(
    weights: Mapping[str, Tensor], stored: Mapping[str, torch.dtype], precision: str | None, source: str
) -> dict[str, Tensor]:
    """The weights cast to the types in which they are written.

    Args:
        weights: those of the network.
        stored: the type of each weight in the file that it was read from.
        precision: "float32", "bfloat16", "float16" or "float64" for all; "int8": matrices are stored in 8 bits, with a
            scale for each row. None: the type in the file if that is lossless, else the type in the network.
        source: the file, for a warning if it had a wider type.

    Raises:
        UsageError: no such type, or a number that is too large for it.
    """
    if precision == "int8":
        coded = {n: coded_rows(value) for n, value in weights.items() if value.dim() == 2 and value.is_floating_point()}
        scales = {f"{name}{_SCALES}": by for name, (_, by) in coded.items()}
        return {**weights, **{name: codes for name, (codes, _) in coded.items()}, **scales}
    if precision is not None:
        if precision not in TYPES:
            raise UsageError(f"`precision` must be one of {', '.join(TYPES)}: got {precision!r}")
        return {name: _cast(name, value, TYPES[precision]) for name, value in weights.items()}
    result, narrowed = {}, set()
    for name, value in weights.items():
        dtype = stored.get(name, value.dtype)
        if value.is_floating_point() and dtype != value.dtype:
            # the file has the narrower type: no loss on the way here
            if torch.promote_types(dtype, value.dtype) == value.dtype:
                narrow = value.to(dtype)
                # back, unless it was trained meanwhile
                value = narrow if torch.equal(narrow.to(value.dtype), value) else value
            else:
                narrowed.add((type_name(dtype), type_name(value.dtype)))
        result[name] = value
    for before, now in sorted(narrowed):
        _log.warning(
            "%s holds weights in %s; they were loaded and are written in %s (precision 'auto' loads them as they are)",
            source,
            before,
            now,
        )
    return result


def _cast(name: str, value: Tensor, dtype: torch.dtype) -> Tensor:
    if not value.is_floating_point() or value.dtype == dtype:
        return value
    cast = value.to(dtype)
    if not bool(torch.isfinite(cast).all()) and bool(torch.isfinite(value).all()):
        largest = float(value.abs().max())
        raise UsageError(f"tensor {name!r} does not fit {type_name(dtype)}: its largest number is {largest:.6g}")
    return cast


def weight_files(weights: Mapping[str, Tensor], max_shard_size: int | str = MAX_SHARD_SIZE) -> dict[str, list[Chunk]]:
    """The files by name, each as the chunks to write: model.safetensors, or shards and their index.

    Shards are named as `transformers` names them: model-00001-of-00002.safetensors, ...

    Args:
        max_shard_size: bytes, or text such as "5GB" or "200MB" (decimal). A larger tensor has a shard of its own.

    Raises:
        UsageError: not a size. CheckpointError: a tensor that is not finite.
    """
    sized = _SIZE.fullmatch(max_shard_size) if isinstance(max_shard_size, str) else max_shard_size > 0
    if not sized:
        raise UsageError(f"`max_shard_size` must be a size above 0 such as 5GB or 200MB: got {max_shard_size!r}")
    plan = split_state_dict_into_shards_factory(
        dict(weights),
        get_storage_size=lambda tensor: tensor.numel() * tensor.element_size(),
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=max_shard_size,
    )
    files = {
        file: safetensors_chunks(file, {name: weights[name] for name in names})
        for file, names in plan.filename_to_tensors.items()
    }
    if plan.is_sharded:
        total = sum(value.numel() * value.element_size() for value in weights.values())
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(plan.tensor_to_filename.items()))}
        files[INDEX] = [(json.dumps(index, indent=2) + "\n").encode()]
    return files
