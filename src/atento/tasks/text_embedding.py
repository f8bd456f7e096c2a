"""Texts as vectors: hidden vectors of any layer, pooled over each text's tokens (docs/notes.md#g8)."""

import warnings
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from atento.config.sections.embedding import EmbeddingConfig
from atento.data.batches.special_tokens import prompt_length, special_tokens_of
from atento.errors import AtentoWarning, UsageError, counted, nearest
from atento.networks import Network
from atento.networks.heads import TEXT_POOLINGS, pool_text
from atento.tasks.grouping import by_length
from atento.tasks.length_warnings import check_lengths, most_read
from atento.text.lengths import pad_batch, truncate
from atento.text.tokenizer import Tokenizer


def cosine(first: NDArray[np.float32], second: NDArray[np.float32]) -> float:
    """The cosine of two vectors (D,), -1 to 1, computed in float64; 0 if the norm of either is 0."""
    a, b = first.astype(np.float64), second.astype(np.float64)
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / norms if norms else 0.0


def text_pooling(name: str, skip: int = 0) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """The pooling of that name: hidden vectors (B,L,D) and their token mask (B,L) -> (B,P·D), as `pool_text`.

    Raises:
        UsageError: there is no such pooling; names the nearest.
    """
    for part in name.split("+"):
        if part not in TEXT_POOLINGS:
            raise UsageError(f"unknown pooling {part!r}{nearest(part, list(TEXT_POOLINGS))}")
    return partial(pool_text, name, skip=skip)


def embed_texts(
    network: Network,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    config: EmbeddingConfig,
    batch_tokens: int = 4096,
    *,
    template: str | None = None,
    trained: int | None = None,
) -> NDArray[np.float32]:
    """texts -> vectors (N,D), float32. Texts of similar length share a batch; a vector does not depend on the others.

    A text longer than `config.max_len` (or the network's learned positions) is cut, with one warning that counts them.

    Args:
        network: a Transformer.
        tokenizer: its tokenizer.
        texts: any strings.
        config: layer, pooling, normalisation, limit of length.
        batch_tokens: tokens computed at a time, padding included.
        template: names the special tokens around a text; None: the tokenizer's own.
        trained: tokens of the longest text that the model was trained on; longer texts are read whole, and counted in
            one warning.

    Raises:
        UsageError: no such layer or pooling. CapabilityError: not a Transformer.
    """
    special_tokens = special_tokens_of(network.config, tokenizer, template)
    pool = text_pooling(config.pooling, prompt_length(config, tokenizer, special_tokens))
    texts = list(map(config.read, texts))
    rows = token_rows(network, tokenizer, texts, template=template, trained=trained, max_len=config.max_len)
    device = next(network.parameters()).device
    vectors = np.zeros((len(rows), config.width(network.config)), dtype=np.float32)
    for batch in by_length([len(row) for row in rows], batch_tokens):
        padded, real = pad_batch([rows[row] for row in batch], network.config.pad_id)
        token_mask = torch.from_numpy(real).to(device)
        with torch.inference_mode():
            hidden = network.features(torch.from_numpy(padded).to(device), token_mask=token_mask, layer=config.layer)
        pooled = pool(hidden.float(), token_mask)
        with torch.inference_mode():
            pooled = network.text_vectors(pooled)
        if config.normalize:
            pooled = nn.functional.normalize(pooled, dim=-1)
        vectors[batch] = pooled.cpu().numpy()
    return vectors


def token_rows(
    network: Network,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    template: str | None = None,
    trained: int | None = None,
    max_len: int | None = None,
) -> list[list[int]]:
    """The ids of each text with its special tokens, as the network reads them; arguments as for `embed_texts`.

    A text longer than `max_len` (or the network's learned positions) is cut, with one warning that counts them.
    """
    limit = min([limit for limit in (most_read(network.config, trained), max_len) if limit is not None], default=None)
    special_tokens = special_tokens_of(network.config, tokenizer, template)
    rows, n_cut = [], 0
    for ids in tokenizer.encode_batch(list(texts)):
        room = len(ids) if limit is None else max(0, limit - special_tokens.added(False))
        ids, _, removed = truncate(ids, None, room, side=tokenizer.truncation_side)
        rows.append(list(special_tokens.apply(ids)[0]))
        n_cut += removed > 0
    check_lengths([len(row) for row in rows], network.config, trained, "vectors")
    if n_cut:
        warnings.warn(f"{n_cut} of {counted(len(rows), 'text')} cut to {limit} tokens", AtentoWarning, stacklevel=4)
    return rows
