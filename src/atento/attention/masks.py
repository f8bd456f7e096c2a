"""Who may attend to whom: the masks that have names (docs/notes.md#a6, #a7, #a16, #a18, #c10)."""

from collections.abc import Iterable, Sequence
from functools import reduce
from itertools import combinations
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from atento.attention.algebra import Mask, Rule, fit
from atento.attention.key_ranges import Span, band, either, within

__all__ = [
    "Mask",
    "allowed_pairs",
    "bidirectional",
    "blocks",
    "causal",
    "dilated",
    "documents",
    "global_tokens",
    "lookahead",
    "padding",
    "per_head",
    "predicate",
    "prefix",
    "window",
]


def _whole(name: str, value: object, least: int = 0) -> None:
    """Raises ValueError: not a whole number, or below `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"`{name}` must be a whole number, {least} or more: got {value!r}")


def bidirectional() -> Mask:
    """Every query sees every key (encoders; docs/notes.md#a6)."""
    return Mask(lambda b, h, q, k: k >= 0, "bidirectional", "full")


def causal() -> Mask:
    """A query sees itself and what came before (decoders; docs/notes.md#a7)."""
    return Mask(lambda b, h, q, k: k <= q, "causal", "causal", 0, reach=band(None, 0), clear=within(None, 0))


def lookahead(k: int) -> Mask:
    """Up to `k` positions ahead; 0 is causal (partial causality; docs/notes.md#a16)."""
    _whole("k", k)
    if k == 0:
        return causal()
    return Mask(
        lambda b, h, q, key: key <= q + k, f"lookahead({k})", "any", k, reach=band(None, k), clear=within(None, k)
    )


def _what(value: object) -> str:
    return f"{value.dtype} of {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def _row_lengths(name: str, lengths: Tensor) -> Tensor:
    """Lengths (B,), one a row. Raises TypeError: they are not whole numbers (B,). ValueError: one is negative."""
    if lengths.dim() != 1 or lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise TypeError(f"`{name}` takes whole numbers (B,), one a row: got {_what(lengths)}")
    if len(lengths) and int(lengths.min()) < 0:
        raise ValueError(f"`{name}` takes lengths of 0 or more: got {int(lengths.min())}")
    return lengths


def prefix(n: int | Tensor) -> Mask:
    """Everyone sees the first `n` keys, causal after (prefix LM; docs/notes.md#c10). `n` an int, or (B,) one a row."""
    if isinstance(n, Tensor):
        lengths = _row_lengths("prefix", n)

        def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return (k <= q) | (k < lengths.to(b.device)[b])

        def reach(first: int, last: int, keys: int, row: int | None) -> Span:
            most = int(lengths.max() if row is None else lengths[row % len(lengths)])
            return 0, min(keys, max(last, most, 0))

        return Mask(rule, "prefix(rows)", "any", None, len(lengths), reach=reach, by_row=len(lengths) > 1)
    _whole("n", n)
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
    _whole("left", left)
    _whole("right", right)
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
    _whole("step", step, 1)
    if reach is not None:
        _whole("reach", reach)

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
    """Those (query, key) pairs alone; `causal() | allowed_pairs({(0, 3)})` lets token 0 see token 3 as well.

    See docs/notes.md#a16.
    """
    listed = _pairs(pairs)
    ahead = max((k - q for q, k in listed), default=0)
    behind = max((q - k for q, k in listed), default=0)

    def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        found = torch.zeros_like(q + k, dtype=torch.bool)
        for query, key in listed:
            found |= (q == query) & (k == key)
        return found

    return Mask(rule, f"pairs({len(listed)})", "any", max(0, ahead), reach=band(max(0, behind), max(0, ahead)))


def _pairs(given: Any) -> list[tuple[int, int]]:
    """Each pair once, in order. Raises TypeError: they are not pairs of whole numbers, 0 or more."""
    known = list(given) if isinstance(given, Iterable) else [given]
    if not all(
        isinstance(one, Sequence) and len(one) == 2 and all(isinstance(n, Integral) and int(n) >= 0 for n in one)
        for one in known
    ):
        raise TypeError(f"`pairs` are (query, key) numbers from 0, as in allowed_pairs([(0, 3)]): got {given!r}")
    return sorted({(int(one[0]), int(one[1])) for one in known})


def blocks(kept: Tensor, size: int) -> Mask:
    """Squares of `size` positions, kept or not: boolean (⌈T/size⌉,⌈S/size⌉), or (H,...) one a head.

    See docs/notes.md#a17, #a19.
    """
    _whole("size", size, 1)
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
        fit(one, two)

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
    listed = isinstance(lengths, Tensor) and lengths.dtype == torch.bool
    if not isinstance(lengths, Tensor) or lengths.dim() != 1 + listed or lengths.is_floating_point():
        raise TypeError(
            f"`padding` takes lengths (B,), or boolean (B,L) with True for a real token: got {_what(lengths)}"
        )
    if not listed:
        _row_lengths("padding", lengths)

    def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        own = lengths.to(b.device)
        return own[b, k] if listed else k < own[b]

    def clear(first: int, last: int, keys: int, row: int | None) -> Span:
        return 0, min(keys, int(lengths.min() if row is None else lengths[row % len(lengths)]))

    sizes = lengths.shape[1] if listed else None
    known = None if listed else clear
    return Mask(rule, "padding", "any", None, len(lengths), keys=sizes, by_query=False, clear=known)


def documents(ids: Tensor) -> Mask:
    """Packed documents do not see each other. `ids` (B,L) integers, -1 = padding (docs/notes.md#e1)."""
    if not isinstance(ids, Tensor) or ids.dim() != 2 or ids.is_floating_point():
        raise TypeError(f"`documents` takes integers (B,L), the number of each token's document: got {_what(ids)}")

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
    """Any rule of one's own: `rule(b, h, q, k) -> bool` on index tensors that broadcast to (B, H, T, S).

    A rule that asks for the batch row or the head is for so many of them: `batch`, `heads`.

    Raises:
        TypeError: it gives no boolean tensor. ValueError: it asks for rows or heads, and is not told how many.
    """
    asked = {"batch": (batch, 0), "heads": (heads, 1)}
    for what, (count, dim) in asked.items():
        _whole(what, count, 1)
        found = _tried(rule, dim if count == 1 else None)
        if isinstance(found, Tensor) and count == 1 and found.dim() == 4 and found.shape[dim] > 1:
            raise ValueError(
                f"this rule asks for `{'bh'[dim]}`: say how many there are, as in predicate(rule, {what}=8)"
            )
    return Mask(rule, name, "any", None, batch, heads)


def _tried(rule: Rule, dim: int | None) -> Tensor | None:
    """What the rule says of the first query and key, of two batch rows (`dim` 0) or heads (1); None: no answer there.

    Raises TypeError: not booleans.
    """
    b, h, q, k = (torch.arange(2 if dim == place else 1).view(-1, 1, 1, 1) for place in range(4))
    try:  # a table may have one row alone, or be on another device
        found = rule(b, h.view(1, -1, 1, 1), q, k)
    except (LookupError, RuntimeError, ValueError):
        return None
    if not isinstance(found, Tensor) or found.dtype != torch.bool:
        raise TypeError(f"a rule gives a boolean tensor, as `k <= q` does: got {_what(found)}")
    return found
