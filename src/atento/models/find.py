"""From the word MODEL to weights: run folders, model folders, hub names; and a model folder written whole or not."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from atento.attention.positions import ALiBi, Learned, Sinusoidal
from atento.config.decoding import DecodingConfig
from atento.config.network import NetworkConfig, network_to_dict
from atento.config.schema import Reading, as_written
from atento.errors import CheckpointError, ModelError, RecipeError, TokenizerError, UsageError
from atento.models.weight_files import read_weights
from atento.networks import Network, build_network
from atento.networks.families import read_released
from atento.networks.families.load_report import LoadReport
from atento.storage.catalogue import chosen
from atento.storage.checkpoint import load_checkpoint
from atento.storage.manifest import MANIFEST, verify
from atento.tasks.embedding import sentence_folder
from atento.text import has_tokenizer
from atento.text.tokenizer import Tokenizer

_MOST_LAYERS = 1000  # a file that lies about its depth must not cost the time to build it
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class FoundModel:
    """A model's files, read and verified: config.json as data, tensors on the CPU, the folder they stand in.

    Of another project's layout both are translated to ours; the load report then says what became of the weights.
    """

    path: Path
    config: dict[str, Any]
    weights: dict[str, Tensor]
    load_report: LoadReport | None = None


def read_model(model: str | Path, *, allow_missing: bool = False, allow_unused: bool = False) -> FoundModel:
    """Find and read a model.

    `allow_missing` and `allow_unused` let another project's file lack weights, or hold some that have no place here.

    Raises:
        UsageError, ModelError: nothing loadable is there. CheckpointError: truncated or altered; names the file.
    """
    path = locate(model)
    sentences = sentence_folder(path)
    if sentences is not None:
        path = sentences[0]
    if (path / "state.json").exists():
        checkpoint = load_checkpoint(path)
        return FoundModel(path, checkpoint.config, checkpoint.weights)
    if not (path / "config.json").exists():
        raise UsageError(f"{path} is neither a run (no checkpoints) nor a model folder (no config.json)")
    if (path / MANIFEST).exists() and not (path / MANIFEST).is_symlink():  # the hub's cache is made of links
        verify(path)
    config = _config(path / "config.json")
    if config.get("model_type", "atento") != "atento":
        network, weights, load_report = read_released(
            path, config, allow_missing=allow_missing, allow_unused=allow_unused
        )
        ours = {"model_type": "atento", "name": path.name, "task": _task(network), "network": network_to_dict(network)}
        own = config.get("atento")  # what we wrote into their layout
        own = own if isinstance(own, Mapping) else {}
        ours |= {name: own[name] for name in ("name", "task", "decoding") if name in own}
        pooling = sentences[1] if sentences is not None else own.get("embedding")
        if pooling is not None:
            ours |= {"task": "embedding", "embedding": pooling}
        return FoundModel(path, ours, weights, load_report)
    return FoundModel(path, config, read_weights(path))


def _task(network: NetworkConfig) -> str:
    """What a released model is for, as its network tells."""
    if network.architecture == "encoder":
        return next((_TASK_OF_HEAD[head.kind] for head in network.heads if head.kind in _TASK_OF_HEAD), "embedding")
    if network.architecture == "decoder":
        return "language-modeling"
    return "translation" if network.family == "marian" else "text-to-text"


_TASK_OF_HEAD = {
    "masked-language-model": "masked-language-modeling",
    "classification": "classification",
    "regression": "regression",
    "tagging": "tagging",
    "answer": "question-answering",
}


def _config(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is damaged: {error}") from None
    if not isinstance(config, dict):
        raise ModelError(f"{file} must hold one JSON object: got {type(config).__name__}")
    return config


def locate(model: str | Path, *, older: bool = False) -> Path:
    """The folder of a model: the best checkpoint of a run (else its last), a model folder, or a fetched hub name; with
    its `older` weight files where a fetched one has no others.
    """
    path = Path(model)
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:  # too long, not allowed, a NUL
        raise UsageError(f"no model at {path}: {getattr(error, 'strerror', None) or error}") from None
    if (path / "checkpoints").is_dir():
        return _of_run(path)
    if path.is_dir():
        return path
    if path.exists():
        raise UsageError(f"{path} is a file; a model is a folder")
    if _HUB_NAME.fullmatch(str(model)) and not str(model).startswith("."):
        return _fetched(str(model), older)
    raise UsageError(f"no model at {path}: give a run folder, a model folder or a hub name (owner/name)")


def _of_run(run: Path) -> Path:
    choice = chosen(run)
    if choice is None and any((run / "checkpoints").glob("step-*")):
        raise CheckpointError(f"every checkpoint of the run {run} is damaged")
    if choice is None:
        raise UsageError(f"the run {run} has no checkpoint yet")
    return choice.path


def _fetched(name: str, older: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    patterns = [
        "*.json",
        "*.safetensors",
        "vocab.txt",
        "merges.txt",
        "*.model",
        "*.spm",
        "*.jinja",
        "README.md",
        "LICENSE*",
        "NOTICE*",
    ]  # the hub's own hashes stand in for the manifest
    cause: Exception
    try:
        folder = Path(snapshot_download(name, allow_patterns=patterns))
        if older and not any(folder.glob("*.safetensors")):
            folder = Path(snapshot_download(name, allow_patterns=[*patterns, "pytorch_model*.bin"]))
        return folder
    except GatedRepoError as error:
        reason, cause = "its owner has to grant you access on the hub (then `hf auth login`)", error
    except RepositoryNotFoundError as error:
        reason, cause = "the hub has no model of that name that you may read", error
    except HFValidationError as error:
        reason, cause = "it cannot be a hub name (owner/name) either", error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        reason, cause = "it is not in the hub's cache, and the hub cannot be reached: you are offline", error
    except (HfHubHTTPError, OSError) as error:
        what = (str(error).splitlines() or [type(error).__name__])[0]
        reason, cause = f"it could not be fetched from the hub ({what[:200]})", error
    raise UsageError(f"{name} is no local folder, and {reason}; give the path of a local folder") from cause


def network_config(config: Mapping[str, Any], path: Path) -> NetworkConfig:
    """The network's part of a `config.json`.

    Raises:
        ModelError: written by other software, or with fields this version does not know.
    """
    if config.get("model_type") != "atento" or not isinstance(config.get("network"), dict):
        raise ModelError(f"{path}: config.json is not Atento's own (model_type {config.get('model_type')!r})")
    given = dict(config["network"])
    unknown = set(given) - {field.name for field in fields(NetworkConfig)}
    if unknown:
        raise ModelError(
            f"{path}: config.json has unknown network keys {sorted(unknown)}; was it written by a newer version?"
        )
    place = str(path / "config.json")
    try:
        made: NetworkConfig = Reading().fit(as_written(given, place), NetworkConfig, "network")
    except RecipeError as error:
        raise ModelError(str(error)) from None
    for name in ("pad_id", "unk_id", "bos_id", "eos_id", "start_id"):
        if getattr(made, name) >= made.vocab_size:
            raise ModelError(
                f"{place}: network.{name} must be below network.vocab_size: got {getattr(made, name)} and "
                f"{made.vocab_size}"
            )
    if max(made.n_layers, made.decoder_layers) > _MOST_LAYERS:
        raise ModelError(f"{place}: more than {_MOST_LAYERS} layers: got {made.n_layers} and {made.decoder_layers}")
    return made


def decoding_config(config: Mapping[str, Any], path: Path) -> DecodingConfig:
    """How a `config.json` says to decode; keys of other versions are passed over.

    Where it says nothing, a language model decodes greedily, and what reads a source with a beam of 4.

    Raises:
        ModelError: a value that cannot be right.
    """
    given = config.get("decoding", {})
    if isinstance(given, dict):
        given = {"beam": 1} | given if config.get("task") == "language-modeling" else given
        given = {name: given[name] for name in DecodingConfig.__dataclass_fields__ if name in given}
    try:
        made: DecodingConfig = Reading().fit(as_written(given, str(path / "config.json")), DecodingConfig, "decoding")
    except RecipeError as error:
        raise ModelError(str(error)) from None
    return made


def check_weights(network: nn.Module, found: FoundModel) -> None:
    """Raises ModelError: the weights are not those, by name and shape, that the network of their `config.json` has."""
    wanted = network.state_dict()
    if wanted.keys() != found.weights.keys():
        missing, unexpected = sorted(wanted.keys() - found.weights.keys()), sorted(found.weights.keys() - wanted.keys())
        raise ModelError(
            f"{found.path}: weights do not match config.json: {len(missing)} missing {missing[:5]}, "
            f"{len(unexpected)} unexpected {unexpected[:5]}"
        )
    for name, value in wanted.items():
        if value.shape != found.weights[name].shape:
            theirs = () if found.load_report is None else found.load_report.loaded.get(name, ())
            called = f"{', '.join(theirs)}, here {name}," if theirs else name
            raise ModelError(
                f"{found.path}: {called} has shape {tuple(found.weights[name].shape)}, "
                f"config.json says {tuple(value.shape)}"
            )


def read_tokenizer(found: FoundModel, config: NetworkConfig) -> Tokenizer | None:
    """The tokenizer of a model's folder; None where it has none.

    Raises:
        TokenizerError: it is not the model's own, or has more pieces than the model.
    """
    tokenizer = Tokenizer.load(found.path) if has_tokenizer(found.path) else None
    if tokenizer is not None and config.tokenizer_fingerprint not in (None, tokenizer.fingerprint):
        raise TokenizerError(f"{found.path}: the tokenizer is not the one the model was trained with")
    if tokenizer is not None and tokenizer.vocab_size > config.vocab_size:
        raise TokenizerError(
            f"{found.path}: the tokenizer has {tokenizer.vocab_size} pieces and the model {config.vocab_size}"
        )
    return tokenizer


def read_network(found: FoundModel, config: NetworkConfig) -> Network:
    """The network of that configuration with the weights that were found; those that are missing begin anew.

    Raises:
        ModelError: the weights are not those of the network.
    """
    anew = bool(found.load_report and found.load_report.new)
    with torch.device("cpu" if anew else "meta"):
        network = build_network(config)
    if anew:
        found = replace(found, weights=network.state_dict() | found.weights)
    check_weights(network, found)
    network.load_state_dict(found.weights, assign=True)
    for module in network.modules():  # buffers that are computed, not stored
        if isinstance(module, ALiBi | Sinusoidal):
            module.reset_buffers()
    return network


def initial_model(init: str, home: Path) -> FoundModel:
    """The model that training starts from: a path relative to the recipe's folder, or a hub name."""
    return read_model(home / init if (home / init).exists() else init)


