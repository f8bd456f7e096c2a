"""Span corruption: predict spans that sentinels replace (T5; Raffel et al. 2020, 3.1.4; docs/notes.md#e3).

source "Thank you <X> me to your party <Y> week."   labels "<X> for inviting <Y> last <Z>"
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atento.base.errors import DataError, TokenizerError
from atento.base.splitmix import random_partitions
from atento.config.tables.objective import SENTINELS, ObjectiveConfig
from atento.data.batches.batch import Batch, Draw, MemoryStore, Ragged, Rows, Store
from atento.data.batches.planning import PlannedBatches
from atento.data.objectives.preparation import Preparation
from atento.data.objectives.sequence_to_sequence import SequenceToSequence
from atento.text.specials import sentinels
from atento.text.tokenizer import Tokenizer

_HIDDEN_KEY, _GAPS_KEY = 13, 14  # keep these hashes apart from hashes for other purposes
Spans = Sequence[tuple[int, int]]


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
        gaps = random_partitions(lengths - hidden + 2, counts + 1, rows, *key, after=(_GAPS_KEY,))  # (B,spans + 1)
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
