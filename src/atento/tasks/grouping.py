"""Rows of like length put into one batch, so that padding is little and memory bounded."""

from collections.abc import Iterator, Sequence


def by_length(lengths: Sequence[int], budget: int, *, extra: int = 0) -> Iterator[list[int]]:
    """Row numbers in batches of at most `budget` padded tokens (one row at least), the longest rows first.

    `extra` tokens are added to every row; rows of length 0 are in no batch.
    """
    order = sorted((row for row, length in enumerate(lengths) if length), key=lambda row: (-lengths[row], row))
    start = 0
    while start < len(order):
        size = max(1, budget // (lengths[order[start]] + extra))
        yield order[start : start + size]
        start += size
