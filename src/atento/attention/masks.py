"""Who may attend to whom: mask values with an algebra, and the one place that lowers them to what kernels eat.

A mask is a predicate on (batch row, head, query position, key position). Masks combine with `&`, `|` and `~`,
draw themselves as a dense matrix, and answer whether they look ahead, which is what decides if a network may
cache. True means "may attend". Where there are more keys than queries, query i stands at key S - T + i, so the
same value serves a whole sequence and one cached step of it. Spec rows A6, A7, A16, A18, C10.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Mask:
    """A predicate `rule(b, h, q, k) -> bool` on index tensors that broadcast to (B, H, T, S).

    `form` is the shape a fused kernel may know ("full", "causal", or "any"); `ahead` is how many positions past
    itself a query may see (None: without limit); `batch` and `heads` are the sizes the rule depends on (1: it
    does not); `keys` is the number of keys that a mask with data of its own was made for;
    `by_query` is False where all queries see the same keys, so that one row stands for all.
    """

    rule: Rule
    name: str
    form: str = "any"
    ahead: int | None = None
    batch: int = 1
    heads: int = 1
    keys: int | None = None
    by_query: bool = True

    def __and__(self, other: "Mask") -> "Mask":
        if self.form == "full":
            return other
        if other.form == "full":
            return self
        limits = [mask.ahead for mask in (self, other) if mask.ahead is not None]
        return _join(self, other, torch.logical_and, f"{self.name} & {other.name}", min(limits) if limits else None)

    def __or__(self, other: "Mask") -> "Mask":
        ahead = None if self.ahead is None or other.ahead is None else max(self.ahead, other.ahead)
        return _join(self, other, torch.logical_or, f"({self.name} | {other.name})", ahead)

    def __invert__(self) -> "Mask":
        def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return ~self.rule(b, h, q, k)

        return Mask(rule, f"~({self.name})", "any", None, self.batch, self.heads, self.keys, self.by_query)

    @property
    def looks_ahead(self) -> bool:
        """True if some query may see a later key; a network with such a mask must not cache."""
        return self.ahead is None or self.ahead > 0

    def dense(self, query_len: int, key_len: int | None = None, device: torch.device | str | None = None) -> Tensor:
        """The mask as a boolean matrix (B or 1, H or 1, T, S)."""
        key_len = query_len if key_len is None else key_len
        if self.keys is not None and self.keys != key_len:
            raise ValueError(f"the mask {self.name} was made for {self.keys} keys: got {key_len}")
        b = torch.arange(self.batch, device=device).view(-1, 1, 1, 1)
        h = torch.arange(self.heads, device=device).view(1, -1, 1, 1)
        q = torch.arange(key_len - query_len, key_len, device=device).view(1, 1, -1, 1)
        k = torch.arange(key_len, device=device).view(1, 1, 1, -1)
        allowed = self.rule(b, h, q, k)
        return allowed.expand(self.batch, self.heads, query_len, key_len)

    def additive(self, query_len: int, key_len: int | None = None) -> Tensor:
        """The mask in additive form, 0 where a query may attend and -inf where not (the matrix of the notes, A7)."""
        return additive(self.dense(query_len, key_len))

    def __repr__(self) -> str:
        return f"Mask({self.name})"


def _join(one: Mask, two: Mask, how: Callable[[Tensor, Tensor], Tensor], name: str, ahead: int | None) -> Mask:
    for size in ("batch", "heads"):
        a, b = getattr(one, size), getattr(two, size)
        if a != b and 1 not in (a, b):
            raise ValueError(f"masks of {size} {a} and {b} cannot be joined: {one.name}, {two.name}")
    if one.keys is not None and two.keys is not None and one.keys != two.keys:
        raise ValueError(f"masks made for {one.keys} and {two.keys} keys cannot be joined: {one.name}, {two.name}")

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
    )


def bidirectional() -> Mask:
    """Every query sees every key (encoders; A6)."""
    return Mask(lambda b, h, q, k: (k >= 0) & (q >= 0), "bidirectional", "full")


def causal() -> Mask:
    """A query sees itself and what came before (decoders; A7)."""
    return Mask(lambda b, h, q, k: k <= q, "causal", "causal", 0)


def lookahead(k: int) -> Mask:
    """Up to `k` positions ahead; 0 is causal (partial causality, A16)."""
    if k < 0:
        raise ValueError(f"`k` must not be negative: got {k}")
    if k == 0:
        return causal()
    return Mask(lambda b, h, q, key: key <= q + k, f"lookahead({k})", "any", k)


def prefix(n: int | Tensor) -> Mask:
    """Everyone sees the first `n` keys, causal after (prefix LM, C10). `n` an int, or (B,) one a row."""
    if isinstance(n, Tensor):
        lengths = n

        def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return (k <= q) | (k < lengths.to(b.device)[b])

        return Mask(rule, "prefix(rows)", "any", None, lengths.shape[0])
    return Mask(lambda b, h, q, k: (k <= q) | (k < n), f"prefix({n})", "any", None if n > 1 else 0)


def window(left: int, right: int) -> Mask:
    """Oneself, `left` neighbours before and `right` after."""
    if left < 0 or right < 0:
        raise ValueError(f"`left` and `right` must not be negative: got {left} and {right}")
    return Mask(lambda b, h, q, k: (k >= q - left) & (k <= q + right), f"window({left}, {right})", "any", right)


def padding(lengths: Tensor) -> Mask:
    """Only real tokens may be attended to. `lengths` (B,) integers, or boolean (B,L) with True for a real token."""
    if lengths.dtype == torch.bool:
        real = lengths

        def allowed(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return (real.to(b.device)[b, k]) & (q >= 0)

        return Mask(allowed, "padding", "any", None, real.shape[0], keys=real.shape[1], by_query=False)

    def within(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k < lengths.to(b.device)[b]) & (q >= 0)

    return Mask(within, "padding", "any", None, lengths.shape[0], by_query=False)


def documents(ids: Tensor) -> Mask:
    """Packed documents do not see each other. `ids` (B,L) integers, -1 = padding (E1)."""

    def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        own = ids.to(b.device)
        return (own[b, q] == own[b, k]) & (own[b, k] != -1)

    return Mask(rule, "documents", "any", None, ids.shape[0], keys=ids.shape[1])


def predicate(rule: Rule, name: str = "predicate", *, batch: int = 1, heads: int = 1) -> Mask:
    """Any rule of one's own: `rule(b, h, q, k) -> bool` on index tensors that broadcast to (B, H, T, S)."""
    return Mask(rule, name, "any", None, batch, heads)


