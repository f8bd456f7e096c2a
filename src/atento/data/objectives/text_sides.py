"""Records of two or three texts, each text a sequence of its own, for vectors that are compared."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atento.config.sections.embedding import EmbeddingConfig
from atento.config.sections.network import NetworkConfig
from atento.data.batches.batch import SIDES, Contrast
from atento.data.batches.planning import Rows, round_length
from atento.data.batches.special_tokens import prompt_length
from atento.data.batches.store import MemoryStore, Store
from atento.data.objectives.labels import cut_warning, texts_as_store
from atento.data.objectives.masked import with_token_mask
from atento.data.objectives.preparation import Preparation
from atento.errors import DataError, counted


def sides_as_store(preparation: Preparation) -> MemoryStore:
    """Encode the texts of each side of a split; texts that are too long are cut, with a counted warning.

    Raises:
        DataError: every text equals its pair and nothing drops out, so that there is nothing to learn.
    """
    split, columns = preparation.split, {}
    limits = [preparation.longest, _embedding(preparation).max_len]
    longest = min(limit for limit in limits if limit is not None)
    sides = [field for field in SIDES if field in split.columns]
    cut = 0
    for field in sides:
        texts = list(map(_embedding(preparation).read, split[field]))
        encoded, n_cut = texts_as_store(
            preparation.tokenizer, preparation.text_template(), texts, None, longest, preparation.network
        )
        columns[SIDES[field]] = encoded["ids"]
        cut += n_cut
    if cut:
        preparation.report(cut_warning(cut, counted(len(sides) * len(split), "text"), preparation, longest))
    if not preparation.held_out:
        _check_equal(preparation)
    return MemoryStore(columns)


def contrast(preparation: Preparation, scale: float = 1.0, symmetric: bool = False) -> Contrast:
    """Return what the losses read: how the recipe makes the vector of a text, and these options."""
    embedding = _embedding(preparation)
    skip = prompt_length(embedding, preparation.tokenizer, preparation.text_template())
    return Contrast(embedding.pooling, embedding.normalize, scale, symmetric, skip=skip)


def _embedding(preparation: Preparation) -> EmbeddingConfig:
    """How the recipe makes the vector of a text."""
    return preparation.recipe.embedding or EmbeddingConfig()


def side_inputs(store: Store, rows: Rows, network: NetworkConfig) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the texts of these rows as inputs, (B,L) for each side with its token mask, and their lengths (B,)."""
    inputs: dict[str, Tensor] = {}
    lengths: dict[str, Tensor] = {}
    for name in SIDES.values():
        if name in store:
            ragged = store[name]
            length = round_length(ragged.lengths[rows], network.position_limit)
            masked = with_token_mask({"ids": ragged.padded(rows, network.pad_id, length=length)}, ragged.lengths[rows])
            prefix = name.removesuffix("ids")
            inputs |= {f"{prefix}{key}": value for key, value in masked.items()}
            lengths[name] = torch.from_numpy(ragged.lengths[rows])
    return inputs, lengths


def text_numbers(preparation: Preparation) -> NDArray[np.int64]:
    """Return a number for each text (examples, sides): equal texts have equal numbers."""
    numbers: dict[str, int] = {}
    sides = [preparation.split[field] for field in SIDES if field in preparation.split.columns]
    return np.array([[numbers.setdefault(text, len(numbers)) for text in record] for record in zip(*sides)])


def _check_equal(preparation: Preparation) -> None:
    """Warn of pairs of equal texts; with dropout alone they teach something (SimCSE, Gao et al. 2021)."""
    split = preparation.split
    equal = [row for row, (text, pair) in enumerate(zip(split["text"], split["pair"])) if text == pair]
    if len(equal) == len(split) and not preparation.network.dropout:
        raise DataError("each text equals its pair, so there is nothing to learn: `network.dropout` is 0")
    if equal and len(equal) < len(split):
        preparation.report(
            f"warning: {counted(len(equal), 'pair')} of equal texts, which teach little, first {split.where(equal[0])}"
        )
