"""SpanBERT: masked spans of words, each token also from the tokens beside its span (Joshi et al. 2020).

ids "<s> o <mask> <mask> alto </s>"   both labels "- - gato pulou - -"   left 1, right 4, span positions 0, 1
(docs/notes.md#e5)
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from atento.config.tables.objective import ObjectiveConfig
from atento.data.batches.batch import Batch, Draw, OneText, Rows, Store
from atento.data.batches.planning import PlannedBatches
from atento.data.objectives.masked import HEAD, Masked, masked_texts, with_token_mask
from atento.data.objectives.preparation import Preparation

BOUNDARY = "span-boundary"


@dataclass(frozen=True)
class SpanBoundary(OneText):
    """Batches of texts with masked spans, labelled for two heads: the vocabulary, and the span boundary.

    Extras, each (B,L) and 0 without a label: "span left" and "span right", the positions of the tokens beside the span
    of a hidden token, which are never hidden; "span position", its position in the span, from 0.
    """

    masked: Masked

    def sizes(self, store: Store) -> NDArray[np.float64]:
        """Return twice the expected number of hidden tokens, since each has two labels."""
        return 2 * self.masked.sizes(store)

    def batch(self, store: Store, rows: Rows, draw: Draw) -> Batch:
        """Return a batch; each epoch hides other spans."""
        ids, labels, spans = self.masked.hidden(store, rows, draw)
        left, right, position = (torch.zeros_like(ids) for _ in range(3))  # (B,L) each
        ranges, row = np.concatenate(spans), np.repeat(np.arange(len(spans)), [len(of_row) for of_row in spans])
        index, first = inside(ranges)  # (hidden tokens,) each
        row, last = (np.repeat(values, ranges[:, 1] - ranges[:, 0]) for values in (row, ranges[:, 1]))  # a token each
        for values, extra in ((first - 1, left), (last, right), (index - first, position)):  # `last` is beyond the span
            extra[row, index] = torch.from_numpy(values)
        lengths = store["ids"].lengths[rows]
        return Batch(
            with_token_mask({"ids": ids}, lengths),
            {HEAD: labels, BOUNDARY: labels},
            extras={"span left": left, "span right": right, "span position": position},
            lengths={"ids": torch.from_numpy(lengths)},
        )


def span_boundary(preparation: Preparation, config: ObjectiveConfig) -> PlannedBatches:
    """Return batches for SpanBERT; texts longer than `data.max_len` tokens are split."""
    store, masked = masked_texts(preparation, config, "spans")
    return preparation.planned(store, SpanBoundary(masked), config.weight)


def inside(ranges: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the positions inside ranges (ranges,2), one after another, and the first position of the range of each."""
    sizes = ranges[:, 1] - ranges[:, 0]
    first = np.repeat(ranges[:, 0], sizes)
    return first + np.arange(len(first)) - np.repeat(np.cumsum(sizes) - sizes, sizes), first  # start + place in range
