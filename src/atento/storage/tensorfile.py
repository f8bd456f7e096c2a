"""safetensors files: written in chunks, so that they are hashed while they are written, and read with checks.

Tensors are read directly into their destination, without a second copy in memory; several threads may read at once.
"""

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, local
from typing import Any, BinaryIO

import torch
from torch import Tensor

from atento.base.errors import CheckpointError, ModelError, counted, reason_of
from atento.base.limits import open_plain, read_plain_text

Chunk = bytes | Tensor
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
_MADE = "is for {} and is not read back: give the model that it was made from"
_ELSEWHERE = {  # what a folder may have in place of our weights, and what is to be done
    "model.bin": _MADE.format("CTranslate2"),
    "*.onnx": _MADE.format("ONNX Runtime"),
    "openvino*.xml": _MADE.format("OpenVINO"),
    "*.gguf": _MADE.format("llama.cpp"),
    "tf_model.h5": "is of TensorFlow: transformers 4 reads it (`from_tf=True`), and saves safetensors",
    "flax_model.msgpack": "is of Flax: transformers 4 reads it (`from_flax=True`), and saves safetensors",
    "consolidated*": "has its authors' own names: give the same model in the layout of Hugging Face",
}
_HEADER_LIMIT = 16 << 20  # bytes; the format itself allows 100 MB
_DIMENSIONS, _MOST = 16, 1 << 48  # of a tensor; of a number of its place and shape, so that no product is long
_PIECE = 16 << 20  # bytes compared at once
_LFS = int.from_bytes(b"version ", "little")  # the start of a pointer file that Git LFS puts in place of a large file
_SHARD = re.compile(r".*-\d+-of-\d+\.safetensors")
_OLD_NAMES = {"gamma": "weight", "beta": "bias"}  # the names of a norm's weights in files converted from TensorFlow
# In the order in which the safetensors library writes tensors: the widest type first keeps every tensor aligned.
_DTYPES = {"U64": torch.uint64, "I64": torch.int64, "F64": torch.float64, "C64": torch.complex64, "F32": torch.float32}
_DTYPES |= {"U32": torch.uint32, "I32": torch.int32, "BF16": torch.bfloat16, "F16": torch.float16, "U16": torch.uint16}
_DTYPES |= {"I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool}
_OF_MODELS = {name: dtype for name, dtype in _DTYPES.items() if name not in ("U64", "C64", "U32", "U16")}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_ORDER = {dtype: rank for rank, dtype in enumerate(_NAMES)}


def safetensors_chunks(file: str, tensors: Mapping[str, Tensor]) -> list[Chunk]:
    """A safetensors file as chunks, its header first, then its tensors; the bytes are those that the library writes.

    The library's own writer would need a second copy of all tensors in memory to be hashed.

    Args:
        file: its name, for messages.
        tensors: any shapes and devices; storage shared between names is written once for each.

    Raises CheckpointError: a tensor is not finite, or of a kind that the format cannot hold; names it.
    """
    for name, tensor in tensors.items():
        if name == "__metadata__" or tensor.dtype not in _NAMES or tensor.layout != torch.strided or tensor.is_meta:
            kind = f"{tensor.dtype}, {tensor.layout}, {tensor.device}"
            raise CheckpointError(f"{file}: tensor {name!r} cannot be stored in a safetensors file ({kind})")
        if not is_finite(tensor):
            raise CheckpointError(f"{file}: tensor {name!r} is not finite; such a checkpoint is not saved")
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    chunks: list[Chunk] = []
    end = 0
    for name in sorted(tensors, key=lambda name: (_ORDER[tensors[name].dtype], name)):  # as the library orders them
        tensor = tensors[name]
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        chunks.append(tensor)
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)  # tensors begin at multiples of 8
    if len(text) > _HEADER_LIMIT:
        raise CheckpointError(f"{file}: its header would have {len(text)} bytes, more than {_HEADER_LIMIT}")
    return [len(text).to_bytes(8, "little") + text, *chunks]  # the length of the header, the header, the tensors


