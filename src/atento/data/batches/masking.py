"""Hide tokens, words or spans of a text: the choices of masked language modelling, as a function of seed and epoch."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atento.config.tables.objective import ObjectiveConfig
from atento.data.batches.batch import Draw
from atento.data.batches.shuffle import grid_hashes, hashes, random_partition, random_partitions, uniform
from atento.errors import TokenizerError
from atento.text.tokenizer import Tokenizer

MAX_SPAN, SPAN_P = 10, 0.2  # words of a span: geometric with p 0.2, at most 10 (SpanBERT); 3.8 on average
_UNITS_KEY, _TREATMENT_KEY, _GAPS_KEY = 15, 16, 17  # keep these hashes apart from hashes for other purposes
_SPAN_LENGTHS = np.cumsum((1 - SPAN_P) ** np.arange(MAX_SPAN))  # not yet divided by its last value


@dataclass(frozen=True)
class Masking:
    """BERT's masking (Devlin et al. 2019), drawn again in every epoch (Liu et al. 2019).

    A share `rate` of the units of a text is chosen, at least one. 80 % of the chosen tokens are replaced by the mask,
    10 % by a random token, and 10 % stay unchanged.

    Units are tokens; words, of which all tokens are chosen (BERT's whole-word masking); or words in spans, whose number
    of words is geometric (SpanBERT, Joshi et al. 2020, 3.1). The last span is cut so that the rate holds. Two spans are
    never neighbours. All tokens of a span are treated alike. A word has as many tokens wherever it stands, so
    a share `rate` of the words has the same share of the tokens, on average.

    Attributes:
        mask_id: id of the mask token.
        ordinary_ids: (n,) the ids of random tokens, in order: all but the special tokens (`Tokenizer.ordinary_ids`).
        rate: share of chosen units.
        unit: what is chosen as a whole.
    """

    mask_id: int
    ordinary_ids: NDArray[np.int64]
    rate: float = 0.15
    unit: Literal["tokens", "words", "spans"] = "tokens"

    def is_ordinary(self, ids: Tensor) -> Tensor:
        """Return which of ids (B,L) are no special tokens: boolean (B,L)."""
        places = np.searchsorted(self.ordinary_ids, ids.numpy()).clip(max=len(self.ordinary_ids) - 1)
        return torch.from_numpy(self.ordinary_ids[places] == ids.numpy())

    def share(self, units: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return how many units of texts with these numbers of units are chosen, on average."""
        return np.maximum(1.0, self.rate * units.astype(np.float64))

    def expected(self, tokens: NDArray[np.int64], words: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        """Return how many tokens of texts of these lengths are chosen, on average.

        Args:
            tokens: of each text.
            words: of each text; not read where the unit is the token.
        """
        if self.unit == "tokens" or words is None:
            return self.share(tokens)
        return self.share(words) * tokens / np.maximum(1, words)

    def hide_batch(
        self,
        ids: Tensor,
        labels: Tensor,
        may_be_chosen: Tensor,
        rows: NDArray[np.int64],
        draw: Draw,
        words: NDArray[np.int64] | None = None,
    ) -> list[NDArray[np.int64]]:
        """Hide tokens, words or spans of a batch: as `hide` row by row, many times faster.

        Args:
            ids: (B,L), changed in place.
            labels: (B,L) of -1; receives the original ids at the chosen positions.
            may_be_chosen: boolean (B,L).
            rows: (B,) numbers of the examples.
            draw: seed and epoch.
            words: (B,L) the number of the word of each position; not read where the unit is the token.

        Returns:
            The spans of each row as ranges of its positions that may be chosen (ranges,2); nothing for other units.
        """
        may = may_be_chosen.numpy()
        counts, spans = may.sum(axis=1), list[NDArray[np.int64]]()
        most = int(counts.max(initial=0))
        positions = np.argsort(~may, axis=1, kind="stable")[:, :most]  # those that may be chosen come first
        if self.unit == "tokens":
            drawn = grid_hashes(rows, 3 * most + 1, draw.seed, draw.epoch)  # of each row those that `hide` draws
            ranked, chosen = self._first(drawn, counts, np.take_along_axis(drawn, 3 * counts[:, np.newaxis], 1))
            at, place = np.nonzero(np.arange(most) < chosen[:, np.newaxis])
            index = ranked[at, place]
            treatment, random = drawn[at, counts[at] + place], drawn[at, 2 * counts[at] + place]
        else:
            assert words is not None
            of_place = np.take_along_axis(words, positions, axis=1)
            inside_row = np.arange(most) < counts[:, np.newaxis]
            begins = (np.diff(of_place, axis=1, prepend=of_place[:, :1] - 1) != 0) & inside_row
            n_words = begins.sum(axis=1)
            number = np.maximum(0, np.cumsum(begins, axis=1) - 1)  # of the word in its row
            is_chosen, treated = np.zeros((len(rows), int(n_words.max(initial=0))), dtype=np.bool_), None
            if self.unit == "words":
                drawn = grid_hashes(rows, is_chosen.shape[1] + 1, draw.seed, draw.epoch, after=(_UNITS_KEY,))
                ranked, chosen = self._first(drawn, n_words, np.take_along_axis(drawn, n_words[:, np.newaxis], 1))
                np.put_along_axis(is_chosen, ranked, np.arange(ranked.shape[1]) < chosen[:, np.newaxis], axis=1)
            else:
                row, first, last = self._spans_of(n_words, rows, draw)
                edges = np.zeros((len(rows), is_chosen.shape[1] + 1), dtype=np.int64)
                np.add.at(edges, (row, first), 1)
                np.add.at(edges, (row, last), -1)
                is_chosen = np.cumsum(edges, axis=1)[:, :-1] > 0
                start = np.zeros((len(rows), is_chosen.shape[1] + 1), dtype=np.int64)  # of each word, in `positions`
                start[np.arange(len(rows)), n_words] = counts
                begin_row, begin = np.nonzero(begins)
                start[begin_row, number[begin_row, begin]] = begin
                of_span = np.zeros_like(edges)
                of_span[row, first] = start[row, first]
                treated = np.maximum.accumulate(of_span, axis=1)  # of a word: the place of the first token of its span
                ranges = np.stack([start[row, first], start[row, last]], axis=1)
                spans = np.split(ranges, np.searchsorted(row, np.arange(1, len(rows))))
            at, index = np.nonzero(np.take_along_axis(is_chosen, number, axis=1) & inside_row)
            drawn = grid_hashes(rows, 2 * most, draw.seed, draw.epoch, after=(_TREATMENT_KEY,))
            treatment = drawn[at, index if treated is None else treated[at, number[at, index]]]
            random = drawn[at, counts[at] + index]
        flat = at * may.shape[1] + positions[at, index]
        self._replace(ids.view(-1).numpy(), labels.view(-1).numpy(), flat, treatment, random)
        return spans

    def _spans_of(
        self, n: NDArray[np.int64], rows: NDArray[np.int64], draw: Draw
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Choose spans of n (B,) words, as `_spans` row by row: the row of each, its first word, and the one behind."""
        key = draw.seed, draw.epoch
        drawn = grid_hashes(rows, int(n.max(initial=0)) + 2, *key, after=(_UNITS_KEY,))
        rounding = uniform(np.take_along_axis(drawn, n[:, np.newaxis], 1)[:, 0])
        hidden = np.minimum((self.share(n) + rounding).astype(np.int64), n)
        most = int(hidden.max(initial=0))
        below_one = uniform(drawn[:, :most])
        lengths = 1 + np.searchsorted(_SPAN_LENGTHS, below_one * _SPAN_LENGTHS[-1], side="right")
        counts = 1 + (np.cumsum(lengths, axis=1) < hidden[:, np.newaxis]).sum(axis=1)  # up to the one of the last word
        counts = np.where(hidden > 0, np.minimum(counts, n - hidden + 1), 0)
        within = np.arange(most) < counts[:, np.newaxis]
        lengths = np.where(within, lengths, 0)
        filled = np.flatnonzero(counts)
        lengths[filled, counts[filled] - 1] += hidden[filled] - lengths[filled].sum(axis=1)
        order = np.where(within, grid_hashes(rows, most, *key, after=(_UNITS_KEY, 1)), np.uint64(2**64 - 1))
        lengths = np.take_along_axis(lengths, np.argsort(order, axis=1, kind="stable"), axis=1)
        gaps = random_partitions(n - hidden + 2, counts + 1, rows, *key, after=(_GAPS_KEY,))[:, :-1]
        lengths = lengths[:, : gaps.shape[1]]
        ends = np.cumsum(gaps + lengths, axis=1) - 1
        row, place = np.nonzero(within[:, : gaps.shape[1]])
        return row, (ends - lengths)[row, place], ends[row, place]

    def _first(
        self, drawn: NDArray[np.uint64], units: NDArray[np.int64], rounding: NDArray[np.uint64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rank the units (B,) of each row by their hashes, and return how many of the first are chosen, (B,)."""
        most = int(units.max(initial=0))
        order = np.where(np.arange(most) < units[:, np.newaxis], drawn[:, :most], np.uint64(2**64 - 1))
        chosen = np.minimum((self.share(units) + uniform(rounding[:, 0])).astype(np.int64), units)
        return np.argsort(order, axis=1, kind="stable"), chosen

    def hide(
        self,
        ids: Tensor,
        positions: NDArray[np.int64],
        labels: Tensor,
        row: int,
        draw: Draw,
        words: NDArray[np.int64] | None = None,
    ) -> NDArray[np.int64]:
        """Hide some tokens of one text, as a function of seed, epoch and row.

        Args:
            ids: (L,), changed in place.
            positions: (n,) the positions that may be chosen.
            labels: (L,) of -1; receives the original ids at the chosen positions.
            row: number of the example.
            draw: seed and epoch.
            words: (n,) the number of the word of each position; not read where the unit is the token.

        Returns:
            The chosen words or spans in order, as ranges of `positions` (ranges,2); none where the unit is the token.
        """
        n = len(positions)
        if self.unit == "tokens":
            drawn = hashes(3 * n + 1, draw.seed, draw.epoch, row)  # order, treatment, random token, and rounding
            chosen = positions[np.argsort(drawn[:n], kind="stable")[: self._count(n, drawn[-1])]]
            of_chosen = slice(0, len(chosen))
            treatment, random = drawn[n : 2 * n][of_chosen], drawn[2 * n :][of_chosen]
            self._replace(ids.numpy(), labels.numpy(), chosen, treatment, random)
            return np.empty((0, 2), dtype=np.int64)
        assert words is not None
        starts = np.flatnonzero(np.diff(words, prepend=words[:1] - 1))  # where each word begins
        units = self._words(starts, row, draw) if self.unit == "words" else self._spans(len(starts), row, draw)
        ranges = np.append(starts, n)[units]
        index, first = inside(ranges)
        drawn = hashes(2 * n, draw.seed, draw.epoch, row, _TREATMENT_KEY)
        treatment = drawn[:n][first if self.unit == "spans" else index]  # of a span: that of its first token
        self._replace(ids.numpy(), labels.numpy(), positions[index], treatment, drawn[n:][index])
        return ranges

    def _count(self, units: int, drawn: np.uint64) -> int:
        """Return how many units are chosen, rounded at random, so that the mean is exact."""
        return int(float(self.share(np.array(units))) + float(uniform(np.array(drawn))))

    def _words(self, starts: NDArray[np.int64], row: int, draw: Draw) -> NDArray[np.int64]:
        """Choose words: ranges [first, last) of one word each, in order, (words,2)."""
        n = len(starts)
        drawn = hashes(n + 1, draw.seed, draw.epoch, row, _UNITS_KEY)
        chosen = np.sort(np.argsort(drawn[:n], kind="stable")[: self._count(n, drawn[n])])
        return np.stack([chosen, chosen + 1], axis=1)

    def _spans(self, n: int, row: int, draw: Draw) -> NDArray[np.int64]:
        """Choose spans: ranges [first, last) of words, in order, of which no two are neighbours, (spans,2)."""
        drawn = hashes(n + 2, draw.seed, draw.epoch, row, _UNITS_KEY)
        hidden = min(n, self._count(n, drawn[n]))
        lengths = 1 + np.searchsorted(_SPAN_LENGTHS, uniform(drawn[:hidden]) * _SPAN_LENGTHS[-1], side="right")
        count = 1 + int(np.searchsorted(np.cumsum(lengths), hidden))  # spans up to the one that has the last word
        count = min(count, n - hidden + 1)  # two spans have a word between them
        lengths = lengths[:count]
        lengths[-1] = hidden - int(lengths[:-1].sum())
        # the spans, and so the cut one, are in random order: gaps and lengths are independent
        lengths = lengths[np.argsort(hashes(count, draw.seed, draw.epoch, row, _UNITS_KEY, 1), kind="stable")]
        # + 2: the first and the last gap may be empty
        gaps = random_partition(n - hidden + 2, count + 1, draw.seed, draw.epoch, row, _GAPS_KEY)
        ends = np.cumsum(np.array(gaps[:-1]) + lengths) - 1
        return np.stack([ends - lengths, ends], axis=1)

    def _replace(
        self,
        ids: NDArray[np.int64],
        labels: NDArray[np.int64],
        chosen: NDArray[np.int64],
        treatment: NDArray[np.uint64],
        random: NDArray[np.uint64],
    ) -> None:
        """Label the chosen positions (n,) of ids (L,) and replace their tokens there; `treatment` and `random` are
        hashes (n,).
        """
        labels[chosen] = ids[chosen]
        treatment = treatment % np.uint64(10)  # 0 to 7: mask, 8: random token, 9: unchanged
        random = random % np.uint64(len(self.ordinary_ids))
        ids[chosen[treatment < 8]] = self.mask_id
        replaced = treatment == 8
        ids[chosen[replaced]] = self.ordinary_ids[random[replaced]]


def inside(ranges: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the positions inside ranges (ranges,2), one after another, and the first position of the range of each."""
    sizes = ranges[:, 1] - ranges[:, 0]
    first = np.repeat(ranges[:, 0], sizes)
    return first + np.arange(len(first)) - np.repeat(np.cumsum(sizes) - sizes, sizes), first


def masking_of(
    tokenizer: Tokenizer, config: ObjectiveConfig, unit: Literal["tokens", "words", "spans"] | None = None
) -> Masking:
    """Return the masking for a tokenizer.

    Raises:
        TokenizerError: it has no mask, or nothing but special tokens.
    """
    mask_id, ordinary_ids = tokenizer.mask_id, np.array(tokenizer.ordinary_ids, dtype=np.int64)
    if not len(ordinary_ids):
        raise TokenizerError("masking needs a tokenizer with pieces that are not special: all are special tokens")
    return Masking(mask_id, ordinary_ids, config.option("rate"), unit or config.unit)
