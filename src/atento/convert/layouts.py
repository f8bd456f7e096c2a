"""Conversion of a model folder to a layout, Atento's own or Hugging Face's; older weight files are unpickled first."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from atento.convert.unpickle import older_files
from atento.errors import ModelError, UsageError
from atento.model import load
from atento.models.find import find_model
from atento.models.sentence_transformers import sentence_folder
from atento.models.weight_files import MAX_SHARD_SIZE, TYPES
from atento.models.write import LAYOUTS, is_preserved


def convert(
    model: str | Path,
    out: Path,
    to: str,
    *,
    precision: str | None = None,
    max_shard_size: int | str = MAX_SHARD_SIZE,
    allow_missing: bool = False,
    allow_unused: bool = False,
) -> str:
    """Write a model to another folder.

    Args:
        model: a run, a model folder or a hub name.
        out: the folder to write; it must be empty or not exist.
        to: "atento" or "huggingface".
        precision: "float32", "bfloat16", "float16" or "float64" for every tensor; None: the type that each has in the
            file.
        max_shard_size: bytes, or text such as "5GB"; larger weights are split into several files.
        allow_missing, allow_unused: as in `atento.load`.

    Returns:
        The load report of a model of another layout as text; "" for one of ours.

    Raises:
        UsageError: no such layout or type, or `out` is not empty. ModelError: weights are missing or unused, or a file
            holds more than weights. CapabilityError: the layout cannot represent the network.
    """
    if to not in LAYOUTS:
        raise UsageError(f"`--to` must be one of {', '.join(LAYOUTS)}: got {to!r}")
    if precision is not None and precision not in TYPES:
        raise UsageError(f"`--precision` must be one of {', '.join(TYPES)}: got {precision!r}")
    folder = find_model(model, older=True)
    name = folder.name
    modules = sentence_folder(folder)
    parts = (folder,) if modules is None else (modules.network, *modules.dense)  # the folders that hold weights
    with tempfile.TemporaryDirectory(prefix="atento-") as temporary:
        if older := tuple(part for part in parts if _is_older(part)):
            folder = _unpickled(folder, older, Path(temporary))
        loaded = load(folder, device="cpu", precision="auto", allow_missing=allow_missing, allow_unused=allow_unused)
        loaded.config["name"] = name
        loaded.save(out, layout=to, precision=precision, max_shard_size=max_shard_size)
    return "" if loaded.load_report is None else str(loaded.load_report)


def _is_older(folder: Path) -> bool:
    """Whether the weights of a folder are in older files alone."""
    return bool(older_files(folder)) and not any(folder.glob("model*.safetensors"))


def _unpickled(folder: Path, older: Sequence[Path], temporary: Path) -> Path:
    """A copy of the folder with safetensors in place of the older files of the folders `older` in it."""
    copy = temporary / folder.name
    for file in folder.rglob("*"):
        target = copy / file.relative_to(folder)
        needed = file.suffix in (".json", ".txt", ".model", ".spm") and not file.name.endswith(".bin.index.json")
        if not file.is_file():
            continue
        if needed or is_preserved(file.name):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
        elif file.suffix == ".safetensors":
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(file.resolve())
    for part in older:
        target = copy / part.relative_to(folder)
        target.mkdir(parents=True, exist_ok=True)
        _unpickle(part, target)
    return copy


def _unpickle(folder: Path, out: Path) -> None:
    """Write the weights of older files as safetensors, by a child process.

    Raises:
        ModelError: a file is damaged, or holds more than weights.
    """
    command = [sys.executable, "-m", "atento.convert.unpickle", str(folder), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.returncode:
        return
    last = (done.stderr.strip().splitlines() or [f"it ended with status {done.returncode}"])[-1]
    refused = "Weights only load failed" in done.stderr  # PyTorch says so also of a file that is no pickle
    if refused and not any(word in done.stderr for word in ("truncated", "invalid load key", "EOFError")):
        last = "it holds more than weights, and is not loaded"
    elif refused or "/torch/serialization.py" in done.stderr:
        last = "it is damaged or cut short"
    raise ModelError(f"{folder}: {', '.join(file.name for file in older_files(folder))} cannot be read: {last}")
