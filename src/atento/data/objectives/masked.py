"""Masked language modelling: predict hidden tokens, words or spans from the tokens on both sides.

ids "<s> o <mask> pulou </s>"   labels "- - gato - -" (docs/notes.md#e2)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atento.config.tables.objective import ObjectiveConfig
from atento.data.batches.batch import Batch, Draw, MemoryStore, OneText, Ragged, Rows, Store
from atento.data.batches.masking import Masking, masking_of
from atento.data.batches.planning import PlannedBatches
from atento.data.batches.word_numbers import WordNumbers
from atento.data.objectives.preparation import Preparation
from atento.text.tokenizer import Tokenizer

HEAD = "vocabulary"


@dataclass(frozen=True)
class Masked(OneText):
    """Batches of masked texts. Column "ids": texts with special tokens at their ends, which are never hidden.

    Columns where words or spans are hidden: "words", the number of the word of each token between the special ones;
    "word count", the number of words of each text.
    """

    pad_id: int  # id of padding
    masking: Masking  # hides tokens
    ends: tuple[int, int] = (1, 1)  # the number of special tokens before a text, and behind it

    def sizes(self, store: Store) -> NDArray[np.float64]:
        """Return the expected number of hidden tokens."""
        words = store["word count"].flat.astype(np.int64) if "word count" in store else None
        return self.masking.expected(store["ids"].lengths - sum(self.ends), words)

    def batch(self, store: Store, rows: Rows, draw: Draw) -> Batch:
        """Return a batch; each epoch hides other tokens."""
        ids, labels, _ = self.hidden(store, rows, draw)
        lengths = store["ids"].lengths[rows]
        return Batch(with_token_mask({"ids": ids}, lengths), {HEAD: labels}, lengths={"ids": torch.from_numpy(lengths)})

    def hidden(self, store: Store, rows: Rows, draw: Draw) -> tuple[Tensor, Tensor, list[NDArray[np.int64]]]:
        """Return ids (B,L), labels (B,L), and the hidden words or spans of each text as ranges of its positions.

        Only spans have ranges.
        """
        ids = store["ids"].padded(rows, self.pad_id)  # (B,L)
        labels = torch.full_like(ids, -1)
        column, (before, behind) = torch.arange(ids.shape[1]), self.ends
        inner = (column >= before) & (column < torch.from_numpy(store["ids"].lengths[rows] - behind).unsqueeze(1))
        words = None
        if self.masking.unit != "tokens":  # of the tokens between the special ones
            words = store["words"].padded(rows, -1, length=ids.shape[1] - sum(self.ends)).numpy()
            words = np.pad(words, ((0, 0), self.ends))  # (B,L), 0 at the ends; `inner` leaves these out
        ranges = self.masking.hide_batch(ids, labels, inner, rows, draw, words)
        return ids, labels, [of_row + before for of_row in ranges]  # `ranges` begin behind the special tokens


def with_token_mask(inputs: dict[str, Tensor], lengths: NDArray[np.int64]) -> dict[str, Tensor]:
    """Add a token mask to the inputs, if rows differ in length."""
    real = torch.arange(inputs["ids"].shape[1]) < torch.from_numpy(lengths).unsqueeze(1)  # (B,L)
    return inputs if bool(real.all()) else inputs | {"token_mask": real}


def word_columns(tokenizer: Tokenizer, texts: Sequence[Sequence[int]]) -> dict[str, Ragged]:
    """Return the columns of words of texts without special tokens: "words" and "word count"."""
    words = WordNumbers(tokenizer).of(Ragged(texts))  # the number of the word of each token
    text = np.repeat(np.arange(len(words)), words.lengths)  # (tokens,)
    begins = np.append(True, (np.diff(words.flat) != 0) | (np.diff(text) != 0))[: len(text)]
    counts = np.bincount(text[begins], minlength=len(words))  # words of each text, an empty one too
    return {"words": words, "word count": Ragged.of_flat(counts, np.ones(len(words), dtype=np.int64))}


def masked_texts(
    preparation: Preparation, config: ObjectiveConfig, unit: Literal["tokens", "words", "spans"] | None = None
) -> tuple[MemoryStore, Masked]:
    """Return the texts with special tokens, those longer than `data.max_len` tokens split, and what hides their tokens.

    The texts have columns of their words where words or spans are hidden.
    """
    tokenizer, template = preparation.tokenizer, preparation.text_template()
    ends = template.ends()
    masked = Masked(preparation.network.pad_id, masking_of(tokenizer, config, unit), ends)
    pieces = preparation.pieces(preparation.encoded(), preparation.longest - sum(ends))
    words = {} if masked.masking.unit == "tokens" else word_columns(tokenizer, pieces)
    return MemoryStore({"ids": Ragged([template.apply(piece)[0] for piece in pieces])} | words), masked


def masked(preparation: Preparation, config: ObjectiveConfig) -> PlannedBatches:
    """Return batches for masked language modelling; texts longer than `data.max_len` tokens are split."""
    store, objective = masked_texts(preparation, config)
    return preparation.planned(store, objective, config.weight)
