"""Who may attend to whom: mask values with an algebra.

A mask is a predicate on (batch row, head, query position, key position). Masks combine with `&`, `|` and `~`, draw
themselves as a dense matrix, and answer whether they look ahead, which is what decides if a network may cache. True
means "may attend". Where there are more keys than queries, query i stands at key S - T + i, so the same value serves
a whole sequence and one cached step of it. Spec rows A6, A7, A16, A18, C10; `lowering` makes them what kernels eat.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import combinations

import torch
from torch import Tensor

from atento.attention.spans import Reach, Span, band, common, either, longer, shared, within

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
        """The mask in additive form, 0 where a query may attend and -inf where not (the matrix of the notes, A7)."""
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


def _check(one: Mask, two: Mask) -> None:
    """Raises ValueError: the two were not made for the same rows, heads or keys."""
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
    _check(one, two)

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


def bidirectional() -> Mask:
    """Every query sees every key (encoders; A6)."""
    return Mask(lambda b, h, q, k: k >= 0, "bidirectional", "full")


def causal() -> Mask:
    """A query sees itself and what came before (decoders; A7)."""
    return Mask(lambda b, h, q, k: k <= q, "causal", "causal", 0, reach=band(None, 0), clear=within(None, 0))


def lookahead(k: int) -> Mask:
    """Up to `k` positions ahead; 0 is causal (partial causality, A16)."""
    if k < 0:
        raise ValueError(f"`k` must not be negative: got {k}")
    if k == 0:
        return causal()
    return Mask(
        lambda b, h, q, key: key <= q + k, f"lookahead({k})", "any", k, reach=band(None, k), clear=within(None, k)
    )


def prefix(n: int | Tensor) -> Mask:
    """Everyone sees the first `n` keys, causal after (prefix LM, C10). `n` an int, or (B,) one a row."""
    if isinstance(n, Tensor):
        lengths = n

        def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return (k <= q) | (k < lengths.to(b.device)[b])

        def reach(first: int, last: int, keys: int, row: int | None) -> Span:
            most = int(lengths.max() if row is None else lengths[row % len(lengths)])
            return 0, min(keys, max(last, most, 0))

        return Mask(rule, "prefix(rows)", "any", None, len(lengths), reach=reach, by_row=len(lengths) > 1)
    return Mask(
        lambda b, h, q, k: (k <= q) | (k < n),
        f"prefix({n})",
        "any",
        None if n > 1 else 0,
        reach=lambda first, last, keys, row: (0, min(keys, max(last, n, 0))),
        clear=lambda first, last, keys, row: (0, min(keys, max(first + 1, n, 0))),
    )


def window(left: int, right: int) -> Mask:
    """Oneself, `left` neighbours before and `right` after."""
    if left < 0 or right < 0:
        raise ValueError(f"`left` and `right` must not be negative: got {left} and {right}")
    return Mask(
        lambda b, h, q, k: (k >= q - left) & (k <= q + right),
        f"window({left}, {right})",
        "any",
        right,
        reach=band(left, right),
        clear=within(left, right),
    )


def dilated(step: int, reach: int | None = None) -> Mask:
    """Every `step`-th position, before and after, oneself among them; up to `reach` positions away if given."""
    if step < 1 or (reach is not None and reach < 0):
        raise ValueError(f"`step` must be at least 1 and `reach` not negative: got {step} and {reach}")

    def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        apart = k - q
        return (apart % step == 0) & (True if reach is None else apart.abs() <= reach)

    name = f"dilated({step})" if reach is None else f"dilated({step}, {reach})"
    return Mask(rule, name, "any", reach, reach=band(reach, reach))


def global_tokens(positions: int | Sequence[int]) -> Mask:
    """Chosen positions see everyone and are seen by everyone; the others see them alone. An int: that many first ones.

    Joined to a local mask, `window(2, 2) | global_tokens(1)`, it is the pattern of Longformer (Beltagy et al. 2020).
    """
    chosen = torch.tensor(sorted(set(range(positions) if isinstance(positions, int) else positions)))
    if len(chosen) == 0 or int(chosen.min()) < 0:
        raise ValueError(f"`positions` must name at least one position, none negative: got {positions}")

    def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        these = chosen.to(k.device)
        return torch.isin(k, these) | torch.isin(q, these)

    def reach(first: int, last: int, keys: int, row: int | None) -> Span:
        everyone = bool(((chosen >= first) & (chosen < last)).any())
        return (0, keys) if everyone else chosen[chosen < keys]

    return Mask(rule, f"global_tokens({chosen.tolist()})", reach=reach)


def allowed_pairs(pairs: Iterable[tuple[int, int]]) -> Mask:
    """Those (query, key) pairs alone; `causal() | allowed_pairs({(0, 3)})` lets token 0 see token 3 as well (A16)."""
    listed = sorted(set(pairs))
    ahead = max((k - q for q, k in listed), default=0)
    behind = max((q - k for q, k in listed), default=0)

    def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        found = torch.zeros_like(q + k, dtype=torch.bool)
        for query, key in listed:
            found |= (q == query) & (k == key)
        return found

    return Mask(rule, f"pairs({len(listed)})", "any", max(0, ahead), reach=band(max(0, behind), max(0, ahead)))


def blocks(kept: Tensor, size: int) -> Mask:
    """Squares of `size` positions, kept or not: boolean (⌈T/size⌉,⌈S/size⌉), or (H,...) one a head (A17, A19)."""
    if size < 1:
        raise ValueError(f"`size` must be at least 1: got {size}")
    if kept.dtype != torch.bool or kept.dim() not in (2, 3):
        raise ValueError(f"`kept` must be a boolean matrix, or one a head: got {kept.dtype} {tuple(kept.shape)}")
    kept = kept if kept.dim() == 3 else kept.unsqueeze(0)
    rows, columns = kept.shape[1:]
    known = kept.any(dim=0).cpu()
    farthest = (torch.arange(columns) + 1 - torch.arange(rows)[:, None]) * size - 1  # last key less first query
    ahead = int(farthest[known].max()) if bool(known.any()) else 0

    def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        if (q >= rows * size).any() or (k >= columns * size).any():
            raise ValueError(f"the mask blocks({size}) was made for {rows * size} queries and {columns * size} keys")
        return kept.to(k.device)[h, q.clamp(min=0) // size, k // size] & (q >= 0)

    def reach(first: int, last: int, keys: int, row: int | None) -> Span:
        seen = known[max(0, first) // size : (max(0, last) + size - 1) // size].any(dim=0)
        chosen = (seen.nonzero() * size + torch.arange(size)).flatten()
        return chosen[chosen < keys]

    return Mask(rule, f"blocks({size})", "any", max(0, ahead), 1, kept.shape[0], reach=reach)


def per_head(masks: Sequence[Mask]) -> Mask:
    """Head h follows masks[h]."""
    if not masks or any(mask.heads != 1 for mask in masks):
        raise ValueError("`per_head` takes one mask a head, each the same for all heads")
    for one, two in combinations(masks, 2):
        _check(one, two)

    def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        nobody, found = torch.zeros_like(h[:, :1]), []
        for mask in masks:
            row = b if mask.batch > 1 else torch.zeros_like(b[:1])
            found.append(mask.rule(row, nobody, q, k).expand(b.shape[0], 1, q.shape[-2], k.shape[-1]))
        return torch.cat(found, dim=1)[:, h.flatten()]

    aheads = [mask.ahead for mask in masks]
    reaches = [mask.reach for mask in masks if mask.reach is not None]

    def reach(first: int, last: int, keys: int, row: int | None) -> Span:
        return reduce(either, [mask_reach(first, last, keys, row) for mask_reach in reaches])

    return Mask(
        rule,
        f"per_head({', '.join(mask.name for mask in masks)})",
        "any",
        None if None in aheads else max(ahead for ahead in aheads if ahead is not None),
        max(mask.batch for mask in masks),
        len(masks),
        next((mask.keys for mask in masks if mask.keys is not None), None),
        any(mask.by_query for mask in masks),
        reach if len(reaches) == len(masks) else None,
        any(mask.by_row for mask in masks),
    )


def padding(lengths: Tensor) -> Mask:
    """Only real tokens may be attended to. `lengths` (B,) integers, or boolean (B,L) with True for a real token."""
    listed = lengths.dtype == torch.bool
    if lengths.dim() != 1 + listed or lengths.is_floating_point():
        raise TypeError(
            f"`padding` takes lengths (B,), or boolean (B,L) with True for a real token: got {lengths.dtype} of "
            f"{tuple(lengths.shape)}"
        )

    def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        own = lengths.to(b.device)
        return own[b, k] if listed else k < own[b]

    def clear(first: int, last: int, keys: int, row: int | None) -> Span:
        return 0, min(keys, int(lengths.min() if row is None else lengths[row % len(lengths)]))

    sizes = lengths.shape[1] if listed else None
    known = None if listed else clear
    return Mask(rule, "padding", "any", None, len(lengths), keys=sizes, by_query=False, clear=known)


def documents(ids: Tensor) -> Mask:
    """Packed documents do not see each other. `ids` (B,L) integers, -1 = padding (E1)."""

    def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        own = ids.to(b.device)
        return (own[b, q.clamp(min=0)] == own[b, k]) & (own[b, k] != -1) & (q >= 0)

    def reach(first: int, last: int, keys: int, row: int | None) -> Span:
        """From the first to the last key that shares a document with one of these queries."""
        low, high = keys, 0
        for one in ids if row is None else ids[row % len(ids)].unsqueeze(0):
            own = one[max(0, first) : max(0, last)]
            where = torch.isin(one, own[own != -1]).nonzero().flatten()
            if len(where):
                low, high = min(low, int(where[0])), max(high, int(where[-1]) + 1)
        return (low, high) if low < high else (0, 0)

    def clear(first: int, last: int, keys: int, row: int | None) -> Span:
        """The document of all these queries, if it is one and stands in one piece."""
        low, high = 0, keys
        for one in ids if row is None else ids[row % len(ids)].unsqueeze(0):
            own = one[max(0, first)]
            where = (one == own).nonzero().flatten()
            start, end = int(where[0]), int(where[-1]) + 1
            if int(own) == -1 or end - start > len(where) or first < start or last > end:
                return 0, 0
            low, high = max(low, start), min(high, end)
        return low, max(low, high)

    return Mask(
        rule,
        "documents",
        "any",
        None,
        len(ids),
        keys=ids.shape[1],
        reach=reach,
        by_row=len(ids) > 1,
        clear=clear,
        pieces=ids,
    )


def predicate(rule: Rule, name: str = "predicate", *, batch: int = 1, heads: int = 1) -> Mask:
    """Any rule of one's own: `rule(b, h, q, k) -> bool` on index tensors that broadcast to (B, H, T, S)."""
    return Mask(rule, name, "any", None, batch, heads)


def additive(allowed: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Boolean to additive form, the one place where it is done: 0 where allowed, -inf where not."""
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(~allowed, float("-inf"))
