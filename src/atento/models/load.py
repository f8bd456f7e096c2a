"""A model loaded for use: found, read, checked, and moved to its device in its precision."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from atento.config.sections.network import network_to_dict
from atento.config.tables.tasks import EMBEDDING
from atento.errors import UsageError, path_of
from atento.models.configuration import answering_config, decoding_config, embedding_config
from atento.models.read import read_model, read_network, read_tokenizer, with_token_ids
from atento.models.weight_files import type_name, widest
from atento.models.word_models import WordModel, read_word_model, trained_word_model
from atento.networks import Network
from atento.precision import resolve_device
from atento.released.load_report import LoadReport
from atento.text.tokenizer import Tokenizer

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64, "int8": torch.float32}
_SECTIONS = {"decoding": decoding_config, "answering": answering_config, "embedding": embedding_config}


@dataclass(frozen=True)
class LoadedModel:
    """A network in evaluation mode and what was read with it; the fields are the arguments of `atento.model.Model`."""

    network: Network
    tokenizer: Tokenizer | None
    config: dict[str, Any]
    path: Path
    load_report: LoadReport | None = None
    words: WordModel | None = None
    precision: str = "float32"
    stored: dict[str, torch.dtype] = field(default_factory=dict)
    """The type of each weight in the file."""
    requested: str = ""
    """What the caller named: a run, a folder, a file or a hub name."""


def precision_type(precision: str) -> torch.dtype:
    """The type of the weights in that precision.

    Raises:
        UsageError: no such precision.
    """
    if precision not in PRECISIONS:
        raise UsageError(f"`precision` must be one of {', '.join(PRECISIONS)}: got {precision!r}")
    return PRECISIONS[precision]


def load_model(
    model: str | Path, device: str, precision: str, *, allow_missing: bool = False, allow_unused: bool = False
) -> LoadedModel:
    """Load a model; the arguments are those of `atento.load`.

    Raises:
        UsageError, ModelError: there is nothing that can be loaded. CheckpointError: truncated or altered; names the
            file.
    """
    path = path_of(model, "model", "a folder, a file or a hub name")
    dtype = None if precision == "auto" else precision_type(precision)
    word_model = read_word_model(path)
    if word_model is not None:
        network: Network = word_model.network.to(device=resolve_device(device), dtype=dtype).eval()
        about = {"name": path.name, "task": EMBEDDING, "network": network_to_dict(network.config)}
        return LoadedModel(network.requires_grad_(False), None, about, path, words=word_model, requested=str(model))
    files = read_model(model, allow_missing=allow_missing, allow_unused=allow_unused)
    config = files.network
    for section, check in _SECTIONS.items():
        if section in files.config:  # a wrong value is found here, not at the first text
            check(files.config, files.path)
    tokenizer = read_tokenizer(files, config)
    config = with_token_ids(config, files, tokenizer)
    if dtype is None:
        dtype = widest(files.weights.values())
        precision = type_name(dtype)
    network = read_network(files, config).to(device=resolve_device(device), dtype=dtype).eval().requires_grad_(False)
    words = trained_word_model(network, tokenizer)
    stored = {name: value.dtype for name, value in files.weights.items()}
    return LoadedModel(
        network, tokenizer, files.config, files.path, files.load_report, words, precision, stored, str(model)
    )
