"""A model folder written anew in a layout: Atento's own or Hugging Face's; older weight files are read on the way."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from atento.convert.unpickle import older_files
from atento.errors import ModelError, UsageError
from atento.model import load
from atento.models.find import find_model
from atento.models.weight_files import MAX_SHARD_SIZE, TYPES
from atento.models.write import is_preserved

LAYOUTS = ("atento", "huggingface")


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
    """Write the model to `out`; returns what became of its weights.

    Every tensor keeps the type of the file, unless `precision` names one for all: "float32", "bfloat16", "float16" or
    "float64". Weights of more than `max_shard_size` bytes (or "5GB") stand in several files.

    Raises:
        UsageError: no such layout or type, or something stands at `out`. ModelError: weights missing or left over, or
            a file that holds more than weights. CapabilityError: the layout cannot hold the network.
    """
    if to not in LAYOUTS:
        raise UsageError(f"`--to` must be one of {', '.join(LAYOUTS)}: got {to!r}")
    if precision is not None and precision not in TYPES:
        raise UsageError(f"`--precision` must be one of {', '.join(TYPES)}: got {precision!r}")
    folder = find_model(model, older=True)
    name = folder.name
    held = older_files(folder)
    with tempfile.TemporaryDirectory(prefix="atento-") as space:
        if held and not any(folder.glob("model*.safetensors")):
            folder = _unpacked(folder, Path(space))
        loaded = load(folder, device="cpu", precision="auto", allow_missing=allow_missing, allow_unused=allow_unused)
        loaded.config["name"] = name
        loaded.save(out, layout=to, precision=precision, max_shard_size=max_shard_size)
    return "" if loaded.load_report is None else str(loaded.load_report)


def _unpacked(folder: Path, space: Path) -> Path:
    """A copy of the folder with safetensors in place of its older files, made by a process of its own."""
    inside = space / folder.name
    inside.mkdir()
    for file in folder.iterdir():
        read = file.suffix in (".json", ".txt", ".model", ".spm") and not file.name.endswith(".bin.index.json")
        if file.is_file() and (read or is_preserved(file.name)):
            shutil.copyfile(file, inside / file.name)
    command = [sys.executable, "-m", "atento.convert.unpickle", str(folder), str(inside)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"it ended with status {done.returncode}"])[-1]
        refused = "Weights only load failed" in done.stderr  # PyTorch's words, also for what is no pickle at all
        if refused and not any(sign in done.stderr for sign in ("truncated", "invalid load key", "EOFError")):
            last = "it holds more than weights, and is not loaded"
        elif refused or "/torch/serialization.py" in done.stderr:
            last = "it is damaged or cut short"
        raise ModelError(f"{folder}: {', '.join(file.name for file in older_files(folder))} cannot be read: {last}")
    return inside
