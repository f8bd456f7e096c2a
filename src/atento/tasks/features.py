"""Features of texts for other programs: the vectors of any layer or of the mix of layers, pooled or per token, cached.

See docs/notes.md#f6.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypedDict, Unpack, overload

import numpy as np
import torch
from numpy.typing import NDArray

from atento.base.errors import CapabilityError
from atento.base.limits import path_of
from atento.config.sections.network import NetworkConfig, changed, network_to_dict
from atento.networks.frozen import FeatureCache, frozen
from atento.networks.interface import Network, layer_count
from atento.networks.stack.encoder import Encoder
from atento.networks.stack.stack_decoders import Decoder
from atento.networks.weight_depths import layer_depths
from atento.storage.vectors import fingerprint_of, read_vectors, write_vectors
from atento.tasks.decoding_setup import embedding_for
from atento.tasks.length_batching import run_in_batches
from atento.tasks.task_model import TaskModel
from atento.tasks.text_embedding import text_means, text_pooling, token_windows
from atento.tasks.verb_calls import Texts, listed
from atento.text.lengths import pad_batch

_AFTER = ("heads", "pooler", "dropout", "tokenizer_fingerprint")  # keys of a network that its vectors do not depend on
Layer = int | Literal["mix"]
Vectors = NDArray[np.float32]


def without_dropout(config: NetworkConfig) -> NetworkConfig:
    """Return the configuration without dropout."""
    return changed(config, dropout=0.0, attention={"dropout": 0.0}, feed_forward={"dropout": 0.0})


def vectors_path(folder: Path, network: Network, pooling: str | None, layer: int | Sequence[int] | None = None) -> Path:
    """Return the file of a network's vectors, named by a hash of the weights below the heads, network and pooling.

    Args:
        folder: the folder of the cache.
        pooling: how a text is reduced to one vector; None: it has one vector a token.
        layer: the layer, counted from 0, or those of `network.features`; None: what the heads read, which is the last
            layer or all layers to mix.
    """
    levels = layer_depths(network)
    weights = {name: value for name, value in network.named_parameters() if levels.of[name] <= levels.layers}
    config = network_to_dict(without_dropout(network.config))
    settings = {key: value for key, value in config.items() if key not in _AFTER}
    parts = [settings, pooling] if layer is None else [settings, pooling, layer]
    return folder / f"{fingerprint_of(weights, json.dumps(parts, sort_keys=True))}.safetensors"


class _Options(TypedDict, total=False):
    layer: Layer
    cache: str | Path | None
    batch_tokens: int


@overload
def features(model: TaskModel, text: str, *, pooling: str | None = None, **options: Unpack[_Options]) -> Vectors: ...
@overload
def features(model: TaskModel, text: Texts, *, pooling: None = None, **options: Unpack[_Options]) -> list[Vectors]: ...
@overload
def features(model: TaskModel, text: Texts, *, pooling: str, **options: Unpack[_Options]) -> Vectors: ...


def features(
    model: TaskModel,
    text: str | Texts,
    *,
    layer: Layer = -1,
    pooling: str | None = None,
    cache: str | Path | None = None,
    batch_tokens: int = 4096,
) -> object:
    """The features of texts: the hidden vectors of a layer, of every token or pooled (docs/notes.md#f6).

    Args:
        text: a text or texts; without a prompt, but cut and in lower case where `embed` reads them so.
        layer: 0 is the first layer and -1 the last one; the embeddings below it have no number. "mix" is the learned
            mix of the embeddings (weight w_0) and all layers (layer l has w_{l+1}), in a model that was trained with
            `init.layer_mix`.
        pooling: mean, first, last or max over the tokens of a text; None: the vector of every token, special tokens
            included.
        cache: a folder for the vectors: a text whose vectors it has is not read again. The vectors of another model,
            layer or pooling are in another file. It may be the folder of `init.cache`.
        batch_tokens: tokens of a batch, padding included; a CPU computes several batches at a time.

    Returns:
        float32: (N,D) with a pooling, else a list of N arrays (T,D); for one text (D,) or (T,D).

    Raises:
        UsageError: no such layer or pooling. CapabilityError: a model of words, or no mix.
    """
    texts, network = listed(text), model.network
    if pooling is not None:
        text_pooling(pooling)  # refuses an unknown one before the cache is read
    if model.words is not None:
        raise CapabilityError("features are of tokens, and this model reads words: `embed` gives their vectors")
    mix = network.mix if isinstance(network, Encoder | Decoder) else None
    if layer == "mix":
        if mix is None:
            raise CapabilityError("this model has no mix of layers: train one by a recipe with `init.layer_mix: true`")
        depth = None
    else:
        count = layer_count(layer, network.config.n_layers) - 1
        depth = None if mix is None and count == network.config.n_layers - 1 else count
    path = None if cache is None else vectors_path(path_of(cache, "cache", "a folder"), network, pooling, depth)
    vectors = FeatureCache(pooling, {} if path is None else read_vectors(path))
    long_texts = model.long_texts
    if pooling is None:  # the vectors of tokens are those of a text that is cut
        long_texts = replace(long_texts, windows=None)
    reading = replace(embedding_for(model.config.get("embedding", {}), str(model.path), {}), prompt="")
    rows, numbers = token_windows(model, list(map(reading.read, texts)), long_texts, reading.max_len)
    results: list[Vectors] = [np.zeros(0, dtype=np.float32)] * len(rows)

    def read(batch: list[int]) -> list[Vectors]:
        return _batch_vectors(network, vectors, [rows[row] for row in batch], layer)

    for row, vector in run_in_batches([len(row) for row in rows], batch_tokens, read, network):
        results[row] = vector
    if path is not None and vectors.computed:
        write_vectors(path, vectors.rows)
    if numbers is not None and pooling is not None and rows:
        results = list(text_means(np.array(results).reshape(len(rows), -1), numbers, long_texts))
    if isinstance(text, str):
        return results[0]
    if pooling is None:
        return results
    width = -1 if texts else network.config.d_model * len(pooling.split("+"))
    return np.array(results, dtype=np.float32).reshape(len(texts), width)


@torch.inference_mode()
def _batch_vectors(network: Network, vectors: FeatureCache, rows: list[list[int]], layer: Layer) -> list[Vectors]:
    """The vectors of texts of similar length: (T,D) each, or (D,) with a pooling."""
    device = next(network.parameters()).device
    padded, real = pad_batch(rows, network.config.pad_id)
    ids, token_mask = torch.from_numpy(padded).to(device), torch.from_numpy(real).to(device)
    if layer == "mix":
        with frozen(vectors):
            # it takes layers from `vectors`, and gives the mix
            hidden = network(ids, token_mask=token_mask, project=False).hidden.float()
    else:
        hidden = vectors.hidden(
            lambda: network.features(ids, token_mask=token_mask, layer=layer), ids, token_mask, None
        )
    if vectors.pooling is not None:
        return list(hidden[:, 0].cpu().numpy())  # pooled: in the place of the first token
    return [hidden[number, : len(row)].cpu().numpy() for number, row in enumerate(rows)]
