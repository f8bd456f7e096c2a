"""Masking of one text in plain lines: what `Masking.hide_batch` does to each row, as the tests compare it."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from atento.base.splitmix import hashes, uniform
from atento.data.batches.batch import Draw
from atento.data.batches.masking import _GAPS_KEY, _SPAN_LENGTHS, _TREATMENT_KEY, _UNITS_KEY, Masking
from atento.data.objectives.masked import inside


def hide(
    masking: Masking,
    ids: Tensor,
    positions: NDArray[np.int64],
    labels: Tensor,
    row: int,
    draw: Draw,
    words: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """Hide some `positions` (n,) of a text (L,) in place, by seed, epoch and row; the chosen ranges of positions."""
    n = len(positions)
    if masking.unit == "tokens":
        drawn = hashes(3 * n + 1, draw.seed, draw.epoch, row)  # order, treatment, random token, and rounding
        chosen = positions[np.argsort(drawn[:n], kind="stable")[: _count(masking, n, drawn[-1])]]
        of_chosen = slice(0, len(chosen))
        treatment, random = drawn[n : 2 * n][of_chosen], drawn[2 * n :][of_chosen]
        masking._replace(ids.numpy(), labels.numpy(), chosen, treatment, random)
        return np.empty((0, 2), dtype=np.int64)
    assert words is not None
    starts = np.flatnonzero(np.diff(words, prepend=words[:1] - 1))  # where each word begins
    units = _words(masking, starts, row, draw) if masking.unit == "words" else _spans(masking, len(starts), row, draw)
    ranges = np.append(starts, n)[units]
    index, first = inside(ranges)
    drawn = hashes(2 * n, draw.seed, draw.epoch, row, _TREATMENT_KEY)
    treatment = drawn[:n][first if masking.unit == "spans" else index]  # of a span: that of its first token
    masking._replace(ids.numpy(), labels.numpy(), positions[index], treatment, drawn[n:][index])
    return ranges


def _count(masking: Masking, units: int, drawn: np.uint64) -> int:
    """Return how many units are chosen, rounded at random, so that the mean is exact."""
    return int(float(masking.share(np.array(units))) + float(uniform(np.array(drawn))))


def _words(masking: Masking, starts: NDArray[np.int64], row: int, draw: Draw) -> NDArray[np.int64]:
    """Choose words: ranges [first, last) of one word each, in order, (words,2)."""
    n = len(starts)
    drawn = hashes(n + 1, draw.seed, draw.epoch, row, _UNITS_KEY)
    chosen = np.sort(np.argsort(drawn[:n], kind="stable")[: _count(masking, n, drawn[n])])
    return np.stack([chosen, chosen + 1], axis=1)


def _spans(masking: Masking, n: int, row: int, draw: Draw) -> NDArray[np.int64]:
    """Choose spans: ranges [first, last) of words, in order, of which no two are neighbours, (spans,2)."""
    drawn = hashes(n + 2, draw.seed, draw.epoch, row, _UNITS_KEY)
    hidden = min(n, _count(masking, n, drawn[n]))
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


def random_partition(total: int, count: int, *key: int) -> list[int]:
    """Return `count` numbers of at least 1 with the sum `total`; all such lists are equally probable."""
    positions = np.argsort(hashes(total - 1, *key), kind="stable")[: count - 1]
    return [end - start for start, end in pairwise([0, *np.sort(positions + 1).tolist(), total])]
