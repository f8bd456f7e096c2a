"""Parts of a split: the records of each source, and some of its records by number."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from atento.data.records.reader import Split


def by_source(split: Split) -> list[tuple[str, Split]]:
    """Return the name and the records of each source."""
    if split.tokens is not None:
        return [
            (name, Split(split.columns, split.fingerprint, tokens=split.tokens.of_source(number)))
            for number, (name, _) in enumerate(split.sources)
        ]
    splits, begin = [], 0
    for name, count in split.sources or (("", len(split)),):
        splits.append((name, replace(split.taken(range(begin, begin + count)), fingerprint=split.fingerprint)))
        begin += count
    return splits


def subset(split: Split, rows: Sequence[int]) -> Split:
    """Return the records with these numbers, which rise, as those that are held out or left."""
    ends = np.cumsum([0, *(count for _, count in split.sources)])
    counts = np.diff(np.searchsorted(np.asarray(rows, dtype=np.int64), ends)).tolist()
    sources = tuple((name, count) for (name, _), count in zip(split.sources, counts))
    return split.taken(rows, sources)
