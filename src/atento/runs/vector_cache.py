"""The vectors of a frozen network for the texts of a run, read once and stored in a folder (`cache` of a recipe)."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from atento.base.errors import RecipeError, counted
from atento.config.reading.initial_keys import rates_of
from atento.config.recipe import Recipe
from atento.config.sections.network import NetworkConfig, changed
from atento.config.tables.tasks import TASKS
from atento.data.batches.batch import Batches
from atento.models.load import ModelFiles
from atento.networks.frozen import FeatureCache, common_pooling, frozen
from atento.networks.interface import Network
from atento.networks.stack.frozen_features import FrozenFeatures
from atento.storage.vectors import read_vectors, write_vectors
from atento.tasks.features import vectors_path, without_dropout

_TOKENS = 2048  # read at a time


def cached_config(config: NetworkConfig, recipe: Recipe) -> NetworkConfig:
    """Return the configuration for `init.cache`: without dropout, as stored vectors have none.
    Raises RecipeError: the network is neither an encoder nor a decoder, or a decoder that has to write.
    """
    if config.architecture not in ("encoder", "decoder"):
        raise RecipeError(
            f"`init.cache` is for an encoder or a decoder: got a model of architecture {config.architecture}"
        )
    if config.architecture == "decoder" and not TASKS[recipe.task].heads:
        raise RecipeError(f"`init.cache` of a decoder is for tasks with a head: got task {recipe.task}")
    return without_dropout(config)


def saved_config(config: NetworkConfig, recipe: Recipe, initial: ModelFiles | None) -> NetworkConfig:
    """Return the configuration that checkpoints store.

    With `init.cache` it has the rates of dropout of the initial model, though the run has none: fine-tuning the result
    later begins with them.
    """
    if initial is None or recipe.init is None or recipe.init.cache is None:
        return config
    return changed(config, rates_of(initial.network_config))


def frozen_vectors(
    network: Network, batches: Iterable[Batches], folder: Path, report: Callable[[str], None]
) -> FeatureCache:
    """Return the vectors of all texts; those that the folder lacks are computed and added to it.

    The file in the folder is named by a hash of the frozen weights, the network and the pooling, and a text is found by
    a hash of its ids: after a change of either, vectors are computed anew. Texts are read in a fixed order, so that a
    resumed run has the same bits.
    """
    started, features = time.monotonic(), getattr(network, "source_features", None)
    if isinstance(features, FrozenFeatures):
        path = vectors_path(folder, features.encoder, None, features.layers)
        vectors = FeatureCache(None, read_vectors(path, mapped=True), kind="features")
    else:
        pooling = common_pooling(network.config)
        path = vectors_path(folder, network, pooling)
        vectors = FeatureCache(pooling, read_vectors(path, mapped=True))
    device, was_training = next(network.parameters()).device, network.training
    network.eval()
    if isinstance(features, FrozenFeatures):
        features.train()  # only then it reads what is stored; its encoder never learns
    texts = 0
    with frozen(vectors), torch.inference_mode():  # the network's vectors are taken from there, and new ones added
        for split in batches:
            for batch in split.in_order(_TOKENS):
                texts += len(next(iter(batch.labels.values())))
                inputs = batch.to(device).inputs
                if isinstance(features, FrozenFeatures):
                    features(inputs["source_ids"], inputs.get("source_token_mask"))
                else:
                    network(**inputs, project=False)  # only for the vectors that this stores
    network.train(was_training)
    if vectors.computed:
        write_vectors(path, vectors.rows)
        vectors.rows |= read_vectors(path, mapped=True)  # those of the file, whose memory all processes share
    report(
        f"vectors of {counted(texts, 'text')}: {vectors.computed:,} computed, the others from {path}, in "
        f"{time.monotonic() - started:.1f} s"
    )
    return vectors
