"""Older weight files of a model folder as safetensors, read by a child process."""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from atento.base.errors import ModelError
from atento.base.limits import open_plain
from atento.models.model_folder import read_config
from atento.models.peft import ADAPTER_CONFIG
from atento.models.write import is_preserved
from atento_cli.convert.unpickle import older_files


def unpickled(folder: Path, older: Sequence[Path], temporary: Path) -> Path:
    """A copy of the folder with safetensors in place of the older files of the folders `older` in it."""
    copy = temporary / folder.name
    for file in folder.rglob("*"):
        target = copy / file.relative_to(folder)
        if not file.is_file():
            continue
        if needed(file.name) or is_preserved(file.name):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
        elif file.suffix == ".safetensors":
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(file.resolve())
    # let the copy of an adapter of PEFT name the base that the folder itself names by a path from there
    if (copy / ADAPTER_CONFIG).exists():
        settings = read_config(copy / ADAPTER_CONFIG)
        base = folder / str(settings.get("base_model_name_or_path"))
        if base.exists():
            settings["base_model_name_or_path"] = str(base.resolve())
            (copy / ADAPTER_CONFIG).write_text(json.dumps(settings), encoding="utf-8")
    for part in older:
        target = copy / part.relative_to(folder)
        target.mkdir(parents=True, exist_ok=True)
        unpickle_into(part, target)
    return copy


def needed(name: str) -> bool:
    """Whether a file of that name has the configuration or the tokenizer of a model."""
    return name.endswith((".json", ".txt", ".model", ".spm")) and not name.endswith(".bin.index.json")


def unpickle_into(folder: Path, out: Path) -> None:
    """Write the weights of older files as safetensors, by a child process.
    Raises ModelError: a file is damaged, or holds more than weights.
    """
    files = older_files(folder)
    for file in filter(Path.is_file, files):
        with open_plain(file) as opened:
            if opened.read(8) == b"version ":
                raise ModelError(f"{file} is a Git LFS pointer, not the file itself: fetch it with `git lfs pull`")
    command = [sys.executable, "-m", "atento_cli.convert.unpickle", str(folder), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.returncode:
        return
    last = (done.stderr.strip().splitlines() or [f"it ended with status {done.returncode}"])[-1]
    refused = "Weights only load failed" in done.stderr  # PyTorch says so also of a file that is no pickle
    if refused and not any(word in done.stderr for word in ("truncated", "invalid load key", "EOFError")):
        last = "it holds more than weights, and is not loaded"
    elif refused or "/torch/serialization.py" in done.stderr:
        last = "it is damaged or cut short"
    raise ModelError(f"{folder}: {', '.join(file.name for file in files)} cannot be read: {last}")
