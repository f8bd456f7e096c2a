"""Which keys some queries reach, and which they all see: ranges, or numbers where there are gaps."""

from collections.abc import Callable

import torch
from torch import Tensor

Span = tuple[int, int] | Tensor  # keys [first, last), or their sorted indices
Reach = Callable[[int, int, int, int | None], Span]  # of queries first ... last - 1, so many keys, a batch row or all


def listed(span: Span) -> Tensor:
    """All of them by number."""
    return span if isinstance(span, Tensor) else torch.arange(*span)


def count(span: Span) -> int:
    """How many keys those are."""
    return len(span) if isinstance(span, Tensor) else span[1] - span[0]


def common(one: Span, two: Span) -> Span:
    """The keys of both spans."""
    if not isinstance(one, Tensor) and not isinstance(two, Tensor):
        first = max(one[0], two[0])
        return first, max(first, min(one[1], two[1]))
    if isinstance(one, Tensor) and isinstance(two, Tensor):
        return one[torch.isin(one, two)]
    some, (first, last) = (one, two) if isinstance(one, Tensor) else (two, one)
    assert isinstance(some, Tensor)
    return some[(some >= first) & (some < last)]


def either(one: Span, two: Span) -> Span:
    """The keys of either span; two ranges that meet make one."""
    if not isinstance(one, Tensor) and not isinstance(two, Tensor) and max(one[0], two[0]) <= min(one[1], two[1]):
        return min(one[0], two[0]), max(one[1], two[1])
    joined: Tensor = torch.unique(torch.cat([listed(one), listed(two)]))
    return joined


def band(behind: int | None, ahead: int | None) -> Reach:
    """The reach of a mask that lets a query see no further than so many positions before and after itself."""

    def reach(first: int, last: int, keys: int, row: int | None) -> Span:
        low = 0 if behind is None else min(max(0, first - behind), keys)
        return low, max(low, keys if ahead is None else min(keys, last + ahead))

    return reach


def within(behind: int | None, ahead: int | None) -> Reach:
    """What all queries see that see so many positions before and after themselves."""

    def clear(first: int, last: int, keys: int, row: int | None) -> Span:
        low = 0 if behind is None else min(max(0, last - 1 - behind), keys)
        return low, max(low, keys if ahead is None else min(keys, first + 1 + ahead))

    return clear


def shared(one: Reach | None, two: Reach | None) -> Reach | None:
    """What all queries see by both of two masks."""
    if one is None or two is None:
        return None
    return lambda first, last, keys, row: common(one(first, last, keys, row), two(first, last, keys, row))


def longer(one: Reach | None, two: Reach | None) -> Reach | None:
    """What all queries see by one of two masks: the longer range of the two."""
    known = [clear for clear in (one, two) if clear is not None]

    def clear(first: int, last: int, keys: int, row: int | None) -> Span:
        return max((one(first, last, keys, row) for one in known), key=count)

    return clear if known else None
