"""The `Mask` type: a predicate with `&`, `|`, `~`, the keys it reaches, and its dense, additive and printed forms.

`masks.py` has the named masks; `prepared_mask.py` turns a mask into the form that a kernel needs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

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
        return first, max(first, min(left[1], right[1]))  # empty, not negative, where they do not meet
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        return left[torch.isin(left, right)]
    listed, (first, last) = (left, right) if isinstance(left, Tensor) else (right, left)  # one of each kind
    assert isinstance(listed, Tensor)
    return listed[(listed >= first) & (listed < last)]


def union(left: KeyRange, right: KeyRange) -> KeyRange:
    """The keys that are in either; two ranges that touch become one range."""
    if isinstance(left, tuple) and isinstance(right, tuple) and max(left[0], right[0]) <= min(left[1], right[1]):
        return min(left[0], right[0]), max(left[1], right[1])
    return cast(Tensor, torch.unique(torch.cat([indices(left), indices(right)])))


def reachable_in_window(before: int | None, after: int | None) -> RangeFunction:
    """The keys that some query may reach if each sees `before` and `after` positions around it (None: no limit)."""

    def reachable(first: int, last: int, key_len: int, row: int | None) -> KeyRange:
        low = 0 if before is None else min(max(0, first - before), key_len)  # the first query reaches lowest
        return low, max(low, key_len if after is None else min(key_len, last + after))  # the last is last - 1

    return reachable


def unmasked_in_window(before: int | None, after: int | None) -> RangeFunction:
    """The keys that all queries see if each sees `before` and `after` positions around it (None: no limit)."""

    def unmasked(first: int, last: int, key_len: int, row: int | None) -> KeyRange:
        low = 0 if before is None else min(max(0, last - 1 - before), key_len)  # the last query sees the fewest
        return low, max(low, key_len if after is None else min(key_len, first + 1 + after))

    return unmasked


def joined_keys(
    join: Callable[[KeyRange, KeyRange], KeyRange], functions: Sequence[RangeFunction | None], *, needs_all: bool
) -> RangeFunction | None:
    """The keys of several masks, joined; None if no mask knows its keys, or with `needs_all` if one does not."""
    known = [function for function in functions if function is not None]
    if not known or (needs_all and len(known) < len(functions)):
        return None
    return lambda first, last, key_len, row: reduce(join, [keys_of(first, last, key_len, row) for keys_of in known])


class TypedFunction(torch.autograd.Function):
    """`torch.autograd.Function` with types: `apply` gives what the `forward` of the subclass returns."""

    if TYPE_CHECKING:

        @classmethod
        def apply(cls, *args: object) -> Any: ...


Call = TypeVar("Call")


class Context(Protocol[Call]):
    """What the `forward` of a `TypedFunction` hands to its `backward`: tensors, and the `call` besides."""

    call: Call
    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]

    def save_for_backward(self, *tensors: Tensor | None) -> None: ...
    def mark_non_differentiable(self, *tensors: Tensor) -> None: ...


Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Mask:
    """A predicate on (batch row, head, query position, key position); True means "may attend".

    Masks combine with `&`, `|` and `~`. With more keys than queries, query i is at key position S - T + i, so one mask
    serves a full sequence and a cached step of it.

    Attributes:
        rule: `rule(b, h, q, k) -> bool` on index tensors that broadcast to (B,H,T,S).
        name: the mask as text, for messages.
        form: "full" or "causal" if a fused kernel knows the mask, else "any".
        max_ahead: how many positions past itself a query may see; None if unlimited.
        batch: number of batch rows that the rule depends on; 1 if it does not.
        heads: number of heads that the rule depends on; 1 if it does not.
        key_len: number of keys that a mask with data of its own was made for.
        per_query: False if all queries see the same keys, so that one row represents all.
        reachable: `reachable(first, last, key_len, row)` gives keys outside of which queries first ... last - 1 of
            batch row `row` (None: of any row) see nothing, so that kernels skip the others; None if unknown.
        per_row: True if `reachable` differs between batch rows.
        unmasked: like `reachable`, a range of keys that all of these queries see, so that kernels skip masking there.
        document_ids: (B,L), the documents of a mask that is `documents(ids)`, alone or combined with `causal()`.
    """

    rule: Rule
    name: str
    form: str = "any"
    max_ahead: int | None = None
    batch: int = 1
    heads: int = 1
    key_len: int | None = None
    per_query: bool = True
    reachable: RangeFunction | None = None
    per_row: bool = False
    unmasked: RangeFunction | None = None
    document_ids: Tensor | None = None

    def __and__(self, other: "Mask") -> "Mask":
        check_compatible(self, other)
        if self.form == "full":
            return other  # it masks nothing
        if other.form == "full":
            return self
        limits = [mask.max_ahead for mask in (self, other) if mask.max_ahead is not None]  # None: no limit of its own
        combined = _combine(
            self,
            other,
            torch.logical_and,
            f"{self.name} & {other.name}",
            max_ahead=min(limits) if limits else None,
            reachable=joined_keys(intersection, [self.reachable, other.reachable], needs_all=False),
            unmasked=joined_keys(intersection, [self.unmasked, other.unmasked], needs_all=True),  # one may hide any key
        )
        documents = (  # a causal mask within documents is known to kernels for packed texts
            self.document_ids if other.form == "causal" else other.document_ids if self.form == "causal" else None
        )
        return combined if documents is None else replace(combined, document_ids=documents)

    def __or__(self, other: "Mask") -> "Mask":
        check_compatible(self, other)  # fails before anything is built
        return _combine(
            self,
            other,
            torch.logical_or,
            f"({self.name} | {other.name})",
            max_ahead=None
            if self.max_ahead is None or other.max_ahead is None
            else max(self.max_ahead, other.max_ahead),
            reachable=joined_keys(union, [self.reachable, other.reachable], needs_all=True),
            unmasked=joined_keys(partial(max, key=count), [self.unmasked, other.unmasked], needs_all=False),
        )

    def __invert__(self) -> "Mask":
        def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return ~self.rule(b, h, q, k)

        return Mask(rule, f"~({self.name})", "any", None, self.batch, self.heads, self.key_len, self.per_query)

    def __bool__(self) -> bool:
        raise TypeError("a mask has no truth value: combine masks with & and |, and invert one with ~")

    @property
    def looks_ahead(self) -> bool:
        """True if some query may see a later key. A network with such a mask must not cache keys and values."""
        return self.max_ahead is None or self.max_ahead > 0

    @property
    def may_cache(self) -> bool:
        """True if no query sees a later key, so that cached keys and values stay valid."""
        return not self.looks_ahead

    def dense(self, query_len: int, key_len: int | None = None, device: torch.device | str | None = None) -> Tensor:
        """The mask as a boolean matrix.

        Args:
            query_len: number of queries T.
            key_len: number of keys S; T if not given.
            device: device of the result.

        Returns:
            Boolean (B or 1, H or 1, T, S), True = may attend.
        """
        key_len = query_len if key_len is None else key_len
        queries = torch.arange(key_len - query_len, key_len, device=device)  # their positions among the keys, (T,)
        return self.tile(queries, torch.arange(key_len, device=device), key_len)

    def tile(self, queries: Tensor, keys: Tensor, key_len: int, row: int | None = None) -> Tensor:
        """A part of the dense matrix: (B or 1, H or 1, t, s) for positions `queries` (t,) and `keys` (s,)."""
        if self.key_len is not None and self.key_len != key_len:
            raise ValueError(f"the mask {self.name} was made for {self.key_len} keys: got {key_len}")
        device = keys.device
        b = torch.arange(self.batch, device=device) if row is None else torch.tensor([row % self.batch], device=device)
        h = torch.arange(self.heads, device=device).view(1, -1, 1, 1)  # as the rule broadcasts: (B,H,T,S)
        allowed = self.rule(b.view(-1, 1, 1, 1), h, queries.view(1, 1, -1, 1), keys.view(1, 1, 1, -1))
        return allowed.expand(len(b), self.heads, len(queries), len(keys))  # a view, without copies

    def additive(self, query_len: int, key_len: int | None = None) -> Tensor:
        """The mask in additive form: 0 where a query may attend, -inf elsewhere (docs/notes.md#a7)."""
        return additive(self.dense(query_len, key_len))

    def draw(self, query_len: int, key_len: int | None = None, *, row: int = 0, head: int = 0) -> str:
        """The matrix as text, one line for each query: ■ may attend, · may not."""
        allowed = self.dense(query_len, key_len)
        matrix = allowed[min(row, allowed.shape[0] - 1), min(head, allowed.shape[1] - 1)]
        return "\n".join(" ".join("■" if cell else "·" for cell in line) for line in matrix.tolist())

    def blocks(self, query_len: int, key_len: int | None = None, size: int = 64) -> Tensor:
        """The mask by blocks of `size` x `size` pairs, True if any pair of the block may attend.

        It is computed a row of blocks at a time, so that the full matrix is never in memory.

        Returns:
            Boolean (B or 1, H or 1, ⌈T/size⌉, ⌈S/size⌉).
        """
        key_len = query_len if key_len is None else key_len
        keys, rows = torch.arange(key_len), []
        for first in range(key_len - query_len, key_len, size):
            seen = self.tile(torch.arange(first, min(first + size, key_len)), keys, key_len).any(dim=-2)
            padded = torch.nn.functional.pad(seen, (0, -key_len % size))  # with False
            rows.append(padded.unflatten(-1, (-1, size)).any(dim=-1))  # (B|1,H|1,⌈S/size⌉)
        return torch.stack(rows, dim=-2)  # (B|1,H|1,⌈T/size⌉,⌈S/size⌉)

    def __repr__(self) -> str:
        return f"Mask({self.name})"


def check_compatible(left: Mask, right: Mask) -> None:
    """Raises TypeError if one is not a Mask, ValueError if they were made for different rows, heads or keys."""
    for mask in (left, right):
        if not isinstance(mask, Mask):
            raise TypeError(
                f"a mask combines only with a mask: got {type(mask).__name__}; `predicate` makes a mask of any rule"
            )
    for size in ("batch", "heads"):
        a, b = getattr(left, size), getattr(right, size)
        if a != b and 1 not in (a, b):
            raise ValueError(f"masks of {size} {a} and {b} cannot be combined: {left.name}, {right.name}")
    if left.key_len is not None and right.key_len is not None and left.key_len != right.key_len:
        raise ValueError(
            f"masks made for {left.key_len} and {right.key_len} keys cannot be combined: {left.name}, {right.name}"
        )


def _combine(
    left: Mask,
    right: Mask,
    operator: Callable[[Tensor, Tensor], Tensor],
    name: str,
    *,
    max_ahead: int | None,
    reachable: RangeFunction | None,
    unmasked: RangeFunction | None,
) -> Mask:

    def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        # a rule that does not depend on the row or the head gets index 0, so that its result broadcasts
        left_b = b if left.batch > 1 else torch.zeros_like(b[:1])
        right_b = b if right.batch > 1 else torch.zeros_like(b[:1])
        left_h = h if left.heads > 1 else torch.zeros_like(h[:, :1])
        right_h = h if right.heads > 1 else torch.zeros_like(h[:, :1])
        return operator(left.rule(left_b, left_h, q, k), right.rule(right_b, right_h, q, k))

    return Mask(
        rule,
        name,
        "any",
        max_ahead,
        max(left.batch, right.batch),
        max(left.heads, right.heads),
        left.key_len if left.key_len is not None else right.key_len,
        left.per_query or right.per_query,
        reachable,
        left.per_row or right.per_row,
        unmasked,
    )


def additive(allowed: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """A boolean mask in additive form: 0 where allowed, -inf elsewhere. Same shape."""
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(~allowed, float("-inf"))
