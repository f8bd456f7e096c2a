"""The vectors of both texts of each pair, to score a sentence encoder by."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atento.config.recipe import Recipe
from atento.config.sections.embedding import EmbeddingConfig
from atento.data.batches.special_tokens import template_for
from atento.data.records.reader import Split
from atento.errors import AtentoWarning
from atento.networks.network import Network
from atento.tasks.embedding import embed_texts
from atento.tasks.options import refuse_options
from atento.text.tokenizer import Tokenizer


def predict(network: Network, tokenizer: Tokenizer, split: Split, recipe: Recipe) -> list[NDArray[np.float32]]:
    """Two vectors (2,D) for each pair of a split."""
    config = recipe.embedding or EmbeddingConfig()
    limits = [limit for limit in (config.max_len, recipe.data.max_len) if limit is not None]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AtentoWarning)  # training has reported how many are cut
        texts, template = [*split["text"], *split["pair"]], template_for(recipe.task, tokenizer)
        vectors = embed_texts(network, tokenizer, texts, replace(config, max_len=min(limits)), template=template)
    return _paired(vectors)


def call(model: Any, split: Split, options: Mapping[str, Any]) -> list[NDArray[np.float32]]:
    """As `predict`, by a loaded model."""
    refuse_options(options, "vectors: an encoder writes nothing")
    return _paired(model.embed([*split["text"], *split["pair"]]))


def gold(split: Split) -> Sequence[tuple[str, float | None]]:
    """The second text of each pair, and its score or None."""
    scores = split.columns.get("score", [None] * len(split))
    return list(zip(split["pair"], scores))


def _paired(vectors: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    """Vectors of the first texts, then of the second ones (2N,D), as pairs."""
    return list(vectors.reshape(2, -1, vectors.shape[1]).swapaxes(0, 1))
