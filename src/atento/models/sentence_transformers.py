"""Reads and writes the modules of sentence-transformers folders, so that `encode` pools as `Model.embed` does."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atento.config.embedding import EmbeddingConfig
from atento.config.network import NetworkConfig
from atento.errors import CapabilityError, ModelError

MODULES = "modules.json"
_LIMITS = "sentence_bert_config.json"
_POOLINGS = {"first": "cls_token", "mean": "mean_tokens", "max": "max_tokens", "last": "lasttoken"}
_MODES = {f"pooling_mode_{theirs}": ours for ours, theirs in _POOLINGS.items()}


def sentence_folder(path: Path) -> tuple[Path, dict[str, Any]] | None:
    """The folder of the network inside a sentence-transformers folder, and its embedding configuration as data.

    Returns:
        None for any other folder.

    Raises:
        ModelError: the folder is damaged, or has a module or a pooling that is not supported; names the file.
    """
    modules = path / MODULES
    if not modules.exists():
        return None
    rows = _read_json(modules)
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise ModelError(f"{modules} is damaged: it must hold a list of modules")
    network, config = path, {"pooling": "mean", "normalize": False}
    for row in rows:
        kind, folder = str(row.get("type", "")).rpartition(".")[2], path / str(row.get("path", ""))
        if kind == "Transformer":
            network = folder
        elif kind == "Pooling":
            config["pooling"] = _pooling(folder / "config.json")
        elif kind == "Normalize":
            config["normalize"] = True
        else:
            raise ModelError(f"{modules}: a module of type {row.get('type')!r} is not built here")
    if (network / _LIMITS).exists():
        limits = _read_json(network / _LIMITS)
        if isinstance(limits, Mapping) and isinstance(limits.get("max_seq_length"), int):
            config["max_len"] = limits["max_seq_length"]
    return network, config


def _pooling(file: Path) -> str:
    """Our name of the pooling that a module's configuration selects."""
    config = _read_json(file)
    if not isinstance(config, Mapping):
        raise ModelError(f"{file} must hold one JSON object: got {type(config).__name__}")
    selected = [name for name, on in config.items() if name.startswith("pooling_mode") and on is True]
    named = config.get("pooling_mode")
    if not selected and isinstance(named, str):  # later versions name the mode
        suffix = {"cls": "cls_token", "lasttoken": "lasttoken"}.get(named, f"{named}_tokens")
        selected = [f"pooling_mode_{suffix}"]
    if len(selected) != 1 or selected[0] not in _MODES:
        raise ModelError(f"{file}: one of {', '.join(_MODES)} must be true: got {', '.join(selected) or 'none'}")
    return _MODES[selected[0]]


def sentence_files(network: NetworkConfig, embedding: EmbeddingConfig, max_len: int | None) -> dict[str, bytes]:
    """The files, by name, that make sentence-transformers pool as `Model.embed` does.

    Args:
        network: the network whose vectors are pooled.
        embedding: how the model pools.
        max_len: positions that the network has in the Hugging Face layout; None: any number.

    Raises:
        CapabilityError: the vectors are those of another layer than the last.
    """
    if embedding.layer not in (-1, network.n_layers - 1):
        raise CapabilityError(f"sentence-transformers pools the last layer only: got layer {embedding.layer}")
    pooling = {mode: embedding.pooling == ours for mode, ours in _MODES.items()}
    limits = [limit for limit in (embedding.max_len, max_len) if limit is not None]
    modules = [("Transformer", ""), ("Pooling", "1_Pooling")]
    modules += [("Normalize", "2_Normalize")] if embedding.normalize else []
    rows = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(modules)
    ]
    return {
        MODULES: _json_bytes(rows),
        "1_Pooling/config.json": _json_bytes({"word_embedding_dimension": network.d_model, **pooling}),
        _LIMITS: _json_bytes({"max_seq_length": min(limits, default=None), "do_lower_case": False}),
    }


def _read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{file} is damaged: {error}") from None


def _json_bytes(data: Any) -> bytes:
    return (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode()