def fine_tuned(start: FoundModel, wanted: NetworkConfig, tokenizer: Tokenizer) -> NetworkConfig:
    """The network of the model that training starts from; the recipe's are only the dropouts, and a longer `max_len`
    where positions are learned.

    Raises:
        TokenizerError: the model's tokenizer is not its own.
    """
    config = network_config(start.config, start.path)
    if config.tokenizer_fingerprint not in (None, tokenizer.fingerprint):
        raise TokenizerError(f"{start.path}: the tokenizer is not the one the model was trained with")
    changed = {name: getattr(wanted, name) for name in ("dropout", "attention_dropout", "activation_dropout")}
    if any(scheme.kind == "learned" for scheme in config.schemes):
        changed["max_len"] = max(config.max_len, wanted.max_len)
    return replace(config, **changed)


@torch.no_grad()
def lengthened(start: FoundModel, network: nn.Module, wanted: NetworkConfig) -> FoundModel:
    """The model with its learned position tables as long as the network's, as the recipe's `longer` says.

    See docs/notes.md#b2.
    """
    how = next((scheme.longer for scheme in wanted.schemes if scheme.kind == "learned"), "grown")
    weights = dict(start.weights)
    for name, part in network.named_modules():
        kept = weights.get(f"{name}.weight")
        if not isinstance(part, Learned) or kept is None or kept.shape[0] >= part.weight.shape[0]:
            continue
        table = Learned(kept.shape[0] - part.shift, kept.shape[1], part.shift)
        table.weight.copy_(kept)
        longer = table.interpolated(part.max_len) if how == "interpolated" else table.grown(part.max_len)
        weights[f"{name}.weight"] = longer.weight
    return replace(start, weights=weights)
