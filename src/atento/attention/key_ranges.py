"""Sets of keys: which keys a block of queries may reach, and which keys all of its queries may attend to."""

from collections.abc import Callable

import torch
from torch import Tensor

KeyRange = tuple[int, int] | Tensor  # the keys first ... last - 1 as (first, last), or sorted indices if there are gaps
RangeFunction = Callable[[int, int, int, int | None], KeyRange]
# function(first, last, key_len, row): the keys for queries first ... last - 1 in batch row `row` (None: all rows)


def indices(keys: KeyRange) -> Tensor:
    """The keys as a tensor of indices."""
    return keys if isinstance(keys, Tensor) else torch.arange(*keys)


def count(keys: KeyRange) -> int:
    """The number of keys."""
    return len(keys) if isinstance(keys, Tensor) else keys[1] - keys[0]


def intersection(left: KeyRange, right: KeyRange) -> KeyRange:
    """The keys that are in both."""
    if not isinstance(left, Tensor) and not isinstance(right, Tensor):
        first = max(left[0], right[0])
        return first, max(first, min(left[1], right[1]))
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        return left[torch.isin(left, right)]
    listed, (first, last) = (left, right) if isinstance(left, Tensor) else (right, left)  # one of each kind
    assert isinstance(listed, Tensor)
    return listed[(listed >= first) & (listed < last)]


def union(left: KeyRange, right: KeyRange) -> KeyRange:
    """The keys that are in either; two ranges that touch become one range."""
    if isinstance(left, tuple) and isinstance(right, tuple) and max(left[0], right[0]) <= min(left[1], right[1]):
        return min(left[0], right[0]), max(left[1], right[1])
    joined: Tensor = torch.unique(torch.cat([indices(left), indices(right)]))
    return joined


def reachable_in_window(before: int | None, after: int | None) -> RangeFunction:
    """The keys that some query may reach if each sees `before` and `after` positions around it (None: no limit)."""

    def reachable(first: int, last: int, key_len: int, row: int | None) -> KeyRange:
        low = 0 if before is None else min(max(0, first - before), key_len)
        return low, max(low, key_len if after is None else min(key_len, last + after))

    return reachable


def unmasked_in_window(before: int | None, after: int | None) -> RangeFunction:
    """The keys that all queries see if each sees `before` and `after` positions around it (None: no limit)."""

    def unmasked(first: int, last: int, key_len: int, row: int | None) -> KeyRange:
        low = 0 if before is None else min(max(0, last - 1 - before), key_len)
        return low, max(low, key_len if after is None else min(key_len, first + 1 + after))

    return unmasked


def unmasked_by_both(left: RangeFunction | None, right: RangeFunction | None) -> RangeFunction | None:
    """The keys that all queries see under the conjunction of two masks."""
    if left is None or right is None:
        return None
    return lambda first, last, key_len, row: intersection(
        left(first, last, key_len, row), right(first, last, key_len, row)
    )


def unmasked_by_either(left: RangeFunction | None, right: RangeFunction | None) -> RangeFunction | None:
    """Keys that all queries see under the disjunction of two masks: the longer of the two ranges."""
    known = [function for function in (left, right) if function is not None]

    def unmasked(first: int, last: int, key_len: int, row: int | None) -> KeyRange:
        return max((function(first, last, key_len, row) for function in known), key=count)

    return unmasked if known else None
