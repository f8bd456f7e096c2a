"""Texts packed into full rows for language modelling: no token is lost, and none is learned twice.

See docs/notes.md#e1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from atento.data.batches import Ragged
from atento.data.text_batches import TextBatch, windows


@dataclass(frozen=True)
class Packed:
    """Rows of several texts, each token guessed from those before it; a text's first token, its BOS, never is.

    rows "<s> o gato </s> <s> a"          ids     "<s> o gato </s> <s>"    and, isolated,
         "a casa </s>"                    labels  "o gato </s> -   a"      documents 0 0 0 0 1, positions 0 1 2 3 0

    Attributes:
        numbers: which text each token of each row belongs to.
        isolated: each text sees itself alone; otherwise a row is one running text.
    """

    pad_id: int
    numbers: Ragged
    isolated: bool

    def targets(self, lengths: NDArray[np.int64]) -> NDArray[np.float64]:
        """Of each row: its tokens but the first, and but those that begin a text."""
        firsts = np.array([int((np.diff(self.numbers[row]) != 0).sum()) for row in range(len(self.numbers))])
        return np.asarray(lengths - 1 - firsts, dtype=np.float64)

    def lay_out(self, sequences: Ragged, rows: NDArray[np.int64], epoch: int) -> TextBatch:
        """The same in every epoch."""
        whole, texts = sequences.padded(rows, -1), self.numbers.padded(rows, -1)
        ids, labels = whole[:, :-1].clone(), whole[:, 1:].clone()
        real = labels >= 0
        ids[~real] = self.pad_id
        labels[texts[:, :-1] != texts[:, 1:]] = -1
        if not self.isolated:
            return TextBatch(ids, real, labels)
        documents = texts[:, :-1].clone()
        documents[~real] = -1
        place = torch.arange(documents.shape[1]).expand_as(documents)
        begins = torch.ones_like(real)
        begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
        first = torch.where(begins, place, 0).cummax(dim=1).values  # where the text of each token begins
        return TextBatch(ids, real, labels, documents, place - first)


def packed(
    texts: Sequence[Sequence[int]], longest: int, *, pad_id: int, isolated: bool = False
) -> tuple[Ragged, Packed]:
    """Texts, each from its BOS to its EOS, one behind the other in rows with room for `longest` inputs.

    A row begins with the last token of the one before it, which is only read there. A text that does not end in a row
    goes on in the next; isolated, it does not see there what stood in the row before. All rows are full but the last.

    Returns:
        The rows, and how they are laid out; a row in which nothing is to be guessed is left out.
    """
    stream = [token for text in texts for token in text]
    owners = [number for number, text in enumerate(texts) for _ in text]
    pairs = zip(windows(stream, longest + 1, overlap=1), windows(owners, longest + 1, overlap=1))
    kept = [(row, own) for row, own in pairs if any(one == other for one, other in pairwise(own))]
    return Ragged([row for row, _ in kept]), Packed(pad_id, Ragged([own for _, own in kept]), isolated)
