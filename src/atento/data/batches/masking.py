"""Hide tokens, words or spans of a text: the choices of masked language modelling, as a function of seed and epoch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atento.base.errors import TokenizerError
from atento.base.splitmix import grid_hashes, random_partitions, uniform
from atento.config.tables.objective import ObjectiveConfig
from atento.data.batches.batch import Draw, Ragged
from atento.text.tokenizer import Tokenizer
from atento.text.words import word_spans

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
    """

    mask_id: int  # id of the mask token
    # (n,) the ids of random tokens, in order: all but the special tokens (`Tokenizer.ordinary_ids`)
    ordinary_ids: NDArray[np.int64]
    rate: float = 0.15  # share of chosen units
    unit: Literal["tokens", "words", "spans"] = "tokens"  # what is chosen as a whole

    def is_ordinary(self, ids: Tensor) -> Tensor:
        """Return which of ids (B,L) are no special tokens: boolean (B,L)."""
        places = np.searchsorted(self.ordinary_ids, ids.numpy()).clip(max=len(self.ordinary_ids) - 1)
        return torch.from_numpy(self.ordinary_ids[places] == ids.numpy())

    def share(self, units: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return how many units of texts with these numbers of units are chosen, on average."""
        return np.maximum(1.0, self.rate * units.astype(np.float64))  # at least one unit of a text

    def expected(self, tokens: NDArray[np.int64], words: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        """Return how many tokens of texts of these lengths are chosen, on average.

        Args:
            tokens: of each text.
            words: of each text; not read where the unit is the token.
        """
        if self.unit == "tokens" or words is None:
            return self.share(tokens)
        return self.share(words) * tokens / np.maximum(1, words)  # tokens of the chosen words, on average

    def hide_batch(
        self,
        ids: Tensor,
        labels: Tensor,
        may_be_chosen: Tensor,
        rows: NDArray[np.int64],
        draw: Draw,
        words: NDArray[np.int64] | None = None,
    ) -> list[NDArray[np.int64]]:
        """Hide tokens, words or spans of a batch: what is hidden of a row is a function of seed, epoch and its number.

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
        counts, spans = may.sum(axis=1), list[NDArray[np.int64]]()  # (B,)
        positions = np.argsort(~may, axis=1, kind="stable")[:, : int(counts.max(initial=0))]  # those that may, first
        if self.unit == "tokens":
            most = int(counts.max(initial=0))  # the most tokens of a row
            drawn = grid_hashes(rows, 3 * most + 1, draw.seed, draw.epoch)  # order, treatment, random token, rounding
            ranked, n = self._first(drawn, counts, np.take_along_axis(drawn, 3 * counts[:, np.newaxis], 1))
            row, place = np.nonzero(np.arange(most) < n[:, np.newaxis])  # the first n of each ranking
            treatment, random = drawn[row, counts[row] + place], drawn[row, 2 * counts[row] + place]
            chosen = _Chosen(row, ranked[row, place], treatment, random)
        else:
            assert words is not None
            of_tokens = np.take_along_axis(words, positions, axis=1)  # differs between neighbouring words
            begins = np.diff(of_tokens, axis=1, prepend=of_tokens[:, :1] - 1) != 0  # the first token begins a word
            begins &= np.arange(of_tokens.shape[1]) < counts[:, np.newaxis]  # nothing behind the end begins one
            of_rows = _Words(counts, begins, np.maximum(0, np.cumsum(begins, axis=1) - 1), begins.sum(axis=1))
            if self.unit == "words":
                is_chosen = np.zeros((len(rows), int(of_rows.count.max(initial=0))), dtype=np.bool_)  # (B,W)
                drawn = grid_hashes(rows, is_chosen.shape[1] + 1, draw.seed, draw.epoch, after=(_UNITS_KEY,))
                rounding = np.take_along_axis(drawn, of_rows.count[:, np.newaxis], 1)
                ranked, n = self._first(drawn, of_rows.count, rounding)  # (B,W) and (B,)
                np.put_along_axis(is_chosen, ranked, np.arange(ranked.shape[1]) < n[:, np.newaxis], axis=1)
                chosen = _treated(of_rows, is_chosen, None, rows, draw)
            else:
                is_chosen, first, spans = self._spans(of_rows, rows, draw)
                chosen = _treated(of_rows, is_chosen, first, rows, draw)
        flat = chosen.row * may.shape[1] + positions[chosen.row, chosen.index]  # in the flat ids, changed in place
        self._replace(ids.view(-1).numpy(), labels.view(-1).numpy(), flat, chosen.treatment, chosen.random)
        return spans

    def _spans(
        self, words: "_Words", rows: NDArray[np.int64], draw: Draw
    ) -> tuple[NDArray[np.bool_], NDArray[np.int64], list[NDArray[np.int64]]]:
        """Choose spans: which words (B,W) are in one, the first token (B,W) of its span, and the spans of each row."""
        row, first, last = self._spans_of(words.count, rows, draw)  # rows in order; last: the word behind a span
        start = words.starts()
        edges = np.zeros_like(start)
        np.add.at(edges, (row, first), 1)  # +1 where a span begins, -1 behind it: the running sum is 1 inside
        np.add.at(edges, (row, last), -1)
        of_span = np.zeros_like(start)
        of_span[row, first] = start[row, first]  # carried on by the running maximum, since starts rise in a row
        ranges = np.stack([start[row, first], start[row, last]], axis=1)  # (spans,2), in tokens
        spans = np.split(ranges, np.searchsorted(row, np.arange(1, len(rows))))  # the spans of each row
        return np.cumsum(edges, axis=1)[:, :-1] > 0, np.maximum.accumulate(of_span, axis=1), spans

    def _spans_of(
        self, n: NDArray[np.int64], rows: NDArray[np.int64], draw: Draw
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Choose spans of n (B,) words: the row of each, its first word, and the one behind."""
        key = draw.seed, draw.epoch
        drawn = grid_hashes(rows, int(n.max(initial=0)) + 2, *key, after=(_UNITS_KEY,))
        rounding = uniform(np.take_along_axis(drawn, n[:, np.newaxis], 1)[:, 0])  # (B,) in [0, 1)
        hidden = np.minimum((self.share(n) + rounding).astype(np.int64), n)  # rounded up as often as the share says
        most = int(hidden.max(initial=0))
        below_one = uniform(drawn[:, :most])  # (B,most)
        lengths = 1 + np.searchsorted(_SPAN_LENGTHS, below_one * _SPAN_LENGTHS[-1], side="right")  # (B,most)
        counts = 1 + (np.cumsum(lengths, axis=1) < hidden[:, np.newaxis]).sum(axis=1)  # up to the one of the last word
        counts = np.where(hidden > 0, np.minimum(counts, n - hidden + 1), 0)  # room for a word between two spans
        within = np.arange(most) < counts[:, np.newaxis]  # (B,most)
        lengths = np.where(within, lengths, 0)
        filled = np.flatnonzero(counts)
        lengths[filled, counts[filled] - 1] += hidden[filled] - lengths[filled].sum(axis=1)  # the last takes the rest
        order = np.where(within, grid_hashes(rows, most, *key, after=(_UNITS_KEY, 1)), np.uint64(2**64 - 1))
        lengths = np.take_along_axis(lengths, np.argsort(order, axis=1, kind="stable"), axis=1)  # shuffled in each row
        gaps = random_partitions(n - hidden + 2, counts + 1, rows, *key, after=(_GAPS_KEY,))[:, :-1]
        lengths = lengths[:, : gaps.shape[1]]
        ends = np.cumsum(gaps + lengths, axis=1) - 1  # -1: the first gap has one more, as the last has
        row, place = np.nonzero(within[:, : gaps.shape[1]])  # spans in the order of rows
        return row, (ends - lengths)[row, place], ends[row, place]

    def _first(
        self, drawn: NDArray[np.uint64], units: NDArray[np.int64], rounding: NDArray[np.uint64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rank the units (B,) of each row by their hashes, and return how many of the first are chosen, (B,)."""
        most = int(units.max(initial=0))
        order = np.where(np.arange(most) < units[:, np.newaxis], drawn[:, :most], np.uint64(2**64 - 1))  # others last
        chosen = np.minimum((self.share(units) + uniform(rounding[:, 0])).astype(np.int64), units)
        return np.argsort(order, axis=1, kind="stable"), chosen  # ranked, and how many

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
        labels[chosen] = ids[chosen]  # before the ids change
        treatment = treatment % np.uint64(10)  # 0 to 7: mask, 8: random token, 9: unchanged
        random = random % np.uint64(len(self.ordinary_ids))  # a number among the ordinary ids
        ids[chosen[treatment < 8]] = self.mask_id
        replaced = treatment == 8
        ids[chosen[replaced]] = self.ordinary_ids[random[replaced]]


@dataclass(frozen=True)
class _Chosen:
    """The chosen tokens (n,): the row of each, its number among those that may be chosen, and two hashes."""

    row: NDArray[np.int64]
    index: NDArray[np.int64]
    treatment: NDArray[np.uint64]
    random: NDArray[np.uint64]


@dataclass(frozen=True)
class _Words:
    """The words of the tokens that may be chosen, of rows with `size` (B,) such tokens."""

    size: NDArray[np.int64]
    begins: NDArray[np.bool_]  # boolean (B,L) whether a word begins with this token
    number: NDArray[np.int64]  # (B,L) of the word of each token in its row
    count: NDArray[np.int64]  # (B,) of the words

    def starts(self) -> NDArray[np.int64]:
        """Return the first token (B,W + 1) of each word, and behind the last one the number of tokens."""
        start = np.zeros((len(self.size), int(self.count.max(initial=0)) + 1), dtype=np.int64)
        start[np.arange(len(self.size)), self.count] = self.size  # behind the last word: the end
        row, token = np.nonzero(self.begins)
        start[row, self.number[row, token]] = token  # the first token of each word
        return start


def _treated(
    words: _Words, is_chosen: NDArray[np.bool_], first: NDArray[np.int64] | None, rows: NDArray[np.int64], draw: Draw
) -> _Chosen:
    """Return the tokens of the chosen words (B,W); each is treated as the token `first` (B,W) of its word, or alone."""
    most = words.number.shape[1]
    real = np.arange(most) < words.size[:, np.newaxis]
    row, index = np.nonzero(np.take_along_axis(is_chosen, words.number, axis=1) & real)
    drawn = grid_hashes(rows, 2 * most, draw.seed, draw.epoch, after=(_TREATMENT_KEY,))  # (B, treatment | token)
    treatment = drawn[row, index if first is None else first[row, words.number[row, index]]]
    return _Chosen(row, index, treatment, drawn[row, words.size[row] + index])  # each token its own random token


def masking_of(
    tokenizer: Tokenizer, config: ObjectiveConfig, unit: Literal["tokens", "words", "spans"] | None = None
) -> Masking:
    """Return the masking for a tokenizer. Raises TokenizerError: it has no mask, or nothing but special tokens."""
    mask_id, ordinary_ids = tokenizer.mask_id, np.array(tokenizer.ordinary_ids, dtype=np.int64)
    if not len(ordinary_ids):
        raise TokenizerError("masking needs a tokenizer with pieces that are not special: all are special tokens")
    return Masking(mask_id, ordinary_ids, config.option("rate"), unit or config.unit)


_LETTER = "a"  # a character that continues the word before it


def word_numbers(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """Return the number of the word of each token; equal numbers stand together.

    The words are those of the spelling of the tokens, so that any tokenizer has them. A token that is only a space
    belongs to the word behind it, and at the end of a text to none.
    """
    index = tokenizer.words(ids).index
    number = 1 + max((word for word in index if word is not None), default=0)
    numbers = []
    for word in reversed(index):
        number = number if word is None else word  # a space takes the number behind it
        numbers.append(number)
    return numbers[::-1]


class WordIds:
    """`word_numbers` of many texts at once.

    How many words begin in a piece depends on the piece and on whether a word reaches its beginning, so a table of the
    pieces and cumulative sums give the numbers. A text with a piece that is a part of a character is read by itself.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._begins = np.zeros(tokenizer.vocab_size, dtype=np.int64)  # words that begin in a piece, wherever it stands
        names = ("known", "partial", "empty", "blank", "joins", "open")
        self._is = {name: np.zeros(tokenizer.vocab_size, dtype=np.bool_) for name in names}

    def of(self, texts: Ragged) -> Ragged:
        """Return the numbers of the tokens of each text."""
        ids = texts.flat.astype(np.int64)
        for piece in np.unique(ids[~self._is["known"][ids]]).tolist():
            self._learn(piece)
        text = np.repeat(np.arange(len(texts)), texts.lengths)  # the text of each token
        numbers = Ragged.of_flat(self._numbers(ids, text).astype(np.int32), texts.lengths)
        for row in np.unique(text[self._is["partial"][ids]]).tolist():
            numbers[row][:] = word_numbers(self.tokenizer, texts[row].tolist())
        return numbers

    def _learn(self, piece: int) -> None:
        """Add a piece to the table."""
        self._is["known"][piece] = True
        spelling = self.tokenizer.spelling(piece)
        if isinstance(spelling, bytes):
            try:
                spelling = spelling.decode("utf-8")
            except UnicodeDecodeError:
                self._is["partial"][piece] = True
                return
        if spelling is None:  # a special token parts words as a space does
            spelling = " "
        spans = word_spans(spelling)  # (begin, end) of each word in it
        joins = bool(spelling) and word_spans(_LETTER + spelling)[0][1] > len(_LETTER)
        self._begins[piece] = len(spans) - joins  # the first word only where nothing joins
        self._is["empty"][piece], self._is["blank"][piece], self._is["joins"][piece] = not spelling, not spans, joins
        self._is["open"][piece] = bool(spelling) and word_spans(spelling + _LETTER)[-1][0] < len(spelling)

    def _numbers(self, ids: NDArray[np.int64], text: NDArray[np.int64]) -> NDArray[np.int64]:
        """The numbers of tokens (n,) of the texts `text` (n,)."""
        spelt = np.flatnonzero(~self._is["empty"][ids])  # pieces that spell something
        index = np.full(len(ids), -1)
        pieces, of = ids[spelt], text[spelt]
        continues = np.zeros(len(pieces), dtype=np.bool_)  # whether the word before a piece reaches into it
        continues[1:] = self._is["open"][pieces[:-1]] & (of[1:] == of[:-1])  # open before, in the same text
        joins = self._is["joins"][pieces]
        begins = self._begins[pieces] + (joins & ~continues)  # a word begins unless one goes on
        before = np.cumsum(begins) - begins  # words that begin before a piece, in all texts
        first = np.searchsorted(of, of)  # the first piece of its text
        before = before - before[first]  # counted from its own text
        own = np.where(joins & continues, before - 1, before)  # the word of the first character that is no space
        index[spelt] = np.where(self._is["blank"][pieces], -1, own)
        # replace -1 by the number behind it in the same text, at its end by 1 more than the largest (none: by 1)
        positions, count = np.arange(len(index)), len(index)
        behind = np.minimum.accumulate(np.where(index >= 0, positions, count)[::-1])[::-1]
        before = np.maximum.accumulate(np.where(index >= 0, positions, -1))
        padded_index, padded_text = np.append(index, 0), np.append(text, -1)  # of the positions `count` and -1
        at_end = 1 + np.where(padded_text[before] == text, padded_index[before], 0)
        return np.where(padded_text[behind] == text, padded_index[behind], at_end)
