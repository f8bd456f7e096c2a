"""Tensors of one or several safetensors files, read straight to where they go: a model is in memory once.

Several threads may read at once.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, local
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from atento.errors import CheckpointError, ModelError, counted

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
_HEADER_LIMIT = 100 << 20  # bytes; the format's own
_PIECE = 16 << 20  # bytes compared at once
_LFS = int.from_bytes(b"version ", "little")  # how a pointer begins that Git LFS leaves in place of a large file
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True)
class Place:
    """Where a tensor stands: which file, from which byte on, how many, of which kind and shape."""

    file: Path
    start: int
    size: int
    dtype: torch.dtype
    shape: tuple[int, ...]


class TensorFiles:
    """The tensors of a folder by name; headers are read and checked at once, tensors when they are asked for."""

    def __init__(self, folder: Path) -> None:
        """Raises:
        ModelError: no weights there. CheckpointError: a damaged file or index; names it.
        """
        self.folder = folder
        self._open: dict[Path, int] = {}
        self._opening = Lock()
        self._space = local()  # of each thread that reads
        self.places: dict[str, Place] = {}
        if (folder / INDEX).exists():
            self._read_index(folder / INDEX)
        elif (folder / SINGLE).exists():
            self.places = _header(folder / SINGLE)
        else:
            older = sorted(path.name for path in folder.glob("*.bin"))
            hint = f"; {older[0]} is an older format: `atento convert {folder} --to atento` reads it" if older else ""
            raise ModelError(f"{folder}: {SINGLE} is missing{hint}")

    def _read_index(self, path: Path) -> None:
        try:
            table = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
            files = {name: sorted(n for n, file in table.items() if file == name) for name in set(table.values())}
        except OSError as error:
            raise ModelError(f"{path} cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise CheckpointError(f"{path} is damaged: it must hold a `weight_map` of tensor and file names") from None
        for name in sorted(files):
            if not isinstance(name, str) or Path(name).name != name:
                raise CheckpointError(f"{path}: a shard must be a file of the same folder: got {name!r}")
            if not (path.parent / name).exists():
                raise ModelError(f"{path.parent}: {name} is missing; {path.name} names it")
            held = _header(path.parent / name)
            missing = [tensor for tensor in files[name] if tensor not in held]
            if missing:
                raise CheckpointError(
                    f"{path.parent / name} lacks {counted(len(missing), 'tensor')} of the index: {missing[:3]}"
                )
            self.places |= {tensor: held[tensor] for tensor in files[name]}

    def __enter__(self) -> "TensorFiles":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for fd in self._open.values():
            os.close(fd)
        self._open.clear()

    def read(self, name: str, into: Tensor | None = None) -> Tensor:
        """The tensor of that name, or the same read into a contiguous tensor of its kind and shape.

        Raises:
            CheckpointError: the file ends early.
        """
        place = self.places[name]
        out = torch.empty(place.shape, dtype=place.dtype) if into is None else into
        fd = self._descriptor(place.file)
        view = out.view(-1).view(torch.uint8).numpy().data if place.size else memoryview(b"")
        done = 0
        while done < place.size:
            count = os.preadv(fd, [view[done : done + (1 << 30)]], place.start + done)
            if count <= 0:
                raise CheckpointError(f"{place.file} is truncated: tensor {name!r} ends past its end")
            done += count
        return out

    def _descriptor(self, file: Path) -> int:
        with self._opening:
            if file not in self._open:
                self._open[file] = os.open(file, os.O_RDONLY)
            return self._open[file]

    def _bytes(self, place: Place, start: int, count: int) -> bytes:
        return os.pread(self._descriptor(place.file), count, place.start + start)

    def equal(self, one: str, two: str) -> bool:
        """Whether two tensors have the same shape and hold the same numbers, compared piece by piece."""
        first, second = self.places[one], self.places[two]
        if first.shape != second.shape:
            return False
        if first.dtype != second.dtype:
            wide = torch.promote_types(first.dtype, second.dtype)
            return torch.equal(self.read(one).to(wide), self.read(two).to(wide))
        for start in range(0, first.size, _PIECE):
            count = min(_PIECE, first.size - start)
            if self._bytes(first, start, count) != self._bytes(second, start, count):
                return False
        return True

    def transposed(self, name: str) -> Tensor:
        """The matrix of that name turned round, made through a space that is kept: what is freed leaves holes."""
        place = self.places[name]
        count = place.size // place.dtype.itemsize
        space: Tensor | None = getattr(self._space, "kept", None)
        if space is None or space.dtype != place.dtype or space.numel() < count:
            self._space.kept = space = torch.empty(count, dtype=place.dtype)
        return self.read(name, space[:count].view(place.shape)).t().contiguous()

    def joined(self, names: Sequence[str]) -> Tensor:
        """Several tensors under one another, each read into its rows.

        Raises:
            CheckpointError: their widths or kinds differ.
        """
        places = [self.places[name] for name in names]
        if len({(place.dtype, place.shape[1:]) for place in places}) > 1 or not places[0].shape:
            raise CheckpointError(f"{self.folder}: {', '.join(names)} do not stand under one another: shapes differ")
        whole = torch.empty((sum(place.shape[0] for place in places), *places[0].shape[1:]), dtype=places[0].dtype)
        row = 0
        for name, place in zip(names, places):
            self.read(name, whole[row : row + place.shape[0]])
            row += place.shape[0]
        return whole


def check_finite(folder: Path, name: str, tensor: Tensor) -> None:
    """Raises CheckpointError: a floating-point tensor that holds NaN or infinity."""
    if not tensor.is_floating_point() or not tensor.numel():
        return
    if not all(bool(torch.isfinite(end)) for end in torch.aminmax(tensor)):  # NaN goes through
        raise CheckpointError(f"{folder}: tensor {name} is not finite: it holds NaN or infinity")


def _header(path: Path) -> dict[str, Place]:
    """What a safetensors file says it holds, checked against its size.

    Raises:
        ModelError: it cannot be read. CheckpointError: truncated, altered, or not of this format.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length == _LFS:
                raise ModelError(f"{path} is a Git LFS pointer, not the file itself: fetch it with `git lfs pull`")
            if not 2 <= length <= min(_HEADER_LIMIT, size - 8):
                raise CheckpointError(f"{path} is damaged: a header of {length} bytes in a file of {size}")
            entries: dict[str, Any] = json.loads(file.read(length))
        entries.pop("__metadata__", None)
        places, end = {}, 0
        for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
            start, stop = entry["data_offsets"]
            dtype, shape = _DTYPES.get(entry["dtype"]), tuple(int(n) for n in entry["shape"])
            if dtype is None:
                raise ModelError(f"{path}: tensor {name!r} is of kind {entry['dtype']}, which is not read here")
            count = 1
            for extent in shape:
                count *= extent
            if start != end or min((*shape, 0)) < 0 or stop - start != count * dtype.itemsize:
                raise CheckpointError(f"{path} is damaged: tensor {name!r} does not fit its place")
            places[name] = Place(path, 8 + length + start, stop - start, dtype, shape)
            end = stop
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None
    if 8 + length + end != size:
        raise CheckpointError(f"{path} is damaged: it has {size} bytes, its header says {8 + length + end}")
    return places
