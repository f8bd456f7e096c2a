"""Denoising: write a text from a noisy copy of it (BART; Lewis et al. 2020, 2.2), or what sentinels replace (T5).

text "O gato dorme. Ele sonha com peixe."
source "Ele sonha <mask>. <mask> gato dorme. </s>"   labels "O gato dorme. Ele sonha com peixe. </s>"

Span corruption (Raffel et al. 2020, 3.1.4; docs/notes.md#e3):
source "Thank you <X> me to your party <Y> week."   labels "<X> for inviting <Y> last <Z>"
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from atento.base.errors import DataError, TokenizerError
from atento.base.splitmix import grid_hashes, permutation, random_partitions, uniform
from atento.config.tables.objective import SENTINELS, ObjectiveConfig
from atento.data.batches.batch import Batch, Draw, MemoryStore, Ragged, Rows, Store
from atento.data.batches.planning import PlannedBatches
from atento.data.batches.special_tokens import begin_of_outputs, special_tokens_of
from atento.data.objectives.preparation import Preparation, windows
from atento.data.objectives.sequence_to_sequence import SequenceToSequence
from atento.text.specials import Template, sentinels
from atento.text.tokenizer import Tokenizer
from atento.text.words import split_sentences

_COINS_KEY, _LENGTHS_KEY, _GAPS_KEY, _DELETED_KEY, _SENTENCES_KEY = 31, 32, 33, 34, 35  # one for each use here
_HIDDEN_KEY, _KEPT_KEY = 13, 14  # of span corruption
Spans = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Noise:
    """The noise of BART, drawn again in every epoch; each kind is left out where its share is 0.

    In this order: the sentences of a text are permuted; spans of tokens are replaced by one mask each (text infilling),
    with lengths by the Poisson distribution, so that a span of length 0 inserts a mask; tokens are deleted; the text is
    rotated to begin at a random token.
    """

    mask_id: int  # id of the mask token
    infilling: float = 0.3  # share of the tokens of a text in spans; the last span is cut so that it holds
    mean_span: float = 3.0  # mean of the Poisson distribution
    deletion: float = 0.0  # share of the tokens that are deleted
    permutation: float = 1.0  # share of the texts whose sentences are permuted
    rotation: float = 0.0  # share of the texts that are rotated

    def noisy(
        self, texts: Sequence[NDArray[np.int64]], sentences: Sequence[NDArray[np.int64]], rows: Rows, draw: Draw
    ) -> list[NDArray[np.int64]]:
        """Return a noisy copy of each text, a function of seed, epoch and row.

        Args:
            texts: ids, at least one of each text.
            sentences: the number of the sentence of each token, in rising order.
            rows: (B,) numbers of the examples.
            draw: seed and epoch.
        """
        key = draw.seed, draw.epoch
        coins = uniform(grid_hashes(rows, 5, *key, after=(_COINS_KEY,)))  # (B,5), in [0, 1)
        permuted, rotated, rounding, deleted, first = coins.T  # (B,) each
        spans = self._spans(np.array([len(ids) for ids in texts]), rounding, rows, *key)
        made = []
        for at, (ids, numbers, row) in enumerate(zip(texts, sentences, rows.tolist())):
            if permuted[at] < self.permutation and numbers[0] != numbers[-1]:
                order = shuffled(numbers, *key, row, _SENTENCES_KEY)  # the numbers in random order
                ids = np.concatenate([ids[numbers == number] for number in order])  # a sentence at a time
            starts, ends = spans[at]
            if starts:  # spans [start, end) are replaced by one mask each; one may be empty
                mask = np.array([self.mask_id], dtype=ids.dtype)
                pieces = [ids[begin:end] for begin, end in zip([0, *ends], starts)]  # what stays: before each span
                ids = np.concatenate([part for piece in pieces for part in (piece, mask)] + [ids[ends[-1] :]])
            if self.deletion:
                count = int(self.deletion * len(ids) + deleted[at])  # rounded at random, so that the mean is exact
                ids = ids[np.sort(permutation(len(ids), *key, row, _DELETED_KEY)[count:])]  # the others, in their order
            if rotated[at] < self.rotation and len(ids):
                ids = np.roll(ids, -int(first[at] * len(ids)))  # it begins at token first · n
            made.append(ids)
        return made

    def _spans(
        self, lengths: NDArray[np.int64], rounding: NDArray[np.float64], rows: Rows, *key: int
    ) -> list[tuple[list[int], list[int]]]:
        """Draw the starts and the ends of the spans of texts of these lengths (B,); two have a token between them."""
        if not self.infilling:
            return [([], [])] * len(lengths)
        hidden = (self.infilling * lengths + rounding).astype(np.int64)  # (B,) tokens in spans
        most = 8 + int(4 * int(hidden.max(initial=0)) / self.mean_span)  # far more than are needed
        drawn = uniform(grid_hashes(rows, most, *key, after=(_LENGTHS_KEY,)))  # (B,most)
        sizes = np.searchsorted(self._poisson, drawn, side="right").astype(np.int64)
        # up to the span with the last hidden token, which is cut
        counts = np.where(hidden > 0, 1 + (np.cumsum(sizes, axis=1) < hidden[:, np.newaxis]).sum(axis=1), 0)
        sizes = np.where(np.arange(most) < counts[:, np.newaxis], sizes, 0)  # (B,most): none beyond the last span
        filled = np.flatnonzero(counts)  # texts with a span
        sizes[filled, counts[filled] - 1] -= np.maximum(0, sizes[filled].sum(axis=1) - hidden[filled])
        counts = np.minimum(counts, lengths - hidden + 1)  # a token stays between two spans
        sizes = np.where(np.arange(most) < counts[:, np.newaxis], sizes, 0)
        # 0, but for a text with room for few spans
        sizes[filled, np.argmax(sizes[filled], axis=1)] += hidden[filled] - sizes[filled].sum(axis=1)
        # + 2: the first and the last gap may be empty
        gaps = random_partitions(lengths - hidden + 2, counts + 1, rows, *key, after=(_GAPS_KEY,))[:, :-1]
        ends = np.cumsum(gaps + sizes[:, : gaps.shape[1]], axis=1) - 1  # (B,most spans), exclusive
        starts = ends - sizes[:, : gaps.shape[1]]
        spans = zip(starts, ends, counts.tolist())
        return [(start[:count].tolist(), end[:count].tolist()) for start, end, count in spans]

    @cached_property
    def _poisson(self) -> NDArray[np.float64]:
        """P(length <= k) for k from 0."""
        lengths = np.arange(20 + int(10 * self.mean_span))  # the mass beyond is lost in rounding
        log_factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, len(lengths))))])  # log k! = Σ log i
        return np.cumsum(np.exp(lengths * np.log(self.mean_span) - self.mean_span - log_factorials))


@dataclass(frozen=True)
class Denoising:
    """Batches of noisy texts and the texts. Columns: "ids"; "sentence", the number of the sentence of each token."""

    layout: SequenceToSequence  # makes batches of sources and targets
    noise: Noise  # makes the sources
    template: Template  # special tokens around a source
    begin: tuple[int, ...] = ()  # ids in front of a target

    def sizes(self, store: Store) -> NDArray[np.float64]:
        """Return the number of tokens of each target, EOS included."""
        return self.lengths(store)[1].astype(np.float64)

    def lengths(self, store: Store) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the lengths of texts with special tokens, as sources without noise and as targets."""
        lengths = store["ids"].lengths
        return lengths + self.template.added(False), lengths + len(self.begin) + 1

    def batch(self, store: Store, rows: Rows, draw: Draw) -> Batch:
        """Return a batch; each epoch draws other noise."""
        texts = [store["ids"][row].astype(np.int64) for row in rows.tolist()]
        noisy = self.noise.noisy(texts, [store["sentence"][row] for row in rows.tolist()], rows, draw)
        sources = [self.template.apply(ids.tolist())[0][:-1] for ids in noisy]  # the layout adds EOS
        columns = {"source": Ragged(sources), "target": Ragged([[*self.begin, *ids.tolist()] for ids in texts])}
        return self.layout.batch(MemoryStore(columns), np.arange(len(sources)), draw)


