"""Batches of rows of similar length, with little padding and bounded memory; progress is reported.

On a CPU several batches are computed at a time. Processes that train together share the batches of a validation.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from itertools import chain, islice, zip_longest
from typing import Any, Protocol, TypeVar

import torch
from torch import nn

from atento.attention.observe import current_observation
from atento.base.precision import side_by_side
from atento.inference.choose import hooked

T = TypeVar("T")
ResultT = TypeVar("ResultT")
_AT_ONCE = 8  # batches that are computed at a time, at most: each takes memory
Report = Callable[[int, int], None]  # real tokens done, real tokens in all
_report: ContextVar[Report | None] = ContextVar("report", default=None)


class Share(Protocol):
    """One of the processes that compute batches together."""

    rank: int  # number of this process
    size: int  # number of processes

    def gather(self, value: Any) -> list[Any]:
        """Give plain data to all processes, and get what each has given, by its number."""


_share: ContextVar[Share | None] = ContextVar("share", default=None)


@contextmanager
def batches_shared(share: Share | None) -> Iterator[None]:
    """While this lasts, `run_in_batches` computes some of the batches, and gets the results of the others.

    All processes make the same batches, so that the results have the same bits as on one process.
    """
    token = _share.set(share)
    try:
        yield
    finally:
        _share.reset(token)


def run_in_batches(
    lengths: Sequence[int],
    budget: int,
    compute: Callable[[list[int]], Iterable[T]],
    network: nn.Module | torch.device,
    *,
    extra: int = 0,
    most: int = _AT_ONCE,
    shared: bool = False,
    pack: Callable[[T], Any] = lambda result: result,
    unpack: Callable[[Any], T] = lambda value: value,
) -> Iterator[tuple[int, T]]:
    """The number of each row and its result, computed in the batches of `length_batches`.

    On a CPU several batches are computed at a time, each by some of the threads: many operations of a pass are too
    short for two threads. On two cores, encoders and translators are 1.1 to 1.5 times as fast by it.

    Args:
        lengths, budget, extra: as in `length_batches`.
        compute: returns the results of the rows of a batch; several threads call it at a time.
        network: what computes, or its device; batches of a network with hooks are computed one after the other.
        most: batches that are computed at a time, at most.
        shared: whether processes may share the batches (`batches_shared`).
        pack, unpack: a result as plain data, and back, for processes that share the batches.
    """
    share, own = _share.get() if shared else None, length_batches(lengths, budget, extra=extra)
    # for all processes the same, as for one: the threads may change digits
    at_once = _at_once(min(len(own), most), network)
    if share is not None:
        own = own[share.rank :: share.size]
    results = _found(own, at_once, compute, lengths)
    if share is None:
        yield from results
        return
    for theirs in share.gather([[row, pack(result)] for row, result in results]):
        yield from ((row, unpack(value)) for row, value in theirs)


def _at_once(most: int, network: nn.Module | torch.device) -> int:
    """How many batches are computed at a time, of at most so many."""
    threads = torch.get_num_threads()
    at_once = max(1, min(threads // -(-threads // _AT_ONCE), most))
    if at_once == 1:
        return 1
    device = network if isinstance(network, torch.device) else next(network.parameters()).device
    seen = current_observation.get() is not None or (isinstance(network, nn.Module) and hooked(network))
    return 1 if device.type != "cpu" or seen else at_once  # what is seen has an order


def _found(
    batches: Sequence[list[int]], at_once: int, compute: Callable[[list[int]], Iterable[T]], lengths: Sequence[int]
) -> Iterator[tuple[int, T]]:
    """The rows of batches and their results, in the order of the batches; each batch is reported."""
    report, done, total = _report.get(), 0, sum(lengths[row] for rows in batches for row in rows)
    for rows, results in zip(batches, _in_order(batches, at_once, compute)):
        done += sum(lengths[row] for row in rows)
        if report is not None:
            report(done, total)
        yield from zip(rows, results)


def _in_order(items: Iterable[T], at_once: int, compute: Callable[[T], ResultT]) -> Iterator[ResultT]:
    """The result of each item, in their order; so many are computed at a time."""
    inference, gradients = torch.is_inference_mode_enabled(), torch.is_grad_enabled()  # of this thread alone

    def run(item: T) -> ResultT:
        _report.set(None)  # loops inside a batch are neither reported nor shared
        _share.set(None)
        with torch.inference_mode(inference), torch.set_grad_enabled(gradients):
            return compute(item)

    if at_once == 1:
        yield from (copy_context().run(run, item) for item in items)
        return
    waiting = deque[Future[ResultT]]()
    with side_by_side(at_once, torch.get_num_threads() // at_once) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(copy_context().run, run, item))
                if len(waiting) > 2 * at_once:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def all_results(items: Iterable[T], compute: Callable[[T], Any], network: nn.Module | torch.device) -> list[Any]:
    """The plain result of each item, in their order; processes share the items, threads as in `run_in_batches`."""
    share, items = _share.get(), iter(items)
    first = list(islice(items, _AT_ONCE))
    rank, size = (0, 1) if share is None else (share.rank, share.size)
    ours = list(_in_order(islice(chain(first, items), rank, None, size), _at_once(len(first), network), compute))
    none = object()
    everyones = [ours] if share is None else share.gather(ours)
    return [one for dealt in zip_longest(*everyones, fillvalue=none) for one in dealt if one is not none]


@contextmanager
def batches_reported(report: Report) -> Iterator[None]:
    """While this lasts, `report(done, total)` is called after each batch that is computed, in real tokens.

    It holds for this thread and for the outermost loop: loops inside a batch are not reported.
    """
    token = _report.set(report)
    try:
        yield
    finally:
        _report.reset(token)


def length_batches(lengths: Sequence[int], budget: int, *, extra: int = 0) -> list[list[int]]:
    """Row numbers in batches of at most `budget` padded tokens (one row at least), the longest rows first.

    `extra` tokens are added to every row; rows of length 0 are in no batch.
    """
    # rows without tokens are left out
    sorted_rows = sorted((row for row, length in enumerate(lengths) if length), key=lambda row: (-lengths[row], row))
    batches: list[list[int]] = []
    start = 0
    while start < len(sorted_rows):
        size = max(1, budget // (lengths[sorted_rows[start]] + extra))
        batches.append(sorted_rows[start : start + size])
        start += size
    return batches
