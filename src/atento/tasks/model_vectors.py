"""Texts as vectors by a loaded model: `embed` and `similarity` of `atento.model.Model`."""

from collections.abc import Sequence
from typing import Any, Protocol, Unpack

import numpy as np
from numpy.typing import NDArray

from atento.config.embedding import EmbeddingOptions
from atento.models.word_models import WordModel
from atento.tasks.embedding import cosine, embed_texts
from atento.tasks.model_outputs import LoadedModel, tokenizer_of
from atento.tasks.options import embedding_for
from atento.tasks.verbs import listed
from atento.tasks.word_embedding import embed_words


class EmbeddingModel(LoadedModel, Protocol):
    """What is used here of `atento.model.Model`."""

    words: WordModel | None


def embed(
    model: EmbeddingModel, text: str | Sequence[str], *, batch_tokens: int = 4096, **options: Unpack[EmbeddingOptions]
) -> NDArray[np.float32]:
    """Texts as vectors (N,D), float32; one text as (D,) (docs/notes.md#g8).

    Args:
        model: the model.
        text: a text or texts.
        batch_tokens: tokens computed at a time, padding included.
        options: layer (0 first, -1 last), pooling (mean, first, last, max), normalize, max_len. Where not given: those
            of a sentence-transformers folder, else the mean over the last layer.
    """
    texts = listed(text)
    config = embedding_for(model.config.get("embedding", {}), str(model.path), options)
    if model.words is not None:
        vectors = embed_words(model.words, texts, config, batch_tokens)
    else:
        shared: dict[str, Any] = {"template": model.config.get("template"), "trained": model.trained_length}
        vectors = embed_texts(model.network, tokenizer_of(model), texts, config, batch_tokens, **shared)
    return vectors[0] if isinstance(text, str) else vectors


def similarity(model: EmbeddingModel, first: str, second: str, **options: Unpack[EmbeddingOptions]) -> float:
    """The cosine of two texts' vectors, -1 to 1; options as in `embed`. A text without tokens gives 0."""
    return cosine(*embed(model, [first, second], **options))