def to_bytes(chunks: list[Chunk]) -> Iterator[bytes | memoryview]:
    """The bytes of each chunk; tensors on another device are copied to the CPU one at a time."""
    for chunk in chunks:
        if isinstance(chunk, bytes):
            yield chunk
        elif chunk.numel():  # one of NumPy without numbers may have a stride of 0
            yield chunk.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def byte_size(chunks: list[Chunk]) -> int:
    """The size of all chunks in bytes."""
    return sum(len(chunk) if isinstance(chunk, bytes) else chunk.numel() * chunk.element_size() for chunk in chunks)


@dataclass(frozen=True)
class TensorEntry:
    """The location of a tensor (file, first byte, number of bytes), its dtype and shape."""

    file: Path
    start: int
    size: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    def read(self, name: str, fd: int, into: Tensor | None = None) -> Tensor:
        """Read it from its open file; the arguments are those of `TensorFiles.read`."""
        out = torch.empty(self.shape, dtype=self.dtype) if into is None else into
        view = out.view(-1).view(torch.uint8).numpy().data if self.size else memoryview(b"")
        done = 0
        while done < self.size:
            with _reading(self.file):
                count = os.preadv(fd, [view[done : done + (1 << 30)]], self.start + done)  # at most 1 GiB a call
            if count <= 0:
                raise CheckpointError(f"{self.file} is truncated: tensor {name!r} ends past its end")
            done += count
        return out


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Name the file of an error of the system, which has none where a descriptor is read."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from error


