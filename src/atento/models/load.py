"""Loads a model folder of any layout: found, read, each part checked against the others, built."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from atento.base.errors import ModelError, TokenizerError, UsageError
from atento.base.limits import path_of
from atento.base.precision import resolve_device
from atento.config.sections.network import NetworkConfig, changed, network_to_dict
from atento.config.tables.released_keys import FILES
from atento.config.tables.renamed_keys import VERSION
from atento.config.tables.tasks import EMBEDDING, task_of
from atento.models.generation_settings import GENERATION, Generation, read_generation
from atento.models.migration import migrated
from atento.models.model_folder import (
    CALIBRATION,
    CONFIG,
    LORA,
    OUR_KEYS,
    SECTIONS,
    decoding_config,
    find_model,
    kept_confidence,
    lora_config,
    network_config,
    read_config,
    section_of,
    word_files,
)
from atento.models.peft import ADAPTER_CONFIG, read_peft, with_ours
from atento.models.weight_files import read_weights, type_name, widest
from atento.models.word_models import WordModel, read_word_model, trained_word_model
from atento.networks import CBOW, ELMo, Network, build_network
from atento.networks.adapters import join_adapters
from atento.networks.build import WithoutDraws
from atento.networks.int8_projection import with_int8_maps
from atento.networks.stack.encoder import Encoder
from atento.released import read_released
from atento.released.family import check_depth
from atento.released.load_report import LoadReport
from atento.released.sentence_transformers import (
    CROSS_ENCODER,
    MODULES,
    SentenceModules,
    sentence_folder,
    with_projections,
)
from atento.storage.checkpoint import load_checkpoint
from atento.storage.manifest import MANIFEST, verify
from atento.storage.tensorfile import instead
from atento.text import has_tokenizer
from atento.text.tokenizer import Tokenizer

_log = logging.getLogger(__name__)
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64, "int8": torch.float32}


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
    """The type of the weights in that precision. Raises UsageError: no such precision."""
    if precision not in PRECISIONS:
        raise UsageError(f"`precision` must be one of {', '.join(PRECISIONS)}: got {precision!r}")
    return PRECISIONS[precision]


def load_model(
    model: str | Path, device: str, precision: str, *, allow_missing: bool = False, allow_unused: bool = False
) -> LoadedModel:
    """Load a model; the arguments are those of `atento.load`.
    Raises UsageError, ModelError: there is nothing that can be loaded. CheckpointError: truncated or altered; names the
    file.
    """
    path = path_of(model, "model", "a folder, a file or a hub name")
    dtype = None if precision == "auto" else precision_type(precision)
    if files_of_words := word_files(path):
        word_model = read_word_model(files_of_words)
        network: Network = word_model.network.to(resolve_device(device), dtype=dtype).eval().requires_grad_(False)
        about = {"name": path.name, "task": EMBEDDING, "network": network_to_dict(network.config)}
        if dtype is None:
            precision = type_name(next(network.parameters()).dtype)
        return LoadedModel(network, None, about, path, None, word_model, precision, requested=str(model))
    files = read_model(model, allow_missing=allow_missing, allow_unused=allow_unused)
    config = files.network_config
    if CALIBRATION in files.config:
        if precision not in ("float32", "auto", "int8"):
            raise UsageError(f"{model} has weights of 8 bits, so its precision is int8: got {precision!r}")
        device, precision, dtype = "cpu" if device == "auto" else device, "int8", torch.float32
    files = replace(files, config=files.config | kept_confidence(files.path))
    if "decoding" in files.config:  # a wrong value is found here, not at the first text
        decoding_config(files.config, files.path)
    for kind, section in SECTIONS.items():
        if section in files.config:
            section_of(kind, files.config, files.path)
    tokenizer = read_tokenizer(files, config)
    config = with_token_ids(config, files, tokenizer)
    if dtype is None:
        dtype = widest(files.weights.values())
        precision = type_name(dtype)
    network = read_network(files, config).to(device=resolve_device(device), dtype=dtype).eval().requires_grad_(False)
    words = trained_word_model(network, tokenizer) if isinstance(network, ELMo | CBOW) else None
    stored = {name: value.dtype for name, value in files.weights.items()}
    return LoadedModel(
        network, tokenizer, files.config, files.path, files.load_report, words, precision, stored, str(model)
    )


@dataclass(frozen=True)
class ModelFiles:
    """The content of a model folder in our layout; names and keys of other layouts are translated."""

    path: Path  # the folder
    config: dict[str, Any]  # `config.json`
    weights: dict[str, Tensor]  # tensors by our names, on the CPU
    load_report: LoadReport | None = None  # how the weights of another layout were loaded; None for ours

    @cached_property
    def network_config(self) -> NetworkConfig:
        """The network of `config.json`. Raises ModelError: it is of another layout, or a value is out of range."""
        return network_config(self.config, self.path)


def read_model(model: str | Path, *, allow_missing: bool = False, allow_unused: bool = False) -> ModelFiles:
    """Find a model and read its configuration and weights, verified where the folder has a manifest.

    Args:
        model: a run, a model folder or a hub name, as `find_model` takes it.
        allow_missing: the file of another layout may lack weights of the network.
        allow_unused: it may hold weights that the network does not have.

    Raises:
        UsageError, ModelError: there is nothing that can be loaded. CheckpointError: truncated or altered; names the
            file.
    """
    found = path = find_model(model)  # the path that names the model; `path`: where its network lies
    modules = sentence_folder(path) if (path / MODULES).exists() else None
    if modules is not None:
        path = modules.network
    if (path / "state.json").exists():  # a checkpoint of ours
        checkpoint = load_checkpoint(path)
        kept, weights = migrated(checkpoint.config, checkpoint.weights, str(path))
        if lora := lora_config(kept, path):  # adapters are joined to the weights that they stand on
            weights = join_adapters(weights, lora, network_config(kept, path))
        return ModelFiles(path, {key: value for key, value in kept.items() if key != LORA or lora is None}, weights)
    named, is_adapter = not Path(model).exists(), (path / ADAPTER_CONFIG).exists()  # not a path: a name on the hub
    allowed: dict[str, Any] = {"allow_missing": allow_missing, "allow_unused": allow_unused}
    if is_adapter:
        base, theirs, network, weights, load_report = read_peft(path, fetch=named, **allowed)
    elif not (path / CONFIG).exists():
        raise UsageError(f"{path} is neither a run (no checkpoints) nor a model folder (no config.json){instead(path)}")
    else:
        base, theirs, manifest = path, read_config(path / CONFIG), path / MANIFEST
        if not (manifest.is_symlink() and (path / CONFIG).is_symlink()):  # the hub's cache is verified by its hashes
            if manifest.is_symlink() or manifest.exists():
                verify(path)
            elif theirs.get("model_type") == "atento" or ("atento" in theirs and "transformers_version" not in theirs):
                _log.warning(
                    "%s has no %s, which every folder that Atento writes has: whether its files were altered is not "
                    "known",
                    path,
                    MANIFEST,
                )
        for part in (path, *(() if modules is None else modules.dense)) if named else ():
            if not any(part.glob("*.safetensors")):  # older files are not fetched
                where = "" if part == path else f" in {part.name}"
                raise ModelError(
                    f"{model} has no safetensors{where} on the hub; if it has older weight files (pytorch_model.bin), "
                    f"`atento convert {model} --to atento --out DIR` reads them"
                )
        if theirs.get("model_type", "atento") == "atento":
            return ModelFiles(path, *migrated(theirs, read_weights(path), str(path)))
        network, weights, load_report = read_released(path, theirs, **allowed)
    if modules is not None:
        network, weights = with_projections(network, weights, modules)
    generation = read_generation(base, theirs, network) if network.writes else Generation(network)
    unread = [] if modules is None else list(modules.unread)
    for name, folder in product(sorted(FILES.keys() - {GENERATION}), (found, base, path)):
        if (folder / name).is_file():
            unread += [f"{name}: {key}" for key in FILES[name].unread(read_config(folder / name))]
    load_report.unread += dict.fromkeys(unread)
    config = _translated(theirs, generation, path, modules, load_report)
    if is_adapter:
        config = with_ours(config, generation.network, path)
    # an adapter may bring its own tokenizer
    return ModelFiles(path if has_tokenizer(path) else base, config, weights, load_report)


def _translated(
    config: Mapping[str, object],
    generation: Generation,
    path: Path,
    modules: SentenceModules | None,
    load_report: LoadReport,
) -> dict[str, object]:
    """Our `config.json` for a folder in the Hugging Face layout, with its sentence-transformers modules, if any.

    The load report says which default decoding the folder has, and which of its settings are not done.
    """
    network = generation.network
    ours = {
        "model_type": "atento",
        "version": VERSION,
        "name": path.name,
        "task": task_of(network),
        "network": network_to_dict(network),
    }
    ranker = config.get("sentence_transformers")
    if isinstance(ranker, Mapping) and ranker.items() >= CROSS_ENCODER["sentence_transformers"].items():
        ours["pairs"] = True  # its numbers are raw
    exported = config.get("atento")  # the keys that our export adds to their layout
    exported = exported if isinstance(exported, Mapping) else {}
    if "decoding" not in exported and generation.decoding:
        ours["decoding"] = generation.decoding
        load_report.decoding = generation.decoding
    load_report.unread += [f"{GENERATION}: {key}" for key in generation.unread]
    ours |= {name: exported[name] for name in OUR_KEYS if name in exported and name != "embedding"}
    embedding = exported.get("embedding") if modules is None else modules.embedding
    return ours if embedding is None else ours | {"task": EMBEDDING, "embedding": embedding}


def with_token_ids(config: NetworkConfig, files: ModelFiles, tokenizer: Tokenizer | None) -> NetworkConfig:
    """The network with the ids of the unknown token and the mask that its tokenizer has.

    The configuration of a released model does not name all of them; other models have their own.
    """
    if tokenizer is None or files.load_report is None:
        return config
    unk, mask = tokenizer.specials.get("unk"), tokenizer.specials.get("mask")
    return changed(config, ids={"unk": config.unk_id if unk is None else unk, "mask": mask})


def check_weights(network: nn.Module, files: ModelFiles) -> None:
    """Check names and shapes of the weights against the network of their `config.json`.
    Raises ModelError: a name is missing or unexpected, or a shape differs.
    """
    expected = network.state_dict()
    if expected.keys() != files.weights.keys():
        missing = sorted(expected.keys() - files.weights.keys())
        unexpected = sorted(files.weights.keys() - expected.keys())
        raise ModelError(
            f"{files.path}: weights do not match config.json: {len(missing)} missing {missing[:5]}, "
            f"{len(unexpected)} unexpected {unexpected[:5]}"
        )
    _check_shapes(expected, files)


def _check_shapes(expected: Mapping[str, Tensor], files: ModelFiles) -> None:
    """Raises ModelError: a weight of the folder has another shape than the one of that name in a network."""
    for name, value in expected.items():
        if name in files.weights and value.shape != files.weights[name].shape:
            theirs = () if files.load_report is None else files.load_report.loaded.get(name, ())
            description = f"{', '.join(theirs)}, here {name}," if theirs else name
            raise ModelError(
                f"{files.path}: {description} has shape {tuple(files.weights[name].shape)}, "
                f"config.json says {tuple(value.shape)}"
            )


def read_tokenizer(files: ModelFiles, config: NetworkConfig) -> Tokenizer | None:
    """The tokenizer of a model folder; None where it has none.
    Raises TokenizerError: it is not the model's own, or has more pieces than the model.
    """
    tokenizer = Tokenizer.load(files.path) if has_tokenizer(files.path) else None
    if tokenizer is not None:
        if tokenizer.overruled and config.tokenizer_fingerprint not in (None, tokenizer.fingerprint):
            tokenizer = Tokenizer.load(files.path, by_class=False)  # as earlier versions read and trained it
        if files.load_report is not None:
            files.load_report.overruled = list(tokenizer.overruled)
        check_tokenizer(tokenizer, config, files.path)
    return tokenizer


def check_tokenizer(tokenizer: Tokenizer, config: NetworkConfig, path: Path) -> None:
    """Check that a tokenizer is that of a model, which may have more rows than the tokenizer has pieces.

    Raises:
        TokenizerError: it is not the one that the model was trained with, if the model records it, or has more pieces.
    """
    if config.tokenizer_fingerprint not in (None, tokenizer.fingerprint):
        raise TokenizerError(f"{path}: the tokenizer is not the one the model was trained with")
    for side, size in dict.fromkeys(((tokenizer, config.vocab_size), (tokenizer.target, config.target_vocab_size))):
        special = [text for text, token_id in side.specials.ids.items() if token_id >= size]  # no text makes them
        if side.vocab_size > size + len(special) or max(side.template().ids(), default=0) >= size:
            raise TokenizerError(
                f"{path}: the tokenizer has {side.vocab_size} pieces and the model {size}: give it rows for all "
                "(`resize_token_embeddings` of transformers), or take the last tokens out of the tokenizer's files"
            )
        if special:
            _log.warning("%s: the model has no row for %s, which it never reads", path, ", ".join(special))


def planned_network(files: ModelFiles, config: NetworkConfig) -> Network:
    """The network of that configuration without values, in no memory, after its sizes agree with those of the folder.
    Raises ModelError: it has other sizes than the weights of the folder, or none that can be built.
    """
    check_depth(config, len(files.weights), str(files.path / CONFIG))
    with torch.device("meta"), WithoutDraws():
        try:
            network = build_network(config)
            if CALIBRATION in files.config and isinstance(network, Encoder):
                with_int8_maps(network.stack, files.weights, "stack.")
        except (RuntimeError, OverflowError, MemoryError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise ModelError(f"{files.path / CONFIG}: no network of these sizes can be built: {reason}") from None
    _check_shapes(network.state_dict(), files)
    return network


def read_network(files: ModelFiles, config: NetworkConfig) -> Network:
    """The network of that configuration with the weights of the folder; missing ones keep their initial values.
    Raises ModelError: the weights are not those of the network.
    """
    network = planned_network(files, config)
    if files.load_report and files.load_report.new:
        network = build_network(config)
        files = replace(files, weights=network.state_dict() | files.weights)
    check_weights(network, files)
    network.load_state_dict(files.weights, assign=True)
    for module in network.modules():  # buffers that are computed, not stored
        if reset := getattr(module, "reset_buffers", None):
            reset()
    return network
