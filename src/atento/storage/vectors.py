"""Vectors of texts on disk: one file for each network and way of reading, so that no text is read twice."""

import warnings
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file
from torch import Tensor

from atento.base.errors import AtentoError, AtentoWarning
from atento.storage.atomic_files import atomic_file
from atento.storage.tensorfile import TensorFiles

Vectors = dict[bytes, NDArray[np.floating]]  # key of 16 bytes -> vectors (T,D) of a text, one or one a token


def fingerprint_of(weights: Mapping[str, Tensor], settings: str) -> str:
    """A name for what vectors depend on: the names, types, shapes and bytes of weights, and settings in words."""
    digest = sha256(settings.encode())
    for name, value in sorted(weights.items()):
        value = value.detach().cpu().contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)} ".encode())
        digest.update(value.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:32]


def read_vectors(path: Path, *, mapped: bool = False) -> Vectors:
    """Return the vectors of a file; none if there is no file, or one that is damaged.

    With `mapped` they are read when they are used, and cannot be written: all processes share their memory.
    """
    if not path.is_file():  # opening a pipe would wait
        return {}
    try:
        with TensorFiles(path.parent, path.name) as files:
            keys, lengths = (files.read(name).numpy() for name in ("keys", "lengths"))
            if mapped:
                at = files.entries["values"]
                dtype = str(at.dtype).removeprefix("torch.")
                values: NDArray[np.floating] = np.memmap(at.file, dtype, "r", offset=at.start, shape=at.shape)
            else:
                values = files.read("values").numpy()
    except (AtentoError, KeyError, OSError, ValueError):
        return {}
    if int(lengths.sum()) != len(values) or len(keys) != len(lengths):
        return {}
    parts = np.split(values, np.cumsum(lengths)[:-1])  # the last one ends with the array
    return {key.tobytes(): part for key, part in zip(keys, parts)}


def write_vectors(path: Path, vectors: Vectors) -> None:
    """Write vectors to a file, which is replaced at once or not at all; one that cannot be written is a warning.

    So what was computed is used, and computed again another time.
    """
    if not vectors:
        return
    tensors: dict[str, NDArray[np.generic]] = {
        "keys": np.frombuffer(b"".join(vectors), dtype=np.uint8).reshape(len(vectors), -1),  # (texts,bytes of a key)
        "lengths": np.array([len(value) for value in vectors.values()], dtype=np.int64),  # (texts,)
        "values": np.concatenate(list(vectors.values())),
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as partial:
            save_file(tensors, partial)
    except (OSError, SafetensorError) as error:
        warnings.warn(f"vectors cannot be kept, {path} cannot be written: {error}", AtentoWarning, stacklevel=3)
