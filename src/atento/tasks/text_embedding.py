"""Texts as vectors: hidden vectors of any layer, pooled over each text's tokens (docs/notes.md#g8)."""

import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from atento.base.errors import AtentoWarning, UsageError, counted, nearest
from atento.config.sections.embedding import NO_PROMPT, EmbeddingConfig
from atento.config.sections.long_texts import CUT, LongTextConfig
from atento.data.batches.contexts import cut_text, opened, windows_of
from atento.data.batches.special_tokens import prompt_length, special_tokens_of
from atento.networks.heads import TEXT_POOLINGS, pool_text
from atento.tasks.length_batching import run_in_batches
from atento.tasks.task_model import TaskModel, check_lengths, max_input_tokens, tokenizer_of
from atento.text.lengths import pad_batch

_SMALLEST = 1e-12  # norm that a vector is divided by


def cosine(first: NDArray[np.float32], second: NDArray[np.float32]) -> float:
    """The cosine of two vectors (D,), -1 to 1, computed in float64: 1 of equal ones, 0 if the norm of either is 0."""
    a, b = first.astype(np.float64), second.astype(np.float64)
    norms = math.sqrt(float(a @ a) * float(b @ b))
    return max(-1.0, min(1.0, float(a @ b) / norms)) if norms else 0.0


def text_pooling(name: str, skip: int = 0) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """The pooling of that name: hidden vectors (B,L,D) and their token mask (B,L) -> (B,P·D), as `pool_text`.
    Raises UsageError: there is no such pooling; names the nearest.
    """
    for part in name.split("+"):
        if part not in TEXT_POOLINGS:
            raise UsageError(f"unknown pooling {part!r}{nearest(part, list(TEXT_POOLINGS))}")
    return partial(pool_text, name, skip=skip)


def embed_texts(
    model: TaskModel, texts: Sequence[str], config: EmbeddingConfig, batch_tokens: int = 4096
) -> NDArray[np.float32]:
    """texts -> vectors (N,D), float32. Texts of similar length share a batch; a vector does not depend on the others.

    Without windows, a text longer than `config.max_len` (or the network's learned positions) is cut, with one warning
    that counts them; texts longer than the model was trained on are read whole, and counted in another one. With
    windows, a text of more tokens than either has a vector a window, which are pooled. `batch_tokens` counts padding; a
    CPU computes several batches at a time.
    Raises UsageError: no such layer or pooling; a prompt before windows. CapabilityError: not a Transformer.
    """
    network, tokenizer, long_texts = model.reader(), tokenizer_of(model), model.long_texts
    if config.prompt and long_texts.windows is not None:
        raise UsageError(NO_PROMPT)
    special_tokens = special_tokens_of(network.config, tokenizer, model.config.get("template"))
    # tokens of a prompt are perhaps not pooled
    pool = text_pooling(config.pooling, prompt_length(config, tokenizer, special_tokens))
    texts = list(map(config.read, texts))
    rows, numbers = token_windows(model, texts, long_texts, config.max_len)
    device = next(network.parameters()).device
    vectors = np.zeros((len(rows), config.width(network.config)), dtype=np.float32)

    @torch.inference_mode()
    def read(batch: list[int]) -> NDArray[np.float32]:
        padded, real = pad_batch([rows[row] for row in batch], network.config.pad_id)
        token_mask = torch.from_numpy(real).to(device)
        hidden = network.features(torch.from_numpy(padded).to(device), token_mask=token_mask, layer=config.layer)
        pooled = network.text_vectors(pool(hidden.float(), token_mask))
        if config.normalize and numbers is None:  # of windows after they are joined
            pooled = nn.functional.normalize(pooled, dim=-1)
        return pooled.cpu().numpy()

    for row, pooled in run_in_batches([len(row) for row in rows], batch_tokens, read, network):
        vectors[row] = pooled  # back to the order of the texts
    if numbers is None:
        return vectors
    of_texts = text_means(vectors, numbers, long_texts)
    if config.normalize:
        of_texts /= np.maximum(np.linalg.norm(of_texts, axis=1, keepdims=True), _SMALLEST)
    return of_texts


def text_means(
    vectors: NDArray[np.float32], numbers: NDArray[np.int64], long_texts: LongTextConfig
) -> NDArray[np.float32]:
    """The vectors of texts (N,D) from those of their windows (W,D); `numbers` (W,) has the text of each, rising.

    The weights of attention are a head's; the vectors of a model with them are the mean.
    """
    parts = np.split(vectors, np.flatnonzero(np.diff(numbers)) + 1) if len(vectors) else []
    pooled = [part.max(axis=0) if long_texts.windows == "max" else part.mean(axis=0) for part in parts]
    return np.array(pooled, dtype=np.float32).reshape(len(parts), vectors.shape[1])


def token_windows(
    model: TaskModel, texts: Sequence[str], long_texts: LongTextConfig, max_len: int | None
) -> tuple[list[list[int]], NDArray[np.int64] | None]:
    """As `token_rows`; with windows, the rows are those of all texts (W,), and second is the text of each."""
    tokenizer, config, trained = tokenizer_of(model), model.network.config, model.trained_length
    limit = min([limit for limit in (max_input_tokens(config, trained), max_len, trained) if limit], default=None)
    if long_texts.windows is None or limit is None:
        max_len = limit if long_texts.head_tail else max_len  # texts cut at one side are read whole
        return token_rows(model, texts, trained=trained, max_len=max_len, long_texts=long_texts), None
    special_tokens = special_tokens_of(config, tokenizer, model.config.get("template"))
    store = windows_of(tokenizer, special_tokens, texts, limit, long_texts)
    windows, places, numbers = opened(store, np.arange(len(texts)))  # the windows as rows, and the text of each
    return [windows["ids"][row].tolist() for row in places.tolist()], numbers


def token_rows(
    model: TaskModel,
    texts: Sequence[str],
    *,
    trained: int | None = None,
    max_len: int | None = None,
    long_texts: LongTextConfig = CUT,
) -> list[list[int]]:
    """The ids of each text with its special tokens, as the network reads them.

    A text longer than `max_len` (or the network's learned positions) is cut, with one warning that counts them; texts
    of more tokens than `trained` are counted in another one.
    """
    tokenizer, config = tokenizer_of(model), model.network.config
    limit = min([limit for limit in (max_input_tokens(config, trained), max_len) if limit is not None], default=None)
    special_tokens = special_tokens_of(config, tokenizer, model.config.get("template"))
    rows, n_cut = [], 0
    for ids in tokenizer.encode_batch(list(texts)):
        room = len(ids) if limit is None else max(0, limit - special_tokens.added(False))
        ids, _, removed = cut_text(ids, None, room, tokenizer.truncation_side, long_texts)
        rows.append(list(special_tokens.apply(ids)[0]))
        n_cut += removed > 0
    check_lengths([len(row) for row in rows], config, trained, "vectors")
    if n_cut:
        warnings.warn(f"{n_cut} of {counted(len(rows), 'text')} cut to {limit} tokens", AtentoWarning, stacklevel=4)
    return rows