class TensorFiles:
    """The tensors of a folder by name; headers are read and checked immediately, tensors on request."""

    def __init__(self, folder: Path, single: str = SINGLE, model: Path | None = None) -> None:
        """Read the headers.

        Args:
            folder: the folder of the files.
            single: name of the file if the tensors are not in shards.
            model: the folder of the model, if the files are in a folder inside it.

        Raises ModelError: the folder has no weights. CheckpointError: a damaged file or index; names it.
        """
        self.folder = folder
        self._open: dict[Path, int] = {}
        self._opening = Lock()
        self._space = local()  # of each thread that reads
        self.entries: dict[str, TensorEntry] = {}
        file = _weights_file(folder, single)
        if file is not None and file.suffix == ".json":
            self._read_index(file)
        elif file is not None:
            self.entries = _entries_of(file)
        else:
            older = sorted(
                one.name for kind in ("pytorch_model*", "adapter_model") for one in folder.glob(f"{kind}.bin")
            )
            reader = f"`atento convert {model or folder} --to atento --out DIR` reads"
            what = f"; {older[0]} is an older format, which {reader}" if older else instead(folder)
            raise ModelError(f"{folder}: {single} is missing{what}")

    def _read_index(self, path: Path) -> None:
        try:
            table = json.loads(read_plain_text(path))["weight_map"]
            files = {name: sorted(n for n, file in table.items() if file == name) for name in set(table.values())}
        except OSError as error:
            raise ModelError(f"{path} cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise CheckpointError(f"{path} is damaged: it must hold a `weight_map` of tensor and file names") from None
        for name in sorted(files, key=str):  # of any type until they are checked
            if not isinstance(name, str) or Path(name).name != name:
                raise CheckpointError(f"{path}: a shard must be a file of the same folder: got {name!r}")
            if not (path.parent / name).exists():
                raise ModelError(f"{path.parent}: {name} is missing; {path.name} names it")
            entries = _entries_of(path.parent / name)
            missing = [tensor for tensor in files[name] if tensor not in entries]
            if missing:
                raise CheckpointError(
                    f"{path.parent / name} lacks {counted(len(missing), 'tensor')} of the index: {missing[:3]}"
                )
            self.entries |= {tensor: entries[tensor] for tensor in files[name]}

    def with_todays_names(self) -> None:
        """Give tensors with old names those that their classes have today, as `transformers` does."""
        for name in list(self.entries):
            start, _, end = name.rpartition(".")
            today = f"{start}.{_OLD_NAMES.get(end, end)}"
            if start and today not in self.entries:
                self.entries[today] = self.entries.pop(name)

    def lay_over(self, file: Path, names: Mapping[str, str]) -> None:
        """Read tensors of another file in place of those of the folder, or in addition to them.

        Args:
            file: a safetensors file.
            names: name in that file -> name here.
        """
        entries = _entries_of(file)
        self.entries |= {name: entries[theirs] for theirs, name in names.items()}

    def __enter__(self) -> "TensorFiles":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for fd in self._open.values():
            os.close(fd)
        self._open.clear()

    def read(self, name: str, into: Tensor | None = None) -> Tensor:
        """The tensor of that name, or `into`, a contiguous tensor of its dtype and shape, filled with it.
        Raises CheckpointError: the file ends early.
        """
        entry = self.entries[name]
        return entry.read(name, self._descriptor(entry.file), into)

    def _descriptor(self, file: Path) -> int:
        with self._opening:
            if file not in self._open:
                with _reading(file):
                    self._open[file] = os.open(file, os.O_RDONLY)
            return self._open[file]

    def _bytes(self, entry: TensorEntry, start: int, count: int) -> bytes:
        with _reading(entry.file):
            return os.pread(self._descriptor(entry.file), count, entry.start + start)

    def equal(self, name: str, other_name: str) -> bool:
        """Whether two tensors have the same shape and hold the same numbers, compared piece by piece."""
        entry, other_entry = self.entries[name], self.entries[other_name]
        if entry.shape != other_entry.shape:
            return False
        if entry.dtype != other_entry.dtype:
            wide = torch.promote_types(entry.dtype, other_entry.dtype)
            return torch.equal(self.read(name).to(wide), self.read(other_name).to(wide))
        for start in range(0, entry.size, _PIECE):
            count = min(_PIECE, entry.size - start)
            if self._bytes(entry, start, count) != self._bytes(other_entry, start, count):
                return False
        return True

    def transposed(self, name: str) -> Tensor:
        """The transposed matrix of that name. Each thread reuses one buffer, because freed buffers fragment the
        memory."""
        entry = self.entries[name]
        count = entry.size // entry.dtype.itemsize  # numbers, not bytes
        space: Tensor | None = getattr(self._space, "buffer", None)
        if space is None or space.dtype != entry.dtype or space.numel() < count:
            self._space.buffer = space = torch.empty(count, dtype=entry.dtype)
        return self.read(name, space[:count].view(entry.shape)).t().contiguous()

    def joined(self, names: Sequence[str]) -> Tensor:
        """Several tensors concatenated along the first dimension.
        Raises CheckpointError: their widths or dtypes differ.
        """
        entries = [self.entries[name] for name in names]
        if len({(entry.dtype, entry.shape[1:]) for entry in entries}) > 1 or not entries[0].shape:
            raise CheckpointError(f"{self.folder}: {', '.join(names)} cannot be concatenated: shapes differ")
        joined = torch.empty((sum(entry.shape[0] for entry in entries), *entries[0].shape[1:]), dtype=entries[0].dtype)
        row = 0
        for name, entry in zip(names, entries):
            self.read(name, joined[row : row + entry.shape[0]])
            row += entry.shape[0]
        return joined


def _weights_file(folder: Path, single: str) -> Path | None:
    """The index of a folder, or its single file, or the only variant of them (`model.fp16.safetensors`).
    Raises ModelError: there are several variants.
    """
    for name in (INDEX, single):
        if (folder / name).exists():
            return folder / name
    variants = sorted(
        path
        for pattern in (single.replace(".", ".*."), INDEX.replace(".json", ".*.json"))
        for path in folder.glob(pattern)
        if not _SHARD.fullmatch(path.name)
    )
    if len(variants) > 1:
        names = ", ".join(path.name for path in variants)
        raise ModelError(f"{folder}: {single} is missing, and there are several variants of it: leave one of {names}")
    return variants[0] if variants else None


def instead(folder: Path) -> str:
    """What a folder of the hub has for another program, for messages; "" if it has nothing of the kind."""
    places = ("", "onnx/", "openvino/", "original/")
    for pattern, remark in _ELSEWHERE.items():
        if found := [path for place in places for path in sorted(folder.glob(place + pattern))]:
            return f"; {found[0].relative_to(folder)} {remark}"
    return ""


def is_finite(tensor: Tensor) -> bool:
    """Whether the tensor has neither NaN nor infinity; integers have none."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    return all(math.isfinite(end.item()) for end in torch.aminmax(tensor))  # NaN goes through


def check_finite(folder: Path, name: str, tensor: Tensor) -> None:
    """Raises CheckpointError: a floating-point tensor that holds NaN or infinity."""
    if not is_finite(tensor):
        raise CheckpointError(f"{folder}: tensor {name} is not finite: it holds NaN or infinity")


def read_safetensors(path: Path, directory_fd: int, name: str) -> dict[str, Tensor]:
    """The tensors of a safetensors file of the open directory of a checkpoint, on the CPU.
    Raises CheckpointError: the file is no plain one, or is not of this format, or a tensor is not finite.
    """
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory_fd)
        with os.fdopen(fd, "rb") as file:
            tensors = {key: entry.read(key, fd) for key, entry in _entries(path / name, file, _DTYPES).items()}
    except (OSError, CheckpointError, ModelError) as error:
        raise CheckpointError(
            f"checkpoint {path}: {name} is not a safetensors file that can be read: {error}"
        ) from None
    for key, tensor in tensors.items():
        if not is_finite(tensor):
            raise CheckpointError(f"checkpoint {path}: {name}: tensor {key!r} is not finite")
    return tensors


def _entries_of(path: Path) -> dict[str, TensorEntry]:
    """The tensors of a file of a model. Raises ModelError: it cannot be read, or has a kind that models have not."""
    try:
        with open_plain(path) as file:
            return _entries(path, file, _OF_MODELS)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from None


def _entries(path: Path, file: BinaryIO, dtypes: Mapping[str, torch.dtype]) -> dict[str, TensorEntry]:
    """The tensors in the header of an open safetensors file, checked against the size of the file.
    Raises OSError: it cannot be read. ModelError: a kind of tensor that is not among `dtypes`. CheckpointError:
    truncated, altered, or not of this format.
    """
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")  # the file begins with the length of its header
    if length == _LFS:
        raise ModelError(f"{path} is a Git LFS pointer, not the file itself: fetch it with `git lfs pull`")
    if not 2 <= length <= min(_HEADER_LIMIT, size - 8):  # the shortest header is {}
        raise CheckpointError(f"{path} is damaged: a header of {length} bytes in a file of {size}")
    try:
        entries: dict[str, Any] = json.loads(file.read(length))
        entries.pop("__metadata__", None)
        tensor_entries, end = {}, 0
        for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
            start, stop = entry["data_offsets"]
            dtype, shape = dtypes.get(entry["dtype"]), tuple(entry["shape"])
            whole = all(type(number) is int and 0 <= number < _MOST for number in (start, stop, *shape[:_DIMENSIONS]))
            if not whole or len(shape) > _DIMENSIONS:
                raise CheckpointError(f"{path} is damaged: tensor {name!r} has no whole numbers as place and shape")
            if dtype is None:
                raise ModelError(f"{path}: tensor {name!r} is of kind {entry['dtype']}, which is not read here")
            count = 1
            for extent in shape:
                count *= extent
            if start != end or stop - start != count * dtype.itemsize:  # in order, without gaps
                raise CheckpointError(f"{path} is damaged: tensor {name!r} does not fit its place")
            tensor_entries[name] = TensorEntry(path, 8 + length + start, stop - start, dtype, shape)
            end = stop
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: {reason_of(error)}") from None
    if 8 + length + end != size:  # nothing stands behind the last tensor
        raise CheckpointError(f"{path} is damaged: it has {size} bytes, its header says {8 + length + end}")
    return tensor_entries
