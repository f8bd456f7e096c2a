"""Two runs compared: what of them is not the same, bit for bit."""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from atento.storage.checkpoint import load_checkpoint
from atento.storage.checkpoint_list import newest
from atento.training.metrics_log import read_journal

CLOCK = ("tokens_per_second", "seconds")  # what is measured, not computed


def events(run: Path, kind: str) -> list[dict[str, Any]]:
    """The events of one kind, without what the clock says."""
    found = [event for event in read_journal(run / "metrics.jsonl") if event["event"] == kind]
    return [{name: value for name, value in event.items() if name not in CLOCK} for event in found]


def last(run: Path) -> Path:
    """The newest checkpoint that verifies."""
    path = newest(run / "checkpoints", rename_damaged=False)
    assert path is not None
    return path


def tensors(path: Path) -> dict[str, bytes]:
    """Every tensor of a safetensors file, or of the shards of it, as its bytes, its type and its shape."""
    if path.exists():
        content = load_file(path)
    else:
        checkpoint = load_checkpoint(path.parent)
        content = checkpoint.weights if path.name.startswith("model") else checkpoint.optimizer
    return {
        name: f"{value.dtype} {tuple(value.shape)} ".encode() + value.contiguous().numpy().tobytes()
        for name, value in content.items()
    }


def facts(path: Path) -> dict[str, Any]:
    """The state of a checkpoint."""
    content: dict[str, Any] = json.loads((path / "state.json").read_text(encoding="utf-8"))
    return content


def state(run: Path) -> dict[str, Any]:
    """What the last checkpoint knows of the run, without what is each run's own.

    The hash of the events is: they hold what the clock says.
    """
    own = ("run_id", "finished", "journal", *CLOCK)
    return {name: value for name, value in facts(last(run)).items() if name not in own}


def batches(record: Path) -> dict[int, list[Any]]:
    """What every update was made of, by its number. An update that was made twice must have been made of the same."""
    found: dict[int, list[Any]] = {}
    for line in record.read_text(encoding="utf-8").splitlines():
        update = json.loads(line)
        content = [update["rows"], update["ids"]]
        assert found.setdefault(update["update"], content) == content, f"update {update['update']} changed"
    return found


def differences(one: Path, other: Path) -> list[str]:
    """The names of what differs: an empty list says that the two runs are the same run."""
    pairs: dict[str, Any] = {kind: (events(one, kind), events(other, kind)) for kind in ("train", "valid", "end")}
    for name in ("model.safetensors", "optimizer.safetensors"):
        pairs[name] = (tensors(last(one) / name), tensors(last(other) / name))
    pairs["state"] = (state(one), state(other))
    pairs["tokenizer"] = tuple((run / "tokenizer" / "tokenizer.json").read_bytes() for run in (one, other))
    averaged = [newest(run / "averaged", rename_damaged=False) for run in (one, other)]
    pairs["averaged"] = tuple(None if path is None else tensors(path / "model.safetensors") for path in averaged)
    return [name for name, (mine, yours) in pairs.items() if mine != yours]
