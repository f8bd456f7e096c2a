"""Batches of rows of similar length, with little padding and bounded memory; progress is reported."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

Report = Callable[[int, int], None]  # real tokens done, real tokens in all
_report: ContextVar[Report | None] = ContextVar("report", default=None)


@contextmanager
def batches_reported(report: Report) -> Iterator[None]:
    """While this lasts, `by_length` calls `report(done, total)` after each batch, in real tokens.

    It holds for this thread and for the outermost loop: loops inside a batch are not reported.
    """
    token = _report.set(report)
    try:
        yield
    finally:
        _report.reset(token)


def by_length(lengths: Sequence[int], budget: int, *, extra: int = 0) -> Iterator[list[int]]:
    """Row numbers in batches of at most `budget` padded tokens (one row at least), the longest rows first.

    `extra` tokens are added to every row; rows of length 0 are in no batch.
    """
    sorted_rows = sorted((row for row, length in enumerate(lengths) if length), key=lambda row: (-lengths[row], row))
    report, done, total = _report.get(), 0, sum(lengths)
    start = 0
    while start < len(sorted_rows):
        size = max(1, budget // (lengths[sorted_rows[start]] + extra))
        batch = sorted_rows[start : start + size]
        _report.set(None)
        try:
            yield batch
        finally:
            _report.set(report)
        done += sum(lengths[row] for row in batch)
        if report is not None:
            report(done, total)
        start += size
