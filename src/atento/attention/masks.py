"""The named masks: causal, window, prefix, padding, documents and others (docs/notes.md#a6, #a7, #a16, #a18, #c10)."""

from collections.abc import Iterable, Sequence
from itertools import combinations
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from atento.attention.algebra import (
    KeyRange,
    Mask,
    Rule,
    check_compatible,
    joined_keys,
    reachable_in_window,
    union,
    unmasked_in_window,
)

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


def _check_int(name: str, value: object, minimum: int = 0) -> None:
    """Raises ValueError if `value` is not an integer, or below `minimum`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise ValueError(f"`{name}` must be a whole number, {minimum} or more: got {value!r}")


def _in_window(name: str, before: int | None, after: int) -> Mask:
    """The mask of the keys from `before` positions behind a query (None: from the first) to `after` ahead of it."""

    def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return k <= q + after if before is None else (k >= q - before) & (k <= q + after)

    reachable, unmasked = reachable_in_window(before, after), unmasked_in_window(before, after)
    return Mask(rule, name, "any", after, reachable=reachable, unmasked=unmasked)


def bidirectional() -> Mask:
    """Every query may attend to every key, as in an encoder (docs/notes.md#a6)."""
    return Mask(lambda b, h, q, k: k >= 0, "bidirectional", "full")  # true of every key


def causal() -> Mask:
    """A query may attend to itself and to earlier keys, as in a decoder (docs/notes.md#a7)."""
    reachable, unmasked = reachable_in_window(None, 0), unmasked_in_window(None, 0)
    return Mask(lambda b, h, q, k: k <= q, "causal", "causal", 0, reachable=reachable, unmasked=unmasked)


def lookahead(k: int) -> Mask:
    """Causal, plus the next `k` positions; 0 is `causal()` (docs/notes.md#a16)."""
    _check_int("k", k)
    return _in_window(f"lookahead({k})", None, k) if k else causal()


def _describe(value: object) -> str:
    return f"{value.dtype} of {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def _row_lengths(name: str, lengths: Tensor) -> Tensor:
    """Lengths (B,). Raises TypeError if they are not integers (B,), ValueError if one is negative."""
    if lengths.dim() != 1 or lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise TypeError(f"`{name}` takes whole numbers (B,), one for each row: got {_describe(lengths)}")
    if len(lengths) and int(lengths.min()) < 0:
        raise ValueError(f"`{name}` takes lengths of 0 or more: got {int(lengths.min())}")
    return lengths


def prefix(n: int | Tensor) -> Mask:
    """Every query may attend to the first `n` keys; the rest is causal (prefix LM; docs/notes.md#c10).

    Args:
        n: an int, or integers (B,) with a length for each batch row.
    """
    if isinstance(n, Tensor):
        lengths = _row_lengths("prefix", n)

        def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return (k <= q) | (k < lengths.to(b.device)[b])  # causal, or in the row's prefix

        def reachable(first: int, last: int, key_len: int, row: int | None) -> KeyRange:
            prefix_len = int(lengths.max() if row is None else lengths[row % len(lengths)])
            return 0, min(key_len, max(last, prefix_len, 0))  # exclusive end: the last query is last - 1

        return Mask(rule, "prefix(rows)", "any", None, len(lengths), reachable=reachable, per_row=len(lengths) > 1)
    _check_int("n", n)
    return Mask(
        lambda b, h, q, k: (k <= q) | (k < n),
        f"prefix({n})",
        "any",
        None if n > 1 else 0,  # a prefix of one token is the causal mask
        reachable=lambda first, last, key_len, row: (0, min(key_len, max(last, n, 0))),
        unmasked=lambda first, last, key_len, row: (0, min(key_len, max(first + 1, n, 0))),
    )


def window(left: int, right: int) -> Mask:
    """A query may attend to itself, `left` keys before it and `right` keys after it."""
    _check_int("left", left)
    _check_int("right", right)
    return _in_window(f"window({left}, {right})", left, right)


def dilated(step: int, reach: int | None = None) -> Mask:
    """A query may attend to itself and to every `step`-th key before and after it.

    Args:
        step: distance between two keys.
        reach: greatest distance of a key; unlimited if not given.
    """
    _check_int("step", step, 1)
    if reach is not None:
        _check_int("reach", reach)

    def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        distance = k - q  # negative for earlier keys
        return (distance % step == 0) & (True if reach is None else distance.abs() <= reach)

    name = f"dilated({step})" if reach is None else f"dilated({step}, {reach})"
    return Mask(rule, name, "any", reach, reachable=reachable_in_window(reach, reach))


def global_tokens(positions: int | Sequence[int]) -> Mask:
    """Global positions attend to all keys, and all queries attend to them; other pairs are masked.

    `window(2, 2) | global_tokens(1)` is the pattern of Longformer (Beltagy et al. 2020).

    Args:
        positions: the global positions; an int n means the first n.
    """
    chosen = torch.tensor(sorted(set(range(positions) if isinstance(positions, int) else positions)))
    if len(chosen) == 0 or int(chosen.min()) < 0:
        raise ValueError(f"`positions` must name at least one position, none negative: got {positions}")

    def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        on_device = chosen.to(k.device)
        return torch.isin(k, on_device) | torch.isin(q, on_device)

    def reachable(first: int, last: int, key_len: int, row: int | None) -> KeyRange:
        has_global_query = bool(((chosen >= first) & (chosen < last)).any())  # which may attend to every key
        return (0, key_len) if has_global_query else chosen[chosen < key_len]  # the global keys alone

    return Mask(rule, f"global_tokens({chosen.tolist()})", reachable=reachable)


def allowed_pairs(pairs: Iterable[tuple[int, int]]) -> Mask:
    """Only the given (query, key) pairs may attend (docs/notes.md#a16).

    `causal() | allowed_pairs({(0, 3)})` is causal, and query 0 may attend to key 3 too.
    """
    pair_list: list[Any] = list(pairs) if isinstance(pairs, Iterable) else [pairs]
    if not all(
        isinstance(pair, Sequence) and len(pair) == 2 and all(isinstance(n, Integral) and int(n) >= 0 for n in pair)
        for pair in pair_list
    ):
        raise TypeError(f"`pairs` are (query, key) numbers from 0, as in allowed_pairs([(0, 3)]): got {pairs!r}")
    listed = sorted({(int(query), int(key)) for query, key in pair_list})
    ahead = max((k - q for q, k in listed), default=0)  # negative if all keys are earlier
    behind = max((q - k for q, k in listed), default=0)

    def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        is_allowed = torch.zeros_like(q + k, dtype=torch.bool)
        for query, key in listed:
            is_allowed |= (q == query) & (k == key)
        return is_allowed

    reachable = reachable_in_window(max(0, behind), max(0, ahead))
    return Mask(rule, f"pairs({len(listed)})", "any", max(0, ahead), reachable=reachable)


def blocks(allowed_blocks: Tensor, size: int) -> Mask:
    """A mask by blocks of `size` x `size` pairs (docs/notes.md#a17, #a19).

    Args:
        allowed_blocks: which blocks may attend, boolean (⌈T/size⌉,⌈S/size⌉), or (H,⌈T/size⌉,⌈S/size⌉) for each head.
        size: positions in a block.
    """
    _check_int("size", size, 1)
    if allowed_blocks.dtype != torch.bool or allowed_blocks.dim() not in (2, 3):
        raise ValueError(
            f"`allowed_blocks` must be a boolean matrix, or one for each head: got {allowed_blocks.dtype} "
            f"{tuple(allowed_blocks.shape)}"
        )
    allowed_blocks = allowed_blocks if allowed_blocks.dim() == 3 else allowed_blocks.unsqueeze(0)
    rows, columns = allowed_blocks.shape[1:]
    by_any_head = allowed_blocks.any(dim=0).cpu()  # by some head, on the CPU, where `reachable` is asked
    farthest = (torch.arange(columns) + 1 - torch.arange(rows)[:, None]) * size - 1  # last key minus first query
    ahead = int(farthest[by_any_head].max()) if bool(by_any_head.any()) else 0

    def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        if (q >= rows * size).any() or (k >= columns * size).any():
            raise ValueError(f"the mask blocks({size}) was made for {rows * size} queries and {columns * size} keys")
        return allowed_blocks.to(k.device)[h, q.clamp(min=0) // size, k // size] & (q >= 0)

    def reachable(first: int, last: int, key_len: int, row: int | None) -> KeyRange:
        reached = by_any_head[max(0, first) // size : (max(0, last) + size - 1) // size].any(dim=0)  # (key blocks)
        chosen = (reached.nonzero() * size + torch.arange(size)).flatten()  # blocks (n,1) + places (size,) -> keys
        return chosen[chosen < key_len]

    return Mask(rule, f"blocks({size})", "any", max(0, ahead), 1, allowed_blocks.shape[0], reachable=reachable)


def per_head(masks: Sequence[Mask]) -> Mask:
    """A mask for each head: head h has masks[h]."""
    if not masks or any(mask.heads != 1 for mask in masks):
        raise ValueError("`per_head` takes one mask for each head, none of which depends on the head itself")
    for left, right in combinations(masks, 2):
        check_compatible(left, right)

    def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        no_head, allowed = torch.zeros_like(h[:, :1]), []
        for mask in masks:
            row = b if mask.batch > 1 else torch.zeros_like(b[:1])  # a mask that is equal for all rows has one
            allowed.append(mask.rule(row, no_head, q, k).expand(b.shape[0], 1, q.shape[-2], k.shape[-1]))
        return torch.cat(allowed, dim=1)[:, h.flatten()]  # (B,heads,T,S), then those that are asked for

    aheads = [mask.max_ahead for mask in masks]
    return Mask(
        rule,
        f"per_head({', '.join(mask.name for mask in masks)})",
        "any",
        None if None in aheads else max(ahead for ahead in aheads if ahead is not None),
        max(mask.batch for mask in masks),
        len(masks),
        next((mask.key_len for mask in masks if mask.key_len is not None), None),
        any(mask.per_query for mask in masks),
        joined_keys(union, [mask.reachable for mask in masks], needs_all=True),
        any(mask.per_row for mask in masks),
    )


def padding(lengths: Tensor) -> Mask:
    """Queries may attend to real tokens only.

    Args:
        lengths: integers (B,), the number of real tokens of each row; or boolean (B,L), True = a real token.
    """
    is_token_mask = isinstance(lengths, Tensor) and lengths.dtype == torch.bool
    if not isinstance(lengths, Tensor) or lengths.dim() != 1 + is_token_mask or lengths.is_floating_point():
        raise TypeError(
            f"`padding` takes lengths (B,), or boolean (B,L) with True for a real token: got {_describe(lengths)}"
        )
    if not is_token_mask:
        _row_lengths("padding", lengths)

    def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        on_device = lengths.to(b.device)
        return on_device[b, k] if is_token_mask else k < on_device[b]

    def unmasked(first: int, last: int, key_len: int, row: int | None) -> KeyRange:
        return 0, min(key_len, int(lengths.min() if row is None else lengths[row % len(lengths)]))

    return Mask(
        rule,
        "padding",
        "any",
        None,
        len(lengths),
        key_len=lengths.shape[1] if is_token_mask else None,
        per_query=False,
        unmasked=None if is_token_mask else unmasked,  # a token mask may have gaps
    )


def documents(ids: Tensor) -> Mask:
    """Tokens may attend to tokens of the same document only, for packed documents (docs/notes.md#e1).

    Args:
        ids: integers (B,L), the document of each token; -1 = padding.
    """
    if not isinstance(ids, Tensor) or ids.dim() != 2 or ids.is_floating_point():
        raise TypeError(f"`documents` takes integers (B,L), the number of each token's document: got {_describe(ids)}")

    def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        on_device = ids.to(b.device)
        return (on_device[b, q.clamp(min=0)] == on_device[b, k]) & (on_device[b, k] != -1) & (q >= 0)

    def reachable(first: int, last: int, key_len: int, row: int | None) -> KeyRange:
        """From the first to the last key that shares a document with one of these queries."""
        low, high = key_len, 0  # empty until a key is found
        for row_ids in ids if row is None else ids[row % len(ids)].unsqueeze(0):
            queries = row_ids[max(0, first) : max(0, last)]
            keys = torch.isin(row_ids, queries[queries != -1]).nonzero().flatten()  # of the same documents, in order
            if len(keys):
                low, high = min(low, int(keys[0])), max(high, int(keys[-1]) + 1)
        return (low, high) if low < high else (0, 0)

    def unmasked(first: int, last: int, key_len: int, row: int | None) -> KeyRange:
        """The document of these queries, if all are in the same one and it is contiguous."""
        low, high = 0, key_len
        for row_ids in ids if row is None else ids[row % len(ids)].unsqueeze(0):
            document = row_ids[max(0, first)]  # the first query's, of which all must be
            keys = (row_ids == document).nonzero().flatten()
            start, end = int(keys[0]), int(keys[-1]) + 1  # its first key, and one past its last
            others = first < start or last > end
            if int(document) == -1 or end - start > len(keys) or others:  # padding, a gap, or others too
                return 0, 0
            low, high = max(low, start), min(high, end)  # the keys that every row leaves unmasked
        return low, max(low, high)

    return Mask(
        rule,
        "documents",
        "any",
        None,
        len(ids),
        key_len=ids.shape[1],
        reachable=reachable,
        per_row=len(ids) > 1,
        unmasked=unmasked,
        document_ids=ids,
    )


def predicate(rule: Rule, name: str = "predicate", *, batch: int = 1, heads: int = 1) -> Mask:
    """A mask from any rule.

    Args:
        rule: `rule(b, h, q, k) -> bool` on index tensors that broadcast to (B,H,T,S).
        name: the mask as text, for messages.
        batch: number of batch rows, if the rule depends on `b`.
        heads: number of heads, if the rule depends on `h`.

    Raises:
        TypeError: the rule does not return a boolean tensor.
        ValueError: the rule depends on the batch row or the head, and `batch` or `heads` is not given.
    """
    for argument, (count, dim) in {"batch": (batch, 0), "heads": (heads, 1)}.items():
        _check_int(argument, count, 1)
        allowed = _tried(rule, dim if count == 1 else None)
        if isinstance(allowed, Tensor) and count == 1 and allowed.dim() == 4 and allowed.shape[dim] > 1:
            raise ValueError(
                f"this rule depends on `{'bh'[dim]}`: give the number of them, as in predicate(rule, {argument}=8)"
            )
    return Mask(rule, name, "any", None, batch, heads)


def _tried(rule: Rule, dim: int | None) -> Tensor | None:
    """The rule at the first query and key, for two batch rows (`dim` 0) or two heads (`dim` 1).

    None if the rule fails there: its table may have one row only, or be on another device. Raises TypeError if the
    result is not boolean.
    """
    b, h, q, k = (torch.arange(2 if dim == argument else 1).view(-1, 1, 1, 1) for argument in range(4))
    try:
        allowed = rule(b, h.view(1, -1, 1, 1), q, k)
    except (LookupError, RuntimeError, ValueError):
        return None
    if not isinstance(allowed, Tensor) or allowed.dtype != torch.bool:
        raise TypeError(f"a rule must return a boolean tensor, as `k <= q` does: got {_describe(allowed)}")
    return allowed
