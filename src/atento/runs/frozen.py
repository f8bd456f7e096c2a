"""The vectors of a frozen encoder for the texts of a run, read once and stored in a folder (`init.cache`)."""

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from atento.config.network import NetworkConfig, changed, network_to_dict
from atento.data.batches import Batches
from atento.errors import RecipeError, counted
from atento.networks.frozen import FrozenVectors, common_pooling, frozen
from atento.networks.levels import levels_of
from atento.networks.network import Network
from atento.storage.vectors import fingerprint_of, read_vectors, write_vectors

_TOKENS = 2048  # read at a time
_AFTER = ("heads", "pooler", "dropout", "tokenizer_fingerprint")  # keys of a network that its vectors do not depend on


def without_dropout(config: NetworkConfig) -> NetworkConfig:
    """Return the configuration without dropout, as stored vectors have none.

    Raises:
        RecipeError: the network is no encoder.
    """
    if config.architecture != "encoder":
        raise RecipeError(f"`init.cache` is for an encoder: got a model of architecture {config.architecture}")
    return changed(config, dropout=0.0, attention={"dropout": 0.0}, feed_forward={"dropout": 0.0})


def frozen_vectors(
    network: Network, batches: Iterable[Batches], folder: Path, report: Callable[[str], None]
) -> FrozenVectors:
    """Return the vectors of all texts; those that the folder lacks are computed and added to it.

    The file in the folder is named by a hash of the frozen weights, the network and the pooling, and a text is found by
    a hash of its ids: after a change of either, vectors are computed anew. Texts are read in a fixed order, so that a
    resumed run has the same bits.

    Raises:
        CheckpointError: the folder cannot be written.
    """
    levels, pooling = levels_of(network), common_pooling(network.config)
    weights = {name: value for name, value in network.named_parameters() if levels.of[name] <= levels.layers}
    settings = {key: value for key, value in network_to_dict(network.config).items() if key not in _AFTER}
    name = fingerprint_of(weights, json.dumps([settings, pooling], sort_keys=True))
    path, started = folder / f"{name}.safetensors", time.monotonic()
    vectors = FrozenVectors(pooling, read_vectors(path))
    device, was_training = next(network.parameters()).device, network.training
    network.eval()
    texts = 0
    with frozen(vectors), torch.inference_mode():
        for split in batches:
            for batch in split.in_order(_TOKENS):
                texts += len(next(iter(batch.labels.values())))
                network(**batch.to(device).inputs, project=False)
    network.train(was_training)
    if vectors.computed:
        write_vectors(path, vectors.rows)
    report(
        f"vectors of {counted(texts, 'text')}: {vectors.computed:,} computed, the others from {path}, in "
        f"{time.monotonic() - started:.1f} s"
    )
    return vectors
