"""Batches of rows of similar length, with little padding and bounded memory; progress is reported.

Processes that train together share the batches of a validation.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
Report = Callable[[int, int], None]  # real tokens done, real tokens in all
_report: ContextVar[Report | None] = ContextVar("report", default=None)


class Share(Protocol):
    """One of the processes that compute batches together.

    Attributes:
        rank: number of this process.
        size: number of processes.
    """

    rank: int
    size: int

    def gather(self, value: Any) -> list[Any]:
        """Give plain data to all processes, and get what each has given, by its number."""


_share: ContextVar[Share | None] = ContextVar("share", default=None)


@contextmanager
def batches_shared(share: Share | None) -> Iterator[None]:
    """While this lasts, `results_of` computes some of the batches, and gets the results of the others.

    All processes make the same batches, so that the results have the same bits as on one process.
    """
    token = _share.set(share)
    try:
        yield
    finally:
        _share.reset(token)


def results_of(
    batches: Iterable[list[int]],
    compute: Callable[[list[int]], Sequence[T]],
    *,
    pack: Callable[[T], Any] = lambda result: result,
    unpack: Callable[[Any], T] = lambda value: value,
) -> Iterator[tuple[int, T]]:
    """The result of each row of batches, with its number.

    Args:
        batches: row numbers, as `by_length` yields them.
        compute: returns the results of the rows of a batch.
        pack, unpack: a result as plain data, and back, for processes that share the batches.
    """
    share = _share.get()
    if share is None:
        for rows in batches:
            yield from zip(rows, compute(rows))
        return
    token = _share.set(None)  # loops inside a batch are not shared
    try:
        ours = [
            [row, pack(result)]
            for number, rows in enumerate(batches)
            if number % share.size == share.rank
            for row, result in zip(rows, compute(rows))
        ]
    finally:
        _share.reset(token)
    for theirs in share.gather(ours):
        yield from ((row, unpack(value)) for row, value in theirs)


def all_results(items: Iterable[T], compute: Callable[[T], Any]) -> list[Any]:
    """The plain result of each item, in their order; processes share the items."""
    share = _share.get()
    if share is None:
        return [compute(item) for item in items]
    ours = [compute(item) for number, item in enumerate(items) if number % share.size == share.rank]
    dealt = [iter(results) for results in share.gather(ours)]
    in_order = []
    while dealt:
        for results in dealt:
            try:
                in_order.append(next(results))
            except StopIteration:
                return in_order
    return in_order


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
    # rows without tokens are left out
    sorted_rows = sorted((row for row, length in enumerate(lengths) if length), key=lambda row: (-lengths[row], row))
    report, done, total = _report.get(), 0, sum(lengths)
    start = 0
    while start < len(sorted_rows):
        size = max(1, budget // (lengths[sorted_rows[start]] + extra))
        batch = sorted_rows[start : start + size]
        _report.set(None)  # while the batch is computed nothing below it reports
        try:
            yield batch
        finally:
            _report.set(report)
        done += sum(lengths[row] for row in batch)
        if report is not None:
            report(done, total)
        start += size
