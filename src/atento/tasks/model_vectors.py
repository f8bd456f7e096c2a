"""Texts as vectors by a loaded model, also one of words: `embed` and `similarity` of `atento.model.Model`."""

from collections.abc import Mapping, Sequence
from typing import Unpack, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from atento.base.errors import CapabilityError, UsageError
from atento.config.sections.embedding import EmbeddingConfig, EmbeddingOptions
from atento.data.records.splits import Split
from atento.models.word_models import WordModel
from atento.networks import ELMo
from atento.tasks.decoding_setup import embedding_for, kept_dimensions, refuse_options
from atento.tasks.length_batching import run_in_batches
from atento.tasks.regression import has_regression_head, numbers_of
from atento.tasks.task_model import TaskModel, for_head
from atento.tasks.text_embedding import cosine, embed_texts, text_pooling
from atento.tasks.verb_calls import Texts, listed
from atento.text import word_spans
from atento.text.characters import MAX_CHARACTERS, character_batch


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
        batch_tokens: words of a batch, padding included.

    Raises UsageError: no such layer or pooling. CapabilityError: an ELMo that reads words by id.
    """
    pool = text_pooling(config.pooling)
    words = [[text[start:end] for start, end in word_spans(text)] for text in map(config.read, texts)]
    if model.vectors is not None:
        # word vectors pooled over the words of each text that have one
        result = np.zeros((len(words), model.vectors.matrix.shape[1]), dtype=np.float32)
        for row, text in enumerate(words):
            known = [model.vectors.index[word] for word in text if word in model.vectors]
            if known:
                hidden = torch.from_numpy(model.vectors.matrix[known])[None]
                pooled = text_pooling(config.pooling)(hidden, torch.ones(1, len(known), dtype=torch.bool))
                result[row] = (nn.functional.normalize(pooled, dim=-1) if config.normalize else pooled)[0].numpy()
        return result
    network = model.network
    assert isinstance(network, ELMo)
    if network.characters is None:
        raise CapabilityError("an ELMo that reads words by id, not by their characters, embeds no text")
    settings = network.config.elmo.characters if network.config.elmo is not None else None
    max_characters = MAX_CHARACTERS if settings is None else settings.max_characters
    device = next(network.parameters()).device
    vectors = np.zeros((len(texts), 2 * network.config.d_model), dtype=np.float32)

    def read(rows: list[int]) -> NDArray[np.float32]:
        ids, real = character_batch([words[row] for row in rows], max_characters=max_characters)
        characters, token_mask = torch.from_numpy(ids).to(device), torch.from_numpy(real).to(device)
        with torch.inference_mode():
            if config.layer == -1:  # the mix of all layers
                hidden = network(characters, token_mask=token_mask).hidden[:, 1:]
            else:
                layers = network.layers(characters, token_mask=token_mask)
                if not -len(layers) <= config.layer < len(layers):
                    known = f"{-len(layers)} and {len(layers) - 1}"
                    raise UsageError(f"`layer` must lie between {known}: got {config.layer}")
                hidden = layers[config.layer][:, 1:]
        word_mask = token_mask.clone()
        word_mask[torch.arange(len(rows)), token_mask.sum(dim=1) - 1] = False  # the boundary token at the end
        pooled = pool(hidden.float(), word_mask[:, 1:])
        return (nn.functional.normalize(pooled, dim=-1) if config.normalize else pooled).cpu().numpy()

    for row, pooled in run_in_batches([len(row) for row in words], batch_tokens, read, network, extra=2):
        vectors[row] = pooled
    return vectors


def embed(
    model: TaskModel, text: str | Sequence[str], *, batch_tokens: int = 4096, **options: Unpack[EmbeddingOptions]
) -> NDArray[np.float32]:
    """Texts as vectors (N,D), float32; one text as (D,) (docs/notes.md#g8).

    Args:
        batch_tokens: tokens of a batch, padding included; a CPU computes several batches at a time.
        options: layer (0 first, -1 last), pooling (mean, first, last, max, sqrt-mean, weighted-mean, several joined by
            +), normalize, max_len, prompt, pool_prompt, lowercase, prompt_name (of a prompt of the model), dimensions
            (numbers of each vector that are kept; of length 1 again with normalize), head (of several, the one that
            says how texts are read). Where not given: those of a sentence-transformers folder, else the mean over the
            last layer.
    """
    texts, head = listed(text), options.pop("head", None)
    model = model if head is None else model.head(head)
    config = embedding_for(model.config.get("embedding", {}), str(model.path), options)
    if model.words is not None:
        vectors = embed_words(model.words, texts, config, batch_tokens)
    else:
        vectors = embed_texts(model, texts, config, batch_tokens)
    vectors += 0.0  # no -0.0
    kept = kept_dimensions(options, vectors.shape[1])
    if kept is not None:
        vectors = vectors[:, :kept]
        if config.normalize:
            norms = np.linalg.norm(vectors, axis=1, keepdims=True)
            vectors = (vectors / np.where(norms == 0, 1, norms)).astype(np.float32)  # a text without tokens stays 0
    return vectors[0] if isinstance(text, str) else vectors


@overload
def similarity(
    model: TaskModel, first: str, second: str | None = None, **options: Unpack[EmbeddingOptions]
) -> float: ...
@overload
def similarity(
    model: TaskModel, first: Texts, second: Texts | None = None, **options: Unpack[EmbeddingOptions]
) -> list[float]: ...


def similarity(
    model: TaskModel, first: str | Texts, second: str | Texts | None = None, **options: Unpack[EmbeddingOptions]
) -> object:
    """How similar two texts are, or each text of a list to the one beside it in the other (docs/notes.md#g5).

    A model with a regression head gives the number that it was trained to give, for two texts or, if it was trained on
    single texts, for one. Other models give the cosine of the two vectors of `embed`, -1 to 1; a text without tokens
    gives 0.

    Args:
        first: a text or texts.
        second: a text or as many texts; None for a regression model of single texts.
        options: as in `embed`; `head` alone for a regression model, of which the only such head is taken without it.

    Raises:
        UsageError: lists of different lengths, or one text for a model of two.
    """
    single, model = isinstance(first, str), for_head(model, options.pop("head", None), "similarity")
    left, right = listed(first), None if second is None else listed(second)
    if right is not None and (len(left) != len(right) or single != isinstance(second, str)):
        raise UsageError(f"give two texts, or two lists of equal length: got {len(left)} and {len(right)} texts")
    if has_regression_head(model):
        if options:
            raise UsageError(f"`{next(iter(options))}` has no effect: this model has a regression head")
        numbers = numbers_of(model, left if right is None else list(zip(left, right)))
    elif right is None:
        raise UsageError("give two texts: one alone is for a regression model of single texts")
    else:
        vectors = embed(model, [*left, *right], **options)  # in one call: texts of similar length share batches
        numbers = [cosine(*pair) for pair in zip(vectors[: len(left)], vectors[len(left) :])]
    return numbers[0] if single else numbers


def call(model: TaskModel, split: Split, options: Mapping[str, object]) -> list[NDArray[np.float32]]:
    """Two vectors (2,D) for each pair of a split, to score a sentence encoder by."""
    refuse_options(options, "vectors: an encoder writes nothing")
    config = embedding_for(model.config.get("embedding", {}), str(model.path), {})
    fields = ("text", "pair")  # each behind its prompt if it has one
    return list(
        np.stack([embed(model, split[field], prompt=config.of_field(field).prompt) for field in fields], axis=1)
    )


def gold(split: Split) -> Sequence[tuple[str, float | None]]:
    """The second text of each pair, and its score or None."""
    return list(zip(split["pair"], split.columns.get("score", [None] * len(split))))
