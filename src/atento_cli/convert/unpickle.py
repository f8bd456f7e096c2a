"""A program that reads the tensors of older weight files, and nothing else in them, and writes them as safetensors.

    python -m atento_cli.convert.unpickle FOLDER OUT

Pickle can run code. PyTorch's `weights_only` reader refuses that, and a separate process protects the caller from its
effects and its memory use.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from atento.base.errors import ModelError
from atento.base.limits import open_plain, read_plain_text

SINGLE, INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
ADAPTER = "adapter_model.bin"  # of PEFT
COMET_HEAD = "head.safetensors"  # what a checkpoint of COMET has beside its encoder
_COMET_ENCODER = "encoder.model."
_LIGHTNING = ("pytorch_lightning.", "lightning.", "lightning_fabric.")  # whose classes have no say in the weights
_TIMES, _MORE = 6, 2 << 30  # memory: so many times the files (read, copied, written), and bytes of PyTorch's own


class _Unread:
    """What stands in place of an object of PyTorch Lightning; it does nothing."""

    def __init__(self, *arguments: object, **more: object) -> None:
        pass


def comet_checkpoint(folder: Path) -> Path | None:
    """The checkpoint of a folder as COMET writes it; None: it has none, or several."""
    files = list((folder / "checkpoints").glob("*.ckpt")) if (folder / "hparams.yaml").exists() else []
    return files[0] if len(files) == 1 else None


def older_files(folder: Path) -> list[Path]:
    """The older weight files of a folder, sorted by name; empty if it has none. Raises ModelError: a damaged index."""
    if (checkpoint := comet_checkpoint(folder)) is not None:
        return [checkpoint]
    if (folder / SINGLE).exists():
        return [folder / SINGLE]
    if (folder / INDEX).exists():
        try:
            names = {str(name) for name in json.loads(read_plain_text(folder / INDEX))["weight_map"].values()}
        except OSError as error:
            raise ModelError(f"{folder / INDEX} cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ModelError(f"{folder / INDEX} is damaged: it must hold a `weight_map` of file names") from None
        return [folder / Path(name).name for name in sorted(names)]
    return [folder / ADAPTER] if (folder / ADAPTER).exists() else []


def safe_name(older: Path) -> str:
    """The safetensors file that takes the place of an older one."""
    return "adapter_model.safetensors" if older.name == ADAPTER else "model.safetensors"


def bounded(files: Sequence[Path]) -> None:
    """Limit the memory of this process by the size of the files, which may swell when they are unpacked.
    Raises OSError: one of them is no plain file.
    """
    size = 0
    for file in files:
        with open_plain(file) as opened:
            size += os.fstat(opened.fileno()).st_size
    with suppress(ImportError, OSError, ValueError):  # where the system has no such limit
        import resource

        now = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * os.sysconf("SC_PAGE_SIZE")
        most = now + _TIMES * size + _MORE
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def unpickle(folder: Path, out: Path) -> None:
    """Write OUT/model.safetensors, or OUT/adapter_model.safetensors; for a process of its own, which is `bounded`.

    The weights of COMET are those of its encoder; the others are in OUT/head.safetensors.
    """
    tensors: dict[str, Tensor] = {}
    storages: set[tuple[int, int, tuple[int, ...]]] = set()
    files = older_files(folder)
    for file in files:
        with torch.serialization.safe_globals(_inert(file)):
            content = torch.load(file, map_location="cpu", weights_only=True)
        content = content.get("state_dict", content) if file.suffix == ".ckpt" else content
        if not isinstance(content, dict):
            raise ValueError(f"{file} holds a {type(content).__name__}, not a table of tensors")
        for name, value in content.items():
            if not isinstance(value, Tensor):
                continue
            storage = (value.untyped_storage().data_ptr(), int(value.storage_offset()), tuple(value.shape))
            value = value.clone() if storage in storages else value  # the format has no shared storage
            storages.add(storage)
            tensors[str(name)] = value.contiguous()
    if files[0].suffix == ".ckpt":
        head = {name: tensors.pop(name) for name in list(tensors) if not name.startswith(_COMET_ENCODER)}
        save_file(head, out / COMET_HEAD, {"format": "pt"})
        tensors = {
            name.removeprefix(_COMET_ENCODER): value for name, value in tensors.items() if ".pooler." not in name
        }
    save_file(tensors, out / safe_name(files[0]), {"format": "pt"})


def _inert(file: Path) -> list[Callable[..., object] | tuple[Callable[..., Any], str]]:
    """What stands for the classes of PyTorch Lightning in a checkpoint."""
    if file.suffix != ".ckpt":
        return []
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(file)
    except (ValueError, RuntimeError):  # no archive: a file of an older kind, or a damaged one
        return []
    return [(_Unread, name) for name in names if name.startswith(_LIGHTNING)]


if __name__ == "__main__":
    bounded(older_files(Path(sys.argv[1])))
    unpickle(Path(sys.argv[1]), Path(sys.argv[2]))
