"""Texts as examples of one language: what follows each token, or what stood where a mask stands; seekable batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atento.data.batches import PlannedBatches, Ragged
from atento.data.shuffle import hashes


@dataclass(frozen=True)
class TextBatch:
    """Texts with what is to be guessed at some of their places, all (B,L); labels are -1 where nothing is.

    after each token (docs/notes.md#e1)     ids "<s> o gato pulou"           labels "o gato pulou </s>"
    behind the masks (docs/notes.md#e2)     ids "<s> o <mask> pulou </s>"    labels "-  - gato    -     -"

    Of rows that hold several texts, where each is to see itself alone, `documents` numbers the text of each token, -1 =
    padding, and `position_ids` count from 0 in each text.
    """

    ids: Tensor
    token_mask: Tensor
    labels: Tensor
    documents: Tensor | None = None
    position_ids: Tensor | None = None

    @property
    def targets(self) -> int:
        """Real targets: what the loss is divided by, over the whole accumulated batch."""
        return int((self.labels >= 0).sum())

    def examples(self) -> Iterator[dict[str, list[int]]]:
        """Each example by itself, padding left out, for people to look at; labels of -1 are left out too."""
        for ids, real, labels in zip(self.ids, self.token_mask, self.labels):
            yield {"ids": ids[real].tolist(), "labels": labels[labels >= 0].tolist()}

    def to(self, device: torch.device | str) -> "TextBatch":
        """The batch on another device."""
        parts: dict[str, Tensor | None] = {part.name: getattr(self, part.name) for part in fields(self)}
        return replace(self, **{name: part.to(device) for name, part in parts.items() if part is not None})


class Layout(Protocol):
    """How ids become an example: `whole` sequences in, inputs and labels out."""

    def targets(self, lengths: NDArray[np.int64]) -> NDArray[np.float64]:
        """How many targets sequences of those lengths hold, on average over epochs."""

    def lay_out(self, sequences: Ragged, rows: NDArray[np.int64], epoch: int) -> TextBatch:
        """Those rows, in that epoch, as a batch."""


@dataclass(frozen=True)
class NextToken:
    """Each token from those before it: a sequence of n makes n - 1 targets (docs/notes.md#e1)."""

    pad_id: int

    def targets(self, lengths: NDArray[np.int64]) -> NDArray[np.float64]:
        """One less than the tokens."""
        return (lengths - 1).astype(np.float64)

    def lay_out(self, sequences: Ragged, rows: NDArray[np.int64], epoch: int) -> TextBatch:
        """The same in every epoch."""
        whole = sequences.padded(rows, -1)
        ids, labels = whole[:, :-1].clone(), whole[:, 1:].clone()
        real = labels >= 0
        ids[~real] = self.pad_id
        return TextBatch(ids, real, labels)


@dataclass(frozen=True)
class Masked:
    """Some tokens hidden (Devlin et al. 2019), drawn anew every epoch (Liu et al. 2019; docs/notes.md#e2).

    Of each text a share `rate` of its tokens, at least one, is chosen; the two marks around it never are. Of the chosen
    80 % become the mask, 10 % another token drawn from those at or above `first_word`, 10 % stay as they are.
    """

    pad_id: int
    mask_id: int
    first_word: int
    vocab_size: int
    seed: int
    rate: float = 0.15

    def targets(self, lengths: NDArray[np.int64]) -> NDArray[np.float64]:
        """The share of the tokens between the two marks, at least one."""
        return np.maximum(1.0, self.rate * (lengths - 2).astype(np.float64))

    def lay_out(self, sequences: Ragged, rows: NDArray[np.int64], epoch: int) -> TextBatch:
        """What is hidden depends on (seed, epoch, row) alone."""
        ids = sequences.padded(rows, self.pad_id)
        lengths = sequences.lengths[rows]
        real = torch.from_numpy(np.arange(ids.shape[1]) < lengths[:, None])
        labels = torch.full_like(ids, -1)
        shares = self.targets(lengths)
        for i, row in enumerate(rows.tolist()):
            inside = int(lengths[i]) - 2
            drawn = hashes(3 * inside + 1, self.seed, epoch, row)
            count = int(shares[i] + float(drawn[-1] >> np.uint64(11)) * 2.0**-53)  # rounded up as often as is fair
            places = 1 + np.argsort(drawn[:inside], kind="stable")[:count].astype(np.int64)
            labels[i, places] = ids[i, places]
            fate = drawn[inside : 2 * inside][: len(places)] % np.uint64(10)
            other = drawn[2 * inside :][: len(places)] % np.uint64(self.vocab_size - self.first_word)
            ids[i, places[fate < 8]] = self.mask_id
            swapped = fate == 8
            ids[i, places[swapped]] = torch.from_numpy(other[swapped].astype(np.int64) + self.first_word)
        return TextBatch(ids, real, labels)


class TextBatches(PlannedBatches[TextBatch]):
    """Sequences of ids in seekable batches, laid out as the objective wants them."""

    def __init__(self, sequences: Ragged, layout: Layout, *, budget: int, seed: int) -> None:
        self.sequences, self.layout = sequences, layout
        targets, tokens = int(layout.targets(sequences.lengths).sum()), int(sequences.lengths.sum())
        super().__init__(len(sequences), targets, budget=budget, seed=seed, tokens=tokens)

    def lengths(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The same in every epoch."""
        return self.sequences.lengths, self.sequences.lengths

    def batch(self, rows: NDArray[np.int64], epoch: int = 0) -> TextBatch:
        """Those sequences in that epoch."""
        return self.layout.lay_out(self.sequences, rows, epoch)


def windows(ids: Sequence[int], longest: int, overlap: int) -> list[list[int]]:
    """ids cut in pieces of at most `longest`, each beginning with the last `overlap` of the piece before it."""
    step = longest - overlap
    return [list(ids[start : start + longest]) for start in range(0, max(1, len(ids) - overlap), step)]
