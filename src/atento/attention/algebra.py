"""A mask: a value with an algebra, and its forms: dense, additive, by blocks, drawn.

A mask is a predicate on (batch row, head, query position, key position). Masks combine with `&`, `|` and `~`, draw
themselves as a dense matrix, and answer whether they look ahead, which is what decides if a network may cache. True
means "may attend". Where there are more keys than queries, query i stands at key S - T + i, so the same value serves
a whole sequence and one cached step of it. `masks` names the usual ones; `lowering` makes them what kernels eat.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor

from atento.attention.key_ranges import Reach, Span, common, either, longer, shared

Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Mask:
    """A predicate `rule(b, h, q, k) -> bool` on index tensors that broadcast to (B, H, T, S).

    `form` is the shape a fused kernel may know ("full", "causal", or "any"); `ahead` is how many positions past
    itself a query may see (None: without limit); `batch` and `heads` are the sizes the rule depends on (1: it
    does not); `keys` is the number of keys that a mask with data of its own was made for; `by_query` is False where
    all queries see the same keys, so that one row stands for all. `reach(first, last, keys, row)` names keys outside
    of which the queries first ... last - 1 see nothing (in batch row `row`; None: in any), so that kernels can leave
    the others out; None: there may be some anywhere. `clear` names, in the same
    way, a range of keys that all those queries see (in that batch row; None: in all), where kernels need not mask.
    `by_row`: the reach differs from batch row to batch row. `pieces` (B,L) are the documents of a mask that is nothing
    but them, causal or not, as `documents` takes them.
    """

    rule: Rule
    name: str
    form: str = "any"
    ahead: int | None = None
    batch: int = 1
    heads: int = 1
    keys: int | None = None
    by_query: bool = True
    reach: Reach | None = None
    by_row: bool = False
    clear: Reach | None = None
    pieces: Tensor | None = None

    def __and__(self, other: "Mask") -> "Mask":
        fit(self, other)
        if self.form == "full":
            return other
        if other.form == "full":
            return self
        limits = [mask.ahead for mask in (self, other) if mask.ahead is not None]
        reaches = [mask.reach for mask in (self, other) if mask.reach is not None]

        def reach(first: int, last: int, keys: int, row: int | None) -> Span:
            return reduce(common, [one(first, last, keys, row) for one in reaches])

        name = f"{self.name} & {other.name}"
        both = shared(self.clear, other.clear)
        joined = _join(
            self, other, torch.logical_and, name, min(limits) if limits else None, reach if reaches else None, both
        )
        pieces = self.pieces if other.form == "causal" else other.pieces if self.form == "causal" else None
        return joined if pieces is None else replace(joined, pieces=pieces)

    def __or__(self, other: "Mask") -> "Mask":
        fit(self, other)
        ahead = None if self.ahead is None or other.ahead is None else max(self.ahead, other.ahead)
        one, two = self.reach, other.reach

        def reach(first: int, last: int, keys: int, row: int | None) -> Span:
            assert one is not None and two is not None
            return either(one(first, last, keys, row), two(first, last, keys, row))

        known = None if one is None or two is None else reach
        return _join(
            self,
            other,
            torch.logical_or,
            f"({self.name} | {other.name})",
            ahead,
            known,
            longer(self.clear, other.clear),
        )

    def __invert__(self) -> "Mask":
        def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return ~self.rule(b, h, q, k)

        return Mask(rule, f"~({self.name})", "any", None, self.batch, self.heads, self.keys, self.by_query)

    def __bool__(self) -> bool:
        raise TypeError("a mask is neither true nor false: join masks with & and |, turn one round with ~")

    @property
    def looks_ahead(self) -> bool:
        """True if some query may see a later key; a network with such a mask must not cache."""
        return self.ahead is None or self.ahead > 0

    @property
    def may_cache(self) -> bool:
        """True if no query sees a later key, so that keys and values once made stay right."""
        return not self.looks_ahead

    def dense(self, query_len: int, key_len: int | None = None, device: torch.device | str | None = None) -> Tensor:
        """The mask as a boolean matrix (B or 1, H or 1, T, S)."""
        key_len = query_len if key_len is None else key_len
        queries = torch.arange(key_len - query_len, key_len, device=device)
        return self.tile(queries, torch.arange(key_len, device=device), key_len)

    def tile(self, queries: Tensor, keys: Tensor, key_len: int, row: int | None = None) -> Tensor:
        """A part of the dense matrix: (B or 1, H or 1, t, s) for positions `queries` (t,) and `keys` (s,)."""
        if self.keys is not None and self.keys != key_len:
            raise ValueError(f"the mask {self.name} was made for {self.keys} keys: got {key_len}")
        device = keys.device
        b = torch.arange(self.batch, device=device) if row is None else torch.tensor([row % self.batch], device=device)
        h = torch.arange(self.heads, device=device).view(1, -1, 1, 1)
        allowed = self.rule(b.view(-1, 1, 1, 1), h, queries.view(1, 1, -1, 1), keys.view(1, 1, 1, -1))
        return allowed.expand(len(b), self.heads, len(queries), len(keys))

    def additive(self, query_len: int, key_len: int | None = None) -> Tensor:
        """The mask in additive form, 0 where a query may attend and -inf where not (the matrix of the notes).

        See docs/notes.md#a7.
        """
        return additive(self.dense(query_len, key_len))

    def draw(self, query_len: int, key_len: int | None = None, *, row: int = 0, head: int = 0) -> str:
        """The matrix as text, a line a query: ■ may attend, · may not."""
        allowed = self.dense(query_len, key_len)
        matrix = allowed[min(row, allowed.shape[0] - 1), min(head, allowed.shape[1] - 1)]
        return "\n".join(" ".join("■" if one else "·" for one in line) for line in matrix.tolist())

    def blocks(self, query_len: int, key_len: int | None = None, size: int = 64) -> Tensor:
        """The mask by squares of `size`: boolean (B or 1, H or 1, ⌈T/size⌉, ⌈S/size⌉), True where any pair may attend.

        Made strip by strip, so that the whole square is never in memory.
        """
        key_len = query_len if key_len is None else key_len
        keys, strips = torch.arange(key_len), []
        for first in range(key_len - query_len, key_len, size):
            strip = self.tile(torch.arange(first, min(first + size, key_len)), keys, key_len).any(dim=-2)
            padded = torch.nn.functional.pad(strip, (0, -key_len % size))
            strips.append(padded.unflatten(-1, (-1, size)).any(dim=-1))
        return torch.stack(strips, dim=-2)

    def __repr__(self) -> str:
        return f"Mask({self.name})"


def fit(one: Mask, two: Mask) -> None:
    """Raises TypeError: one is no mask. ValueError: the two were not made for the same rows, heads or keys."""
    for mask in (one, two):
        if not isinstance(mask, Mask):
            raise TypeError(f"masks are joined to masks: got {type(mask).__name__}; `predicate` makes one of any rule")
    for size in ("batch", "heads"):
        a, b = getattr(one, size), getattr(two, size)
        if a != b and 1 not in (a, b):
            raise ValueError(f"masks of {size} {a} and {b} cannot be joined: {one.name}, {two.name}")
    if one.keys is not None and two.keys is not None and one.keys != two.keys:
        raise ValueError(f"masks made for {one.keys} and {two.keys} keys cannot be joined: {one.name}, {two.name}")


def _join(
    one: Mask,
    two: Mask,
    how: Callable[[Tensor, Tensor], Tensor],
    name: str,
    ahead: int | None,
    reach: Reach | None,
    clear: Reach | None,
) -> Mask:

    def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        b1 = b if one.batch > 1 else torch.zeros_like(b[:1])
        b2 = b if two.batch > 1 else torch.zeros_like(b[:1])
        h1 = h if one.heads > 1 else torch.zeros_like(h[:, :1])
        h2 = h if two.heads > 1 else torch.zeros_like(h[:, :1])
        return how(one.rule(b1, h1, q, k), two.rule(b2, h2, q, k))

    return Mask(
        rule,
        name,
        "any",
        ahead,
        max(one.batch, two.batch),
        max(one.heads, two.heads),
        one.keys if one.keys is not None else two.keys,
        one.by_query or two.by_query,
        reach,
        one.by_row or two.by_row,
        clear,
    )


def additive(allowed: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Boolean to additive form, the one place where it is done: 0 where allowed, -inf where not."""
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(~allowed, float("-inf"))