def shuffled(sentences: NDArray[np.int64], *key: int) -> NDArray[np.int64]:
    """Return the numbers of the sentences of a text in random order."""
    numbers = np.unique(sentences)
    return np.asarray(numbers[permutation(len(numbers), *key)], dtype=np.int64)


def sentence_numbers(tokenizer: Tokenizer, text: str) -> tuple[list[int], list[int]]:
    """Return the ids of a text, and the number of the sentence of each."""
    encoded = tokenizer.encode_with_offsets(text)
    ends, at = [], 0
    for sentence in split_sentences(text):
        at = text.index(sentence, at) + len(sentence)  # where it ends, in characters
        ends.append(at)
    starts = np.array([start for start, _ in encoded.offsets], dtype=np.int64)
    numbers = np.searchsorted(np.array(ends[:-1], dtype=np.int64), starts, side="right")  # the one it begins in
    return encoded.ids, np.maximum.accumulate(numbers).tolist() if len(numbers) else []  # in rising order


def denoising(preparation: Preparation, config: ObjectiveConfig) -> PlannedBatches:
    """Return batches for denoising; texts longer than `data.max_len` tokens are split.
    Raises DataError: no text is left. TokenizerError: the tokenizer has no mask.
    """
    network, tokenizer = preparation.network, preparation.tokenizer
    template = special_tokens_of(network, tokenizer)
    begin = begin_of_outputs(network)
    room = preparation.longest - max(template.added(False), len(begin) + 1)  # room without the special tokens
    encoded = [sentence_numbers(tokenizer, text) for text in preparation.split["text"]]
    ids = preparation.pieces([text for text, _ in encoded], room)
    # cut exactly as `pieces` cuts the ids
    sentences = [piece for _, numbers in encoded if numbers for piece in windows(numbers, room, 0)]
    if not ids:
        raise DataError("no text is left: all are blank")
    shares = (config.option(name) for name in ("infilling", "mean_span", "deletion", "permutation", "rotation"))
    layout = SequenceToSequence(network.pad_id, network.start_id, network.eos_id)
    objective = Denoising(layout, Noise(tokenizer.mask_id, *shares), template, begin)
    store = MemoryStore({"ids": Ragged(ids), "sentence": Ragged(sentences)})
    return preparation.planned(store, objective, config.weight)


