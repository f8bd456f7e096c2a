"""Batches by token budget: examples of like length together, in an order that is a function of (seed, epoch, index)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from itertools import chain
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atento.data.shuffle import permutation

_WINDOW = 65536  # examples sorted together; a seek redoes at most one window
_PART = 2048  # real target tokens computed at a time


class Ragged:
    """Sequences of ids of different lengths in one flat array: compact, and quick to slice into batches."""

    def __init__(self, rows: list[list[int]]) -> None:
        self.lengths = np.fromiter((len(row) for row in rows), dtype=np.int64, count=len(rows))
        self.starts = np.concatenate([[0], np.cumsum(self.lengths)])
        self.flat = np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=int(self.starts[-1]))

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> NDArray[np.int32]:
        return self.flat[self.starts[index] : self.starts[index + 1]]

    def padded(
        self, rows: NDArray[np.int64], pad_id: int, before: int | None = None, after: int | None = None
    ) -> Tensor:
        """The rows as one (B,L) int64 tensor, with `before` put in front and `after` behind each, then padding."""
        front, back = int(before is not None), int(after is not None)
        lengths = self.lengths[rows]
        out = np.full((len(rows), int(lengths.max(initial=0)) + front + back), pad_id, dtype=np.int64)
        for i, row in enumerate(rows):
            ids = self[int(row)]
            if before is not None:
                out[i, 0] = before
            out[i, front : front + len(ids)] = ids
            if after is not None:
                out[i, front + len(ids)] = after
        return torch.from_numpy(out)


@dataclass(frozen=True)
class Seq2SeqBatch:
    """Teacher forcing laid out (docs/notes.md#f1, #e8). Shapes: source (B,S), the rest (B,T).

    source "I love NLP </s>"   target_input "<s> Eu amo PLN"   labels "Eu amo PLN </s>", padded with -1
    """

    source: Tensor
    source_token_mask: Tensor
    target_input: Tensor
    labels: Tensor

    @property
    def targets(self) -> int:
        """Real targets: what the loss is divided by, over the whole accumulated batch."""
        return int((self.labels >= 0).sum())

    def examples(self) -> Iterator[dict[str, list[int]]]:
        """Each example by itself, padding left out, for people to look at."""
        for i in range(len(self.source)):
            real = self.labels[i] >= 0
            yield {
                "source": self.source[i][self.source_token_mask[i]].tolist(),
                "target_input": self.target_input[i][real].tolist(),
                "labels": self.labels[i][real].tolist(),
            }

    def to(self, device: torch.device | str) -> "Seq2SeqBatch":
        """The batch on another device."""
        return Seq2SeqBatch(*(getattr(self, part.name).to(device) for part in fields(self)))


def plan(
    source_lengths: NDArray[np.int64], target_lengths: NDArray[np.int64], updates: int, parts_each: int, *key: int
) -> list[list[NDArray[np.int64]]]:
    """One epoch as a list of updates; an update is a list of parts, a part an array of example numbers.

    The updates hold about equally many real target tokens. Examples are shuffled, then sorted in windows by target
    length in steps of 2 with the source length going up and down in turn (snake order) and cut into parts of
    about 2,048 tokens: few enough that a part is of one shape, enough to fill the processor. A part has a round number
    of examples, so that shapes come again and again: the processor's library writes a program for each shape of a
    product that it meets, which takes as long as a small product itself. The parts are shuffled and dealt to updates,
    so that an update mixes lengths. `key` is (seed, epoch).
    """
    order = permutation(len(source_lengths), *key, 1)
    total = int(target_lengths.sum())
    count = updates * parts_each
    parts: list[NDArray[np.int64]] = []
    done = 0
    for start in range(0, len(order), _WINDOW):
        window = order[start : start + _WINDOW]
        width = target_lengths[window] // 2
        snake = np.where(width % 2 == 0, source_lengths[window], -source_lengths[window])
        window = window[np.lexsort((snake, width))]
        ends = done + np.cumsum(target_lengths[window])
        marks = np.arange(1, count) * (total / count)
        cuts = np.searchsorted(ends, marks[(marks > done) & (marks < ends[-1])])
        parts.extend(part for part in np.split(window, rounded(cuts + 1)) if len(part))
        done = int(ends[-1])
    while len(parts) < min(updates, len(order)):  # a few examples beyond the budget: no update may be left empty
        longest = max(range(len(parts)), key=lambda i: len(parts[i]))
        parts[longest : longest + 1] = np.array_split(parts[longest], 2)
    shuffled = [parts[i] for i in permutation(len(parts), *key, 2)]
    return [shuffled[i::updates] for i in range(updates)]


def rounded(cuts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Cuts moved a little, so that 128 to 255 examples in a row become a multiple of 32, 64 to 127 one of 16, and on.

    Errors do not add up: each part is measured from where the last one ended.
    """
    start, found = 0, []
    for cut in cuts.tolist():
        count = cut - start
        step = 1 << max(0, count.bit_length() - 3)
        start += max(step, round(count / step) * step) if count > 0 else 0
        found.append(start)
    return np.array(found, dtype=np.int64)


def part_count(tokens: int) -> int:
    """In how many parts an update of so many tokens is computed."""
    return max(1, round(tokens / _PART))


Batch = TypeVar("Batch")


class PlannedBatches(Generic[Batch]):
    """Examples handed out update by update, each with about as many real targets; the place in them is one integer.

    An update's number gives (epoch, index), and what it holds is a function of those and the seed.
    """

    def __init__(self, count: int, targets: int, *, budget: int, seed: int, tokens: int | None = None) -> None:
        """Of `count` examples with so many targets; `tokens` is what they hold in all, where that is another number."""
        self.count, self.seed = count, seed
        # the same numbers every epoch, so that an update's number gives (epoch, index) without replaying any
        self.updates_per_epoch = max(1, min(count, round(targets / budget)))
        self.parts_each = part_count(budget if tokens is None else tokens // self.updates_per_epoch)
        self._epoch: tuple[int, list[list[NDArray[np.int64]]]] | None = None

    def __len__(self) -> int:
        return self.count

    def lengths(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """How long the examples are in that epoch, on either side; on the only side twice."""
        raise NotImplementedError

    def batch(self, rows: NDArray[np.int64], epoch: int = 0) -> Batch:
        """Those examples, as that epoch shows them, as tensors."""
        raise NotImplementedError

    def plan(self, epoch: int) -> list[list[NDArray[np.int64]]]:
        """The updates of an epoch, made again whenever asked for."""
        if self._epoch is None or self._epoch[0] != epoch:
            made = plan(*self.lengths(epoch), self.updates_per_epoch, self.parts_each, self.seed, epoch)
            self._epoch = (epoch, made)
        return self._epoch[1]

    def rows(self, update: int) -> list[NDArray[np.int64]]:
        """The parts of an update, counted from 0 over all epochs, as example numbers."""
        epoch, index = divmod(update, self.updates_per_epoch)
        return self.plan(epoch)[index]

    def parts(self, update: int, micro_batches: int = 1) -> Iterator[Batch]:
        """Yield the update in parts; `micro_batches` cuts each again, for less memory and the same result."""
        for part in self.rows(update):
            for piece in np.array_split(part, micro_batches):
                if len(piece):
                    yield self.batch(piece, update // self.updates_per_epoch)

    def in_order(self, budget: int) -> Iterator[Batch]:
        """Every example once, in batches of like length of about `budget` tokens, as epoch 0 has it: for validation."""
        _, lengths = self.lengths(0)
        order = np.argsort(lengths, kind="stable")
        ends = np.cumsum(lengths[order])
        for rows in np.split(order, np.searchsorted(ends, np.arange(budget, int(ends[-1]), budget))):
            if len(rows):
                yield self.batch(rows, 0)


class Seq2SeqBatches(PlannedBatches[Seq2SeqBatch]):
    """Parallel text as ids, handed out update by update; the place in it is one integer, the update's number."""

    def __init__(
        self,
        source: Ragged,
        target: Ragged,
        *,
        budget: int,
        seed: int,
        pad_id: int,
        start_id: int,
        eos_id: int,
        resample: Callable[[int], tuple[Ragged, Ragged]] | None = None,
    ) -> None:
        """`resample(epoch)` gives the ids of an epoch where the subwords are drawn anew (BPE dropout, say)."""
        super().__init__(len(target), int((target.lengths + 1).sum()), budget=budget, seed=seed)
        self.source, self.target, self.resample = source, target, resample
        self.pad_id, self.start_id, self.eos_id = pad_id, start_id, eos_id

    def lengths(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of source and target with their ends; an epoch whose subwords are drawn anew is drawn here."""
        if self.resample is not None:
            self.source, self.target = self.resample(epoch)
        return self.source.lengths + 1, self.target.lengths + 1

    def batch(self, rows: NDArray[np.int64], epoch: int = 0) -> Seq2SeqBatch:
        """Those examples as tensors."""
        source = self.source.padded(rows, self.pad_id, after=self.eos_id)
        target = self.target.padded(rows, -1, before=self.start_id, after=self.eos_id)
        target_input, labels = target[:, :-1].clone(), target[:, 1:].clone()
        real = torch.from_numpy(np.arange(source.shape[1]) < (self.source.lengths[rows] + 1)[:, None])
        target_input[labels < 0] = self.pad_id
        return Seq2SeqBatch(source, real, target_input, labels)

    def padding(self, epoch: int = 0) -> float:
        """The share of computed tokens that are padding, both sides together."""
        real = computed = 0
        for rows in (part for update in self.plan(epoch) for part in update):
            for side in (self.source.lengths[rows] + 1, self.target.lengths[rows] + 1):
                real += int(side.sum())
                computed += int(side.max()) * len(rows)
        return 1 - real / computed