def additive(allowed: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Boolean to additive form, the one place where it is done: 0 where allowed, -inf where not."""
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(~allowed, float("-inf"))


def boolean(mask: Tensor) -> Tensor:
    """The mask itself. Raises TypeError: it is not boolean (an additive one, say)."""
    if mask.dtype != torch.bool:
        raise TypeError(f"a mask must be boolean, True = may attend: got {mask.dtype}")
    return mask


@dataclass(frozen=True, eq=False)
class LoweredMask:
    """A mask as kernels eat it, made once for all layers of a stack.

    `allowed` is the boolean matrix (B|1, H|1, T, S), None when everything is allowed; `bias` its additive form;
    `is_causal` marks the pure causal square that fused kernels know; `empty` (B|1, H|1, T, 1) marks the rows that
    may attend to nothing, None when there is none.
    """

    allowed: Tensor | None
    bias: Tensor | None
    is_causal: bool
    empty: Tensor | None


def lower(
    mask: "Mask | Tensor | LoweredMask | None", query_len: int, key_len: int, device: torch.device
) -> LoweredMask:
    """Any way of giving a mask, as the kernels eat it. Masks are boolean, never float."""
    if isinstance(mask, LoweredMask):
        return mask
    if mask is None or (isinstance(mask, Mask) and mask.form == "full"):
        return LoweredMask(None, None, False, None)
    if isinstance(mask, Mask):
        if mask.form == "causal" and query_len == 1:
            return LoweredMask(None, None, False, None)
        is_causal = mask.form == "causal" and query_len == key_len
        allowed = mask.dense(query_len if mask.by_query else 1, key_len, device)
        if mask.form == "causal" and query_len <= key_len:
            return LoweredMask(allowed, additive(allowed), is_causal, None)
    else:
        is_causal, allowed = False, boolean(mask)
        while allowed.dim() < 4:
            allowed = allowed.unsqueeze(0)
    empty = ~allowed.any(dim=-1, keepdim=True)
    return LoweredMask(allowed, additive(allowed), is_causal, empty if bool(empty.any()) else None)
