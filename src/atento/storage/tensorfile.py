"""safetensors files: written in chunks, so that they are hashed while they are written, and read with checks."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from atento.errors import CheckpointError

Chunk = bytes | Tensor
_HEADER_LIMIT = 16 << 20  # bytes; the format itself allows 100 MB
# In the order in which the safetensors library writes tensors: the widest type first keeps every tensor aligned.
_DTYPES = {
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float32: "F32",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_ALIGNMENT = 64  # bytes, as PyTorch's allocator on a CPU aligns
_ORDER = {dtype: rank for rank, dtype in enumerate(_DTYPES)}


def safetensors_chunks(file: str, tensors: Mapping[str, Tensor]) -> list[Chunk]:
    """A safetensors file as chunks, its header first, then its tensors; the bytes are those that the library writes.

    The library's own writer would need a second copy of all tensors in memory to be hashed.

    Args:
        file: its name, for messages.
        tensors: any shapes and devices; storage shared between names is written once for each.

    Raises:
        CheckpointError: a tensor is not finite, or of a kind that the format cannot hold; names it.
    """
    for name, tensor in tensors.items():
        if name == "__metadata__" or tensor.dtype not in _DTYPES or tensor.layout != torch.strided or tensor.is_meta:
            kind = f"{tensor.dtype}, {tensor.layout}, {tensor.device}"
            raise CheckpointError(f"{file}: tensor {name!r} cannot be stored in a safetensors file ({kind})")
        if not _is_finite(tensor):
            raise CheckpointError(f"{file}: tensor {name!r} is not finite; such a checkpoint is not saved")
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    chunks: list[Chunk] = []
    end = 0
    for name in sorted(tensors, key=lambda name: (_ORDER[tensors[name].dtype], name)):
        tensor = tensors[name]
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        chunks.append(tensor)
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    if len(text) > _HEADER_LIMIT:
        raise CheckpointError(f"{file}: its header would have {len(text)} bytes, more than {_HEADER_LIMIT}")
    return [len(text).to_bytes(8, "little") + text, *chunks]


def to_bytes(chunks: list[Chunk]) -> Iterator[bytes | memoryview]:
    """The bytes of each chunk; tensors on another device are copied to the CPU one at a time."""
    for chunk in chunks:
        if isinstance(chunk, bytes):
            yield chunk
        else:
            yield chunk.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def byte_size(chunks: list[Chunk]) -> int:
    """The size of all chunks in bytes."""
    return sum(len(chunk) if isinstance(chunk, bytes) else chunk.numel() * chunk.element_size() for chunk in chunks)


def read_safetensors(path: Path, directory_fd: int, name: str) -> dict[str, Tensor]:
    """The tensors of a safetensors file of a directory, on the CPU.

    Raises:
        CheckpointError: the header is longer than 16 MiB or wrong, the file is not of this format, or a tensor is not
            finite.
    """
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory_fd)
        with os.fdopen(fd, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
        if length > _HEADER_LIMIT:
            raise CheckpointError(
                f"checkpoint {path}: {name} has a header of {length} bytes, more than {_HEADER_LIMIT}"
            )
        tensors = {key: _aligned(tensor) for key, tensor in load_file(path / name).items()}
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"checkpoint {path}: {name} is not a safetensors file that can be read: {error}"
        ) from None
    for key, tensor in tensors.items():
        if not _is_finite(tensor):
            raise CheckpointError(f"checkpoint {path}: {name}: tensor {key!r} is not finite")
    return tensors


def _aligned(tensor: Tensor) -> Tensor:
    """The tensor at an address aligned as PyTorch aligns it; the library maps files, where it may begin at any byte.

    Some processors round products of unaligned tensors differently, and results must be equal to those before saving
    (docs/notes.md#f5).
    """
    return tensor if tensor.data_ptr() % _ALIGNMENT == 0 else tensor.clone()


def _is_finite(tensor: Tensor) -> bool:
    """Whether the tensor has neither NaN nor infinity; integers have none."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    return bool(torch.isfinite(tensor).all())
