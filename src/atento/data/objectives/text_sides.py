"""Records of two or three texts, each text a sequence of its own, for vectors that are compared."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atento.base.errors import DataError, RecipeError, counted
from atento.config.sections.embedding import EmbeddingConfig
from atento.config.sections.network import NetworkConfig
from atento.config.tables.objective import OBJECTIVES, ObjectiveConfig
from atento.data.batches.batch import (
    SIDES,
    Batch,
    ContrastiveSettings,
    Draw,
    MemoryStore,
    OneTarget,
    Ragged,
    Rows,
    Store,
)
from atento.data.batches.contexts import WINDOWS, opened
from atento.data.batches.planning import round_length
from atento.data.batches.special_tokens import prompt_length
from atento.data.objectives.labels import cut_warning, report_windows, store_texts
from atento.data.objectives.masked import with_token_mask
from atento.data.objectives.preparation import Preparation


@dataclass(frozen=True)
class TextPairs(OneTarget):
    """Batches of records whose texts are compared. Columns "ids", "pair_ids", "negative_ids", "value" (one number)."""

    kind: str  # name of the loss
    network: NetworkConfig  # configuration of the network
    settings: ContrastiveSettings  # what the loss reads

    def lengths(self, store: Store) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the lengths of the first texts, and of the longest of the others, with their special tokens."""
        first, *others = (store[name].lengths for name in SIDES.values() if name in store)
        return first, np.max(others, axis=0)  # (records,) each

    def batch(self, store: Store, rows: Rows, draw: Draw | None = None, pieces: int = 1) -> Batch:
        """Return a batch, the same in every epoch; its texts are read in `pieces` groups."""
        inputs, lengths, extras = side_inputs(store, rows, self.network)
        if "value" in store:
            extras[self.kind] = torch.from_numpy(np.concatenate([store["value"][row] for row in rows.tolist()]))  # (B,)
        labels = {self.kind: torch.zeros(len(rows), dtype=torch.long)}  # only counts the pairs
        settings = {self.kind: replace(self.settings, pieces=pieces)}
        return Batch(inputs, labels, extras=extras, lengths=lengths, settings=settings)


def sides_as_store(preparation: Preparation) -> MemoryStore:
    """Encode the texts of each side of a split; texts that are too long are cut, with a counted warning.
    Raises DataError: every text equals its pair and nothing drops out, so that there is nothing to learn.
    """
    split, network, tokenizer, columns = preparation.split, preparation.network, preparation.tokenizer, {}
    embedding, template = preparation.recipe.embedding or EmbeddingConfig(), preparation.text_template()
    limits = [preparation.longest, embedding.max_len]
    longest = min(limit for limit in limits if limit is not None)  # tokens
    sides = [field for field in SIDES if field in split.columns]
    cut = 0
    for field in sides:
        texts = [*map(embedding.of_field(field).read, split[field])]
        encoded, n_cut = store_texts(tokenizer, template, texts, None, longest, network, preparation.long_texts)
        columns[SIDES[field]] = encoded["ids"]
        if f"ids {WINDOWS}" in encoded:
            columns[f"{SIDES[field]} {WINDOWS}"] = encoded[f"ids {WINDOWS}"]
            report_windows(preparation, MemoryStore(columns), SIDES[field])
        cut += n_cut
    if cut:
        preparation.report(cut_warning(cut, counted(len(sides) * len(split), "text"), preparation, longest))
    if not preparation.held_out and "pair" in split.columns:
        # with dropout alone equal texts teach something (SimCSE, Gao et al. 2021)
        equal = [row for row, (text, pair) in enumerate(zip(split["text"], split["pair"])) if text == pair]
        rates = (network.dropout, network.attention.dropout, network.feed_forward.dropout)
        if len(equal) == len(split) and not any(rates):
            why = "`network.dropout` is 0, and nothing tells two readings of a text apart"
            raise DataError(f"each text equals its pair, so there is nothing to learn: {why}")
        if equal and len(equal) < len(split):
            pairs = f"{counted(len(equal), 'pair')} of equal texts, which teach little"
            preparation.report(f"warning: {pairs}, first {split.where(equal[0])}")
    return MemoryStore(columns)


def scored_pairs(preparation: Preparation, config: ObjectiveConfig, values: list[float]) -> MemoryStore:
    """Return the encoded sides of the records of a split, with a value for the score of each.
    Raises DataError: the records have no score, or a negative.
    """
    split = preparation.split
    if "score" not in split.columns:
        raise DataError(f"objective {config.kind} needs a `score` for each pair, and the records have none")
    if "negative" in split.columns:
        raise DataError(f"objective {config.kind} does not read the `negative` of the records: leave the column out")
    store = sides_as_store(preparation)
    store.columns["value"] = Ragged([[value] for value in values], np.float32)
    return store


def contrast(preparation: Preparation, config: ObjectiveConfig) -> ContrastiveSettings:
    """Return what the losses read: how the recipe makes the vector of a text, and the options of the objective.
    Raises RecipeError: `matryoshka` names more numbers than a vector has.
    """
    embedding, options = preparation.recipe.embedding or EmbeddingConfig(), OBJECTIVES[config.kind].options
    width = embedding.width(preparation.network)
    if max(config.matryoshka, default=0) > width:
        raise RecipeError(
            f"`matryoshka` must name lengths of at most {width}, that of a vector: got {config.matryoshka}"
        )
    tokenizer, template = preparation.tokenizer, preparation.text_template()
    skip = {side: prompt_length(embedding.of_field(field), tokenizer, template) for field, side in SIDES.items()}
    return ContrastiveSettings(
        embedding.pooling,
        embedding.normalize,
        config.option("scale") if "scale" in options else 1.0,
        config.symmetric,
        skip=skip,
        margin=config.option("margin") if "margin" in options else 0.0,
        distance=config.distance,
        sizes=config.matryoshka,
        windows=preparation.long_texts.windows,
    )


def side_inputs(
    store: Store, rows: Rows, network: NetworkConfig
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """Return the texts of these rows as inputs, (B,L) for each side with its token mask, and their lengths (B,).

    Third, of texts in windows, whose rows these are: the text of each row of a side, as `Batch.extras` has it.
    """
    inputs: dict[str, Tensor] = {}
    lengths: dict[str, Tensor] = {}
    extras: dict[str, Tensor] = {}
    for name in SIDES.values():
        if name in store:
            side, numbers, texts = opened(store, rows, name)
            ragged = side[name]
            length = round_length(ragged.lengths[numbers], network.position_limit)  # of the padded rows
            ids = ragged.padded(numbers, network.pad_id, length=length)  # (B,L), of windows (W,L)
            masked = with_token_mask({"ids": ids}, ragged.lengths[numbers])
            prefix = name.removesuffix("ids")  # "pair_ids" -> "pair_token_mask"
            inputs |= {f"{prefix}{key}": value for key, value in masked.items()}
            lengths[name] = torch.from_numpy(ragged.lengths[numbers])
            if texts is not None:
                extras[f"{name} texts"] = torch.from_numpy(texts)
    return inputs, lengths, extras


def text_numbers(preparation: Preparation) -> NDArray[np.int64]:
    """Return a number for each text (examples, sides): equal texts have equal numbers."""
    numbers: dict[str, int] = {}
    sides = [preparation.split[field] for field in SIDES if field in preparation.split.columns]
    return np.array([[numbers.setdefault(text, len(numbers)) for text in record] for record in zip(*sides)])
