"""Causal language modelling: predict each token from those before it, one text a row or several; and behind a prefix.

ids "<s> o gato pulou"   labels "o gato pulou </s>" (docs/notes.md#e1)
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atento.attention.algebra import Mask
from atento.attention.masks import causal as causal_mask
from atento.attention.masks import documents
from atento.attention.masks import prefix as prefix_mask
from atento.base.errors import DataError, RecipeError, counted
from atento.base.splitmix import grid_hashes
from atento.config.tables.objective import ObjectiveConfig
from atento.data.batches.batch import Batch, Draw, MemoryStore, OneText, Ragged, Rows, Store
from atento.data.batches.planning import PlannedBatches
from atento.data.batches.special_tokens import begin_of
from atento.data.objectives.preparation import Preparation

HEAD = "vocabulary"
_PREFIX_KEY = 11  # keeps these hashes apart from hashes for other purposes


@dataclass(frozen=True)
class Causal(OneText):
    """Batches of sequences; one of n tokens has n - 1 targets. Column "ids".

    Padding is on the right, so that the causal mask hides it and no token mask is needed.
    """

    pad_id: int  # id of padding
    mask: Mask | None = None  # causal mask for a network whose own mask is not causal; None: the network's own

    def sizes(self, store: Store) -> NDArray[np.float64]:
        """Return the number of tokens minus one."""
        return (store["ids"].lengths - 1).astype(np.float64)  # the first token is predicted by nothing

    def batch(self, store: Store, rows: Rows, draw: Draw) -> Batch:
        """Return a batch; it is the same in every epoch."""
        ids, labels, _ = _shifted(store["ids"].padded(rows, -1), self.pad_id)
        return Batch({"ids": ids}, {HEAD: labels}, self.mask, lengths=_lengths(store, rows))


@dataclass(frozen=True)
class PackedCausal(OneText):
    """Batches of rows that hold several texts. Columns "ids" and "document", the number of the text of each token.

    Each token is predicted from the tokens before it, except the first of each text (BOS), which is no label.

    rows "<s> o gato </s> <s> a"          ids     "<s> o gato </s> <s>"    and, isolated,
         "a casa </s>"                    labels  "o gato </s> -   a"      documents 0 0 0 0 1, positions 0 1 2 3 0
    """

    pad_id: int  # id of padding
    isolated: bool  # whether each text attends only to itself; otherwise, a token attends to all before it in the row
    mask: Mask | None = None  # causal mask for a network whose own mask is not causal; None: the network's own

    def sizes(self, store: Store) -> NDArray[np.float64]:
        """Return for each row the number of tokens without its first one and without those that begin a text."""
        numbers = store["document"]
        firsts = np.array([int((np.diff(numbers[row]) != 0).sum()) for row in range(len(numbers))])
        return np.asarray(store["ids"].lengths - 1 - firsts, dtype=np.float64)

    def batch(self, store: Store, rows: Rows, draw: Draw) -> Batch:
        """Return a batch; it is the same in every epoch."""
        text_of = store["document"].padded(rows, -1)  # (B,L+1) the number of the text of each token
        ids, labels, real = _shifted(store["ids"].padded(rows, -1), self.pad_id)  # (B,L) each
        labels[text_of[:, :-1] != text_of[:, 1:]] = -1  # the first token of the next text is no target
        lengths = _lengths(store, rows)
        if not self.isolated:
            return Batch({"ids": ids}, {HEAD: labels}, self.mask, lengths=lengths)
        document_ids = text_of[:, :-1].clone()  # (B,L)
        document_ids[~real] = -1
        column = torch.arange(document_ids.shape[1]).expand_as(document_ids)  # (B,L), 0 to L - 1
        begins = torch.ones_like(real)  # a row begins its first text
        begins[:, 1:] = document_ids[:, 1:] != document_ids[:, :-1]  # (B,L-1): another text than the token before
        start = torch.where(begins, column, 0).cummax(dim=1).values  # (B,L) where the text of each token begins
        inputs = {"ids": ids, "position_ids": column - start}  # positions count from the start of each text
        mask = causal_mask() & documents(document_ids)  # a token sees its own text alone
        return Batch(inputs, {HEAD: labels}, mask, lengths=lengths)


@dataclass(frozen=True)
class Prefix(OneText):
    """Batches whose texts have a prefix of random length in each epoch, which is attended to in full (Raffel et al.
    2020; docs/notes.md#c10, #e7). Column "ids": at least two tokens each.

    ids "o gato pulou", prefix 2   labels "- pulou </s>"
    """

    pad_id: int

    def sizes(self, store: Store) -> NDArray[np.float64]:
        """Return half the number of tokens, the mean over prefix lengths."""
        return store["ids"].lengths / 2.0

    def batch(self, store: Store, rows: Rows, draw: Draw) -> Batch:
        """Return a batch; prefixes have 1 to n - 1 tokens with equal probability."""
        ids, labels, _ = _shifted(store["ids"].padded(rows, -1), self.pad_id)  # (B,L) each
        most = (store["ids"].lengths[rows] - 1).astype(np.uint64)  # tokens of a prefix
        drawn = grid_hashes(rows, 1, draw.seed, draw.epoch, after=(_PREFIX_KEY,))[:, 0]  # (B,) 64-bit numbers
        prefixes = torch.from_numpy(1 + (drawn % most).astype(np.int64))  # (B,), 1 to n - 1
        # label i is token i + 1, so that the last token of the prefix predicts the first one after it
        labels[torch.arange(ids.shape[1]) < (prefixes - 1).unsqueeze(1)] = -1
        return Batch({"ids": ids}, {HEAD: labels}, prefix_mask(prefixes), lengths=_lengths(store, rows))


def _shifted(sequences: Tensor, pad_id: int) -> tuple[Tensor, Tensor, Tensor]:
    """Shift sequences (B,L), padded with -1; return ids (B,L-1), labels (B,L-1) and which ids are real (B,L-1)."""
    ids, labels = sequences[:, :-1].clone(), sequences[:, 1:].clone()  # the label of a token is the next one
    real = labels >= 0  # (B,L-1)
    ids[~real] = pad_id
    return ids, labels, real


def _lengths(store: Store, rows: Rows) -> dict[str, Tensor]:
    return {"ids": torch.from_numpy(store["ids"].lengths[rows] - 1)}


def causal(preparation: Preparation, config: ObjectiveConfig) -> PlannedBatches:
    """Return batches for causal language modelling; each text begins with BOS, if there is one, and ends with EOS.

    A text longer than `data.max_len` tokens is split into several examples. With `data.pack`, texts are concatenated
    and cut into full rows.

    Raises:
        RecipeError: `data.pack` is isolated and the network is recurrent.
    """
    recipe, network, tokenizer = preparation.recipe, preparation.network, preparation.tokenizer
    begin = begin_of(tokenizer)
    # without BOS a text of no tokens is EOS alone, and predicts nothing
    texts = [text for row in preparation.encoded() if len(text := [*begin, *row, tokenizer.eos_id]) > 1]
    mask = causal_mask() if network.architecture == "encoder" else None  # decoders are causal by themselves
    if recipe.data.pack == "none":
        if not texts:
            raise DataError("no text is left: all are blank")
        # L inputs take L + 1 ids: the last id of a piece is only predicted, and the next piece begins with it
        store = MemoryStore({"ids": Ragged(preparation.pieces(texts, preparation.longest + 1, overlap=1))})
        return preparation.planned(store, Causal(network.pad_id, mask), config.weight)
    isolated = recipe.data.pack == "isolated"
    if isolated and network.architecture not in ("decoder", "encoder"):
        raise RecipeError(f"`data.pack` isolated needs a decoder: got a {network.architecture}; stream or none")
    store = packed(texts, preparation.longest)
    preparation.report(
        f"{counted(len(texts), 'text')} packed into {counted(len(store), 'row')} of {preparation.longest} tokens"
    )
    return preparation.planned(store, PackedCausal(network.pad_id, isolated, mask), config.weight)


def prefix(preparation: Preparation, config: ObjectiveConfig) -> PlannedBatches:
    """Return batches for prefix language modelling; texts longer than `data.max_len` tokens are split."""
    tokenizer = preparation.tokenizer
    texts = [[*begin_of(tokenizer), *row, tokenizer.eos_id] for row in preparation.encoded()]
    pieces = preparation.pieces(texts, preparation.longest + 1, overlap=1)
    store = MemoryStore({"ids": Ragged([piece for piece in pieces if len(piece) > 1])})
    return preparation.planned(store, Prefix(preparation.network.pad_id), config.weight)


def packed(texts: Sequence[Sequence[int]], longest: int) -> MemoryStore:
    """Concatenate texts and cut them into rows of `longest` inputs (docs/notes.md#e1).

    Rows overlap by one token: the last target of a row is the first input of the next. A text may continue in the next
    row, where it does not attend to its beginning. All rows except the last are full. A row without a target is left
    out.

    Args:
        texts: ids of each text, from BOS to EOS.
        longest: inputs of a row.

    Returns:
        A store with the columns "ids" and "document".
    """
    stream = Ragged(texts)
    document_ids = np.repeat(np.arange(len(texts), dtype=np.int32), stream.lengths)  # the text of each token
    begins = np.arange(0, max(1, len(stream.flat) - 1), longest)  # where each row begins
    bounds = np.stack([begins, np.minimum(begins + longest + 1, len(stream.flat))], axis=1)  # (rows,2)
    # the number of targets before each token: it is one where it is of the same text as the token before it
    targets = np.concatenate([[0], np.cumsum(document_ids[1:] == document_ids[:-1])])
    rows = [slice(*row) for row in bounds.tolist() if targets[row[1] - 1] > targets[row[0]]]
    columns = {"ids": stream.flat, "document": document_ids}  # cut at the same places
    return MemoryStore({name: Ragged.of_arrays([flat[row] for row in rows]) for name, flat in columns.items()})
