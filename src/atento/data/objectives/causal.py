"""Language modelling: each token from those before it; rows of one text, or packed full of texts.

ids "<s> o gato pulou"   labels "o gato pulou </s>" (docs/notes.md#e1)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atento.attention.algebra import Mask
from atento.attention.masks import causal as causal_mask
from atento.attention.masks import documents
from atento.config.objective import ObjectiveConfig
from atento.data.batches import Batch, Draw, PlannedBatches, Rows
from atento.data.objectives.preparation import Preparation, windows
from atento.data.store import MemoryStore, Ragged, Store
from atento.errors import DataError, RecipeError, counted

HEAD = "vocabulary"


@dataclass(frozen=True)
class Causal:
    """Column "ids": a sequence of n makes n - 1 targets. Padding is on the right, where no query looks."""

    pad_id: int
    mask: Mask | None = None  # for a network whose own mask is not causal

    def sizes(self, store: Store) -> NDArray[np.float64]:
        """One less than the tokens."""
        return (store["ids"].lengths - 1).astype(np.float64)

    def lengths(self, store: Store) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of the sequences."""
        return store["ids"].lengths, store["ids"].lengths

    def batch(self, store: Store, rows: Rows, draw: Draw) -> Batch:
        """The same in every epoch."""
        ids, labels, _ = _shifted(store["ids"].padded(rows, -1), self.pad_id)
        return Batch({"ids": ids}, {HEAD: labels}, self.mask, lengths=_lengths(store, rows))


@dataclass(frozen=True)
class PackedCausal:
    """Columns "ids", rows of several texts, and "document", the text of each token.

    Each token is guessed from those before it; a text's first token, its BOS, never is.

    rows "<s> o gato </s> <s> a"          ids     "<s> o gato </s> <s>"    and, isolated,
         "a casa </s>"                    labels  "o gato </s> -   a"      documents 0 0 0 0 1, positions 0 1 2 3 0

    Attributes:
        isolated: each text attends to itself alone; otherwise a row is one running text.
    """

    pad_id: int
    isolated: bool
    mask: Mask | None = None

    def sizes(self, store: Store) -> NDArray[np.float64]:
        """Of each row: its tokens without the first, and without those that begin a text."""
        numbers = store["document"]
        firsts = np.array([int((np.diff(numbers[row]) != 0).sum()) for row in range(len(numbers))])
        return np.asarray(store["ids"].lengths - 1 - firsts, dtype=np.float64)

    def lengths(self, store: Store) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of the rows."""
        return store["ids"].lengths, store["ids"].lengths

    def batch(self, store: Store, rows: Rows, draw: Draw) -> Batch:
        """The same in every epoch."""
        texts = store["document"].padded(rows, -1)
        ids, labels, real = _shifted(store["ids"].padded(rows, -1), self.pad_id)
        labels[texts[:, :-1] != texts[:, 1:]] = -1
        lengths = _lengths(store, rows)
        if not self.isolated:
            return Batch({"ids": ids}, {HEAD: labels}, self.mask, lengths=lengths)
        owners = texts[:, :-1].clone()
        owners[~real] = -1
        place = torch.arange(owners.shape[1]).expand_as(owners)
        begins = torch.ones_like(real)
        begins[:, 1:] = owners[:, 1:] != owners[:, :-1]
        first = torch.where(begins, place, 0).cummax(dim=1).values  # where the text of each token begins
        inputs = {"ids": ids, "position_ids": place - first}
        return Batch(inputs, {HEAD: labels}, causal_mask() & documents(owners), lengths=lengths)


def _shifted(whole: Tensor, pad_id: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sequences (B,L), -1 at padding -> ids and labels (B,L-1), and which of the ids are real."""
    ids, labels = whole[:, :-1].clone(), whole[:, 1:].clone()
    real = labels >= 0
    ids[~real] = pad_id
    return ids, labels, real


def _lengths(store: Store, rows: Rows) -> dict[str, Tensor]:
    return {"ids": torch.from_numpy(store["ids"].lengths[rows] - 1)}


def causal(given: Preparation, config: ObjectiveConfig) -> PlannedBatches:
    """Each text between BOS and EOS; one longer than `data.max_len` tokens goes on in a further example, where it was
    left, without what stood before. With `data.pack`, examples are full rows of texts one behind the other.

    Raises:
        RecipeError: texts packed in isolation for a network that is not attention's alone.
    """
    recipe, network, tokenizer = given.recipe, given.network, given.tokenizer
    texts = [[tokenizer.bos_id, *row, tokenizer.eos_id] for row in given.encoded()]
    mask = causal_mask() if network.architecture == "encoder" else None
    settings = {"budget": recipe.training.batch_tokens, "seed": recipe.training.seed}
    if recipe.data.pack == "none":
        if not texts:
            raise DataError("no text is left: all are blank")
        store = MemoryStore({"ids": Ragged(given.pieces(texts, given.longest + 1, overlap=1))})
        return PlannedBatches(store, Causal(network.pad_id, mask), weight=config.weight, **settings)
    isolated = recipe.data.pack == "isolated"
    if isolated and network.architecture not in ("decoder", "encoder"):
        raise RecipeError(f"`data.pack` isolated needs a decoder: got a {network.architecture}; stream or none")
    store = packed(texts, given.longest)
    given.say(f"{counted(len(texts), 'text')} packed into {counted(len(store), 'row')} of {given.longest} tokens")
    return PlannedBatches(store, PackedCausal(network.pad_id, isolated, mask), weight=config.weight, **settings)


def packed(texts: Sequence[Sequence[int]], longest: int) -> MemoryStore:
    """Texts, each from its BOS to its EOS, one behind the other in rows with room for `longest` inputs.

    A row begins with the last token of the one before it, which is only read there. A text that does not end in a row
    goes on in the next; isolated, it does not see there what stood in the row before. All rows are full but the last.
    A row in which nothing is to be guessed is left out. Columns "ids" and "document" (docs/notes.md#e1).
    """
    stream = [token for text in texts for token in text]
    owners = [number for number, text in enumerate(texts) for _ in text]
    pairs = zip(windows(stream, longest + 1, overlap=1), windows(owners, longest + 1, overlap=1))
    rows = [(row, owner) for row, owner in pairs if any(one == other for one, other in pairwise(owner))]
    return MemoryStore({"ids": Ragged([row for row, _ in rows]), "document": Ragged([own for _, own in rows])})
