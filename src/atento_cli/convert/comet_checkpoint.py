"""COMET's checkpoints as folders of our layout: the encoder, and the head of the metric beside it."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atento.attention.entmax import entmax, softmax
from atento.base.errors import ModelError, UsageError, reason_of
from atento.base.limits import read_plain_text
from atento.config.reading.yaml12 import read_yaml
from atento.config.sections.network import network_to_dict
from atento.config.tables.renamed_keys import VERSION
from atento.model import load
from atento.models.model_folder import CONFIG, find_model, read_config
from atento.models.weight_files import in_types
from atento.models.write import preserved_files, write_model
from atento.storage.tensorfile import TensorFiles, safetensors_chunks, to_bytes
from atento.tasks.comet_metrics import ACTIVATIONS, HPARAMS, POOLINGS, SETTINGS, WEIGHTS
from atento_cli.convert.unpickle import COMET_HEAD, comet_checkpoint
from atento_cli.convert.unpickling import needed, unpickle_into

_METRICS = {"regression_metric": "comet", "unified_metric": "comet-kiwi"}
_USUAL = {"layer": "mix", "pool": "avg", "layer_norm": True, "activations": "Tanh", "final_activation": None}


def is_comet(model: str | Path) -> bool:
    """Whether a folder is as COMET writes it: hyper-parameters, and a checkpoint of PyTorch Lightning."""
    return (Path(model) / HPARAMS).is_file()


def convert_comet(folder: Path, out: Path, *, precision: str | None = None, max_shard_size: int | str) -> None:
    """Write a folder of ours; the encoder's `config.json` and tokenizer stand in `folder`, or in the hub's cache.
    Raises ModelError: a checkpoint of another metric or encoder, or of none.
    """
    file = folder / HPARAMS
    written = read_yaml(read_plain_text(file), lambda line, column: f"{file}:{line}:{column}").bare()
    if not isinstance(written, dict):
        raise ModelError(f"{file} is damaged: it must hold the hyper-parameters of a model of COMET")
    hparams = _USUAL | written
    metric = _METRICS.get(str(hparams.get("class_identifier")))
    segments = hparams.get("input_segments", ["mt", "src"])
    if metric is None or hparams.get("encoder_model") != "XLM-RoBERTa" or segments != ["mt", "src"]:
        about = [hparams.get(key) for key in ("class_identifier", "encoder_model", "input_segments")]
        raise ModelError(f"{file}: read are regression_metric and unified_metric (mt, src) on XLM-RoBERTa: got {about}")
    if comet_checkpoint(folder) is None:
        raise ModelError(f"{folder}: checkpoints/ must hold the one checkpoint (.ckpt) that {HPARAMS} is of")
    with tempfile.TemporaryDirectory(prefix="atento-") as temporary:
        copy = Path(temporary)
        for file in _encoder(folder, str(hparams.get("pretrained_model"))).iterdir():
            if file.is_file() and needed(file.name):
                shutil.copyfile(file, copy / file.name)
        config = read_config(copy / CONFIG) | {"architectures": ["XLMRobertaModel"]}  # the head of masks is not there
        (copy / CONFIG).write_text(json.dumps(config), encoding="utf-8")
        unpickle_into(folder, copy)
        with TensorFiles(copy, COMET_HEAD) as files:
            head = {name: files.read(name) for name in files.entries}
        model = load(copy, "cpu", "auto")
    settings, tensors = _head(hparams, metric, head, model.network.config.n_layers, folder)
    files_of_head = {WEIGHTS: b"".join(to_bytes(safetensors_chunks(WEIGHTS, tensors)))}
    files_of_head[SETTINGS] = (json.dumps(settings, indent=2) + "\n").encode()
    if model.tokenizer is None:
        raise ModelError(_beside(folder, hparams.get("pretrained_model")))
    network = {"version": VERSION, "name": folder.name, "network": network_to_dict(model.network.config)}
    weights = in_types(model.network.state_dict(), model.stored, precision, str(folder))
    files_of_head |= model.tokenizer.files() | preserved_files(folder)
    write_model(out, model.config | network, weights, files_of_head, max_shard_size=max_shard_size)


def _beside(folder: Path, name: object) -> str:
    return f"{folder}: COMET leaves out the encoder's files: put {CONFIG} and the tokenizer of {name} beside {HPARAMS}"


def _encoder(folder: Path, name: str) -> Path:
    if (folder / CONFIG).exists():
        return folder
    try:
        return find_model(name if "/" in name else f"FacebookAI/{name}", fetch=False)
    except UsageError:
        raise ModelError(_beside(folder, name)) from None


def _head(
    hparams: dict[str, Any], metric: str, theirs: dict[str, Tensor], n_layers: int, folder: Path
) -> tuple[dict[str, object], dict[str, Tensor]]:
    """The settings and the tensors of our head."""
    layer = hparams["layer"] if metric == "comet" else hparams.get("sent_layer", "mix")
    mixes = layer == "mix"
    usual = "softmax" if metric == "comet" else "sparsemax"
    try:
        if mixes:
            logits = torch.cat([theirs[f"layerwise_attention.scalar_parameters.{n}"] for n in range(n_layers + 1)])
            sparse = hparams.get("layer_transformation", usual) == "sparsemax"
            mix = theirs["layerwise_attention.gamma"] * (entmax(logits, 2.0) if sparse else softmax(logits))  # (n + 1,)
        else:
            mix = torch.eye(n_layers + 1)[int(layer)]  # one layer alone
        numbers = sorted(  # of the linear maps; activations and dropout are between them
            int(name.split(".")[2]) for name in theirs if name.startswith("estimator.ff.") and name.endswith(".weight")
        )
        estimator = {
            f"{n}.{kind}": theirs[f"estimator.ff.{number}.{kind}"]
            for n, number in enumerate(numbers)
            for kind in ("weight", "bias")
        }
    except (KeyError, IndexError, ValueError) as error:
        raise ModelError(f"{folder}: the checkpoint is not that of a metric of COMET: {reason_of(error)}") from None
    names = [None if hparams[key] is None else str(hparams[key]).lower() for key in ("activations", "final_activation")]
    pooling = hparams["pool"] if metric == "comet" else "cls"
    if not estimator or not set(names) - {None} <= ACTIVATIONS.keys() or pooling not in POOLINGS:
        raise ModelError(
            f"{folder}: no head is built of pooling {pooling}, activations {names} and {len(estimator)} tensors"
        )
    settings = {"metric": metric, "pooling": pooling, "layer_norm": mixes and bool(hparams["layer_norm"])}
    return settings | {"activation": names[0], "final": names[1]}, {"mix": mix.float(), **estimator}
