"""Span corruption: spans of a text that sentinels stand for (Raffel et al. 2020, 3.1.4; docs/notes.md#e3).

source "Thank you <X> me to your party <Y> week."   labels "<X> for inviting <Y> last <Z>"
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from atento.config.objective import SENTINELS, ObjectiveConfig
from atento.data.batches import Batch, Draw, PlannedBatches, Rows
from atento.data.objectives.preparation import Preparation
from atento.data.objectives.sequence_to_sequence import SequenceToSequence
from atento.data.shuffle import hashes
from atento.data.store import MemoryStore, Ragged, Store
from atento.errors import DataError, TokenizerError
from atento.text.specials import sentinels
from atento.text.tokenizer import Tokenizer

_NOISE, _REST = 13, 14  # what a hash is for
Spans = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class SpanCorruption:
    """Column "ids": texts without special tokens; other spans are hidden in every epoch.

    Attributes:
        sentinels: their ids, the first one first.
        rate: share of the tokens that is hidden. mean_span: mean length of a hidden span.
    """

    layout: SequenceToSequence
    sentinels: tuple[int, ...]
    rate: float = 0.15
    mean_span: float = 3.0

    def counts(self, length: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """How many tokens of texts are hidden, and in how many spans."""
        hidden = np.clip(np.round(length * self.rate).astype(np.int64), 1, np.maximum(1, length - 1))
        spans = np.clip(np.round(hidden / self.mean_span).astype(np.int64), 1, np.maximum(1, length - hidden))
        return hidden, np.minimum(spans, len(self.sentinels) - 1)

    def sizes(self, store: Store) -> NDArray[np.float64]:
        """Hidden tokens, a sentinel a span, the last sentinel and EOS."""
        return self.lengths(store)[1].astype(np.float64)

    def lengths(self, store: Store) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of source and target, EOS with them: the same in every epoch."""
        length = store["ids"].lengths
        hidden, spans = self.counts(length)
        return length - hidden + spans + 1, hidden + spans + 2

    def batch(self, store: Store, rows: Rows, draw: Draw) -> Batch:
        """The texts with some spans replaced, and what stood there."""
        pairs = [
            corrupt(store["ids"][row].tolist(), self.spans(len(store["ids"][row]), row, draw), self.sentinels)
            for row in rows.tolist()
        ]
        columns = {"source": Ragged([one for one, _ in pairs]), "target": Ragged([other for _, other in pairs])}
        return self.layout.batch(MemoryStore(columns), np.arange(len(pairs)), draw)

    def spans(self, length: int, row: int, draw: Draw) -> list[tuple[int, int]]:
        """The spans [start, end) of a text that are hidden: so many of each, their lengths and places drawn.

        No two adjoin. (The published program always hides the end of a text.)
        """
        hidden, count = (int(one) for one in self.counts(np.array(length)))
        sizes = parted(hidden, count, draw, row, _NOISE)
        gaps = parted(length - hidden + 2, count + 1, draw, row, _REST)  # the first and the last may be empty
        found, at = [], -1
        for gap, size in zip(gaps, sizes):
            found.append((at + gap, at + gap + size))
            at += gap + size
        return found


def parted(total: int, count: int, draw: Draw, row: int, use: int) -> list[int]:
    """`total` as `count` numbers of at least 1, every way as probable."""
    order = np.argsort(hashes(total - 1, draw.seed, draw.epoch, row, use), kind="stable")[: count - 1]
    cuts = [0, *np.sort(order + 1).tolist(), total]
    return [end - start for start, end in pairwise(cuts)]


def corrupt(ids: Sequence[int], spans: Spans, sentinels: Sequence[int]) -> tuple[list[int], list[int]]:
    """A text with a sentinel in place of each span, and the spans, each behind its sentinel, one more sentinel last.

    Raises:
        ValueError: fewer sentinels than spans and one.
    """
    if len(spans) + 1 > len(sentinels):
        raise ValueError(f"{len(spans)} spans need {len(spans) + 1} sentinels: got {len(sentinels)}")
    source: list[int] = []
    target: list[int] = []
    at = 0
    for (start, end), sentinel in zip(spans, sentinels):
        source += [*ids[at:start], sentinel]
        target += [sentinel, *ids[start:end]]
        at = end
    return [*source, *ids[at:]], [*target, sentinels[len(spans)]]


def restored(source: Sequence[int], target: Sequence[int], sentinels: Sequence[int]) -> list[int]:
    """The inverse of `corrupt`: the text, with what the target says in place of each sentinel."""
    known = set(sentinels)
    said: dict[int, list[int]] = {}
    current: list[int] = []
    for token in target:
        if token in known:
            current = said.setdefault(token, [])
        else:
            current.append(token)
    return [token for one in source for token in (said.get(one, []) if one in known else [one])]


def sentinel_ids(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The ids of a tokenizer's sentinels, `<extra_id_0>` first.

    Raises:
        TokenizerError: it has fewer than two.
    """
    found = (tokenizer.specials.get(text) for text in sentinels(SENTINELS))
    ids = tuple(one for one in found if one is not None)
    if len(ids) < 2:
        raise TokenizerError(
            f"span corruption needs a tokenizer with sentinels, <extra_id_0>, <extra_id_1> ...: got {len(ids)} of them"
        )
    return ids


def span_corruption(given: Preparation, config: ObjectiveConfig) -> PlannedBatches:
    """Each text; one longer than `data.max_len` tokens is cut in several; a token alone teaches nothing.

    Raises:
        DataError: no text of two tokens is left. TokenizerError: the tokenizer has no sentinels.
    """
    network, training = given.network, given.recipe.training
    rows = [piece for piece in given.pieces(given.encoded(), given.longest - 1) if len(piece) > 1]
    if not rows:
        raise DataError("no text has two tokens, so there is no span to hide")
    layout = SequenceToSequence(network.pad_id, network.start_id, network.eos_id)
    options = config.option("rate"), config.option("mean_span")
    objective = SpanCorruption(layout, sentinel_ids(given.tokenizer), *options)
    store = MemoryStore({"ids": Ragged(rows)})
    return PlannedBatches(store, objective, budget=training.batch_tokens, seed=training.seed, weight=config.weight)