@dataclass(frozen=True)
class SpanCorruption:
    """Batches of corrupted texts; each epoch hides other spans. Column "ids": texts without special tokens."""

    layout: SequenceToSequence  # makes batches of sources and targets
    sentinels: tuple[int, ...]  # ids of the sentinels in order
    rate: float = 0.15  # share of the tokens that is hidden
    mean_span: float = 3.0  # mean length of a hidden span, in tokens

    def counts(self, length: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return for texts of these lengths how many tokens are hidden, and in how many spans."""
        hidden = np.clip(np.round(length * self.rate).astype(np.int64), 1, np.maximum(1, length - 1))
        spans = np.clip(np.round(hidden / self.mean_span).astype(np.int64), 1, np.maximum(1, length - hidden))
        return hidden, np.minimum(spans, len(self.sentinels) - 1)  # a last one ends the target

    def sizes(self, store: Store) -> NDArray[np.float64]:
        """Return the length of each target: hidden tokens, a sentinel for each span, the last sentinel and EOS."""
        return self.lengths(store)[1].astype(np.float64)

    def lengths(self, store: Store) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the lengths of sources and targets, EOS included; they are the same in every epoch."""
        length = store["ids"].lengths
        hidden, spans = self.counts(length)
        return length - hidden + spans + 1, hidden + spans + 2  # EOS; last sentinel and EOS

    def batch(self, store: Store, rows: Rows, draw: Draw) -> Batch:
        """Return a batch: sources with sentinels in place of spans, and targets with the spans."""
        spans = self.spans(store["ids"].lengths[rows], rows, draw)
        texts = (store["ids"][row].tolist() for row in rows.tolist())
        pairs = [corrupt(ids, of_row, self.sentinels) for ids, of_row in zip(texts, spans)]
        columns = {"source": Ragged([source for source, _ in pairs]), "target": Ragged([target for _, target in pairs])}
        return self.layout.batch(MemoryStore(columns), np.arange(len(pairs)), draw)

    def spans(self, lengths: NDArray[np.int64], rows: Rows, draw: Draw) -> list[list[tuple[int, int]]]:
        """Draw the hidden spans [start, end) of texts of these lengths (B,); no two spans of a text are adjacent.

        T5's published program always hides the end of a text; here every span is random.
        """
        hidden, counts = self.counts(lengths)
        key = draw.seed, draw.epoch
        sizes = random_partitions(hidden, counts, rows, *key, after=(_HIDDEN_KEY,))  # (B,spans) ids in each
        # + 2: the first and the last gap may be empty
        gaps = random_partitions(lengths - hidden + 2, counts + 1, rows, *key, after=(_KEPT_KEY,))  # (B,spans + 1)
        ends = np.cumsum(gaps[:, :-1] + sizes, axis=1) - 1  # - 1: a first gap of 1 is an empty one
        drawn = zip(ends, ends - sizes, counts.tolist())
        return [list(zip(start[:count].tolist(), end[:count].tolist())) for end, start, count in drawn]


def corrupt(ids: Sequence[int], spans: Spans, sentinels: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return source and target: the text with sentinels in place of spans; and each sentinel with its span.

    A last sentinel ends the target.
    Raises ValueError: there are fewer sentinels than spans plus one.
    """
    if len(spans) + 1 > len(sentinels):
        raise ValueError(f"{len(spans)} spans need {len(spans) + 1} sentinels: got {len(sentinels)}")
    source: list[int] = []
    target: list[int] = []
    at = 0
    for (start, end), sentinel in zip(spans, sentinels):
        source += [*ids[at:start], sentinel]  # what is before the span
        target += [sentinel, *ids[start:end]]
        at = end
    return [*source, *ids[at:]], [*target, sentinels[len(spans)]]  # the last sentinel ends the target


def restored(source: Sequence[int], target: Sequence[int], sentinels: Sequence[int]) -> list[int]:
    """Invert `corrupt`: replace each sentinel of the source with its span of the target."""
    known = set(sentinels)
    spans: dict[int, list[int]] = {}
    current: list[int] = []
    for token in target:
        if token in known:
            current = spans.setdefault(token, [])
        else:
            current.append(token)
    return [token for id_ in source for token in (spans.get(id_, []) if id_ in known else [id_])]


def sentinel_ids(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the ids of a tokenizer's sentinels in order, `<extra_id_0>` first.
    Raises TokenizerError: it has fewer than two.
    """
    known_ids = (tokenizer.specials.get(text) for text in sentinels(SENTINELS))
    ids = tuple(token for token in known_ids if token is not None)
    if len(ids) < 2:
        raise TokenizerError(
            f"span corruption needs a tokenizer with sentinels, <extra_id_0>, <extra_id_1> ...: got {len(ids)} of them"
        )
    return ids


def span_corruption(preparation: Preparation, config: ObjectiveConfig) -> PlannedBatches:
    """Return batches for span corruption; texts longer than `data.max_len` tokens are split, single tokens left out.
    Raises DataError: no text of two tokens is left. TokenizerError: the tokenizer has no sentinels.
    """
    network = preparation.network
    rows = [piece for piece in preparation.pieces(preparation.encoded(), preparation.longest - 1) if len(piece) > 1]
    if not rows:
        raise DataError("no text has two tokens, so there is no span to hide")
    layout = SequenceToSequence(network.pad_id, network.start_id, network.eos_id)
    options = config.option("rate"), config.option("mean_span")
    objective = SpanCorruption(layout, sentinel_ids(preparation.tokenizer), *options)
    store = MemoryStore({"ids": Ragged(rows)})
    return preparation.planned(store, objective, config.weight)
