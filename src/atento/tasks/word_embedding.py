"""Texts as vectors by a model of words: pooled over each text's words (docs/notes.md#c14, #c15, #g8)."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from atento.config.sections.embedding import EmbeddingConfig
from atento.errors import CapabilityError, UsageError
from atento.models.word_models import WordModel
from atento.networks import ELMo
from atento.tasks.grouping import by_length
from atento.tasks.text_embedding import text_pooling
from atento.text import word_spans
from atento.text.characters import MAX_CHARACTERS, character_batch
from atento.text.word_vectors import Vectors


def embed_words(
    model: WordModel, texts: Sequence[str], config: EmbeddingConfig, batch_tokens: int = 4096
) -> NDArray[np.float32]:
    """texts -> vectors (N,D), float32, pooled over each text's words; a text without (known) words gives zeros.

    In an ELMo, layer -1 is the mix of all layers and 0 the character-based vectors of the words. The boundary tokens
    are read and not pooled.

    Args:
        model: the network.
        texts: any strings; their words are found as `atento.text.word_spans` finds them.
        config: layer, pooling, normalisation.
        batch_tokens: words computed at a time, padding included.

    Raises:
        UsageError: no such layer or pooling. CapabilityError: an ELMo that reads words by id.
    """
    pool = text_pooling(config.pooling)
    words = [[text[start:end] for start, end in word_spans(text)] for text in map(config.read, texts)]
    if model.vectors is not None:
        return _pooled_vectors(model.vectors, words, config)
    network = model.network
    assert isinstance(network, ELMo)
    if network.characters is None:
        raise CapabilityError("an ELMo that reads words by id, not by their characters, embeds no text")
    settings = network.config.elmo.characters if network.config.elmo is not None else None
    max_characters = MAX_CHARACTERS if settings is None else settings.max_characters
    device = next(network.parameters()).device
    vectors = np.zeros((len(texts), 2 * network.config.d_model), dtype=np.float32)
    for rows in by_length([len(row) for row in words], batch_tokens, extra=2):
        ids, real = character_batch([words[row] for row in rows], max_characters=max_characters)
        characters, token_mask = torch.from_numpy(ids).to(device), torch.from_numpy(real).to(device)
        with torch.inference_mode():
            hidden = _layer(network, characters, token_mask, config.layer)[:, 1:]
        word_mask = token_mask.clone()
        word_mask[torch.arange(len(rows)), token_mask.sum(dim=1) - 1] = False  # the boundary token at the end
        pooled = pool(hidden.float(), word_mask[:, 1:])
        vectors[rows] = (nn.functional.normalize(pooled, dim=-1) if config.normalize else pooled).cpu().numpy()
    return vectors


def _layer(network: ELMo, ids: torch.Tensor, token_mask: torch.Tensor, layer: int) -> torch.Tensor:
    """Character ids (B,L,C) -> the vectors (B,L,D) of one layer, or of the mix of all."""
    if layer == -1:
        mixed: torch.Tensor = network(ids, token_mask=token_mask).hidden
        return mixed
    layers = network.layers(ids, token_mask=token_mask)
    if not -len(layers) <= layer < len(layers):
        raise UsageError(f"`layer` must lie between {-len(layers)} and {len(layers) - 1}: got {layer}")
    return layers[layer]


def _pooled_vectors(vectors: Vectors, words: list[list[str]], config: EmbeddingConfig) -> NDArray[np.float32]:
    """Word vectors pooled over the words of each text that have one."""
    result = np.zeros((len(words), vectors.matrix.shape[1]), dtype=np.float32)
    for row, text in enumerate(words):
        known = [vectors.index[word] for word in text if word in vectors]
        if known:
            hidden = torch.from_numpy(vectors.matrix[known])[None]
            pooled = text_pooling(config.pooling)(hidden, torch.ones(1, len(known), dtype=torch.bool))
            result[row] = (nn.functional.normalize(pooled, dim=-1) if config.normalize else pooled)[0].numpy()
    return result
