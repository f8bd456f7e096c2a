"""The one place that turns a mask into what kernels eat: a flag, a dense matrix, or strips of it made when needed."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from atento.attention.algebra import Mask, additive
from atento.attention.key_ranges import Span


def boolean(mask: Tensor) -> Tensor:
    """The mask itself. Raises TypeError: it is not boolean (an additive one, say), or no tensor at all."""
    if callable(mask) and not isinstance(mask, Tensor):
        raise TypeError(f"a mask is a value: call the function, as in mask={getattr(mask, '__name__', 'causal')}()")
    if not isinstance(mask, Tensor):
        raise TypeError(f"a mask is a `Mask` or a boolean tensor, True = may attend: got {type(mask).__name__}")
    if mask.dtype != torch.bool:
        raise TypeError(f"a mask must be boolean, True = may attend: got {mask.dtype}")
    return mask


@dataclass(frozen=True, eq=False)
class LoweredMask:
    """A mask for T queries over S keys, made once for all layers of a stack; its dense forms only if a kernel asks.

    `mask` is the value itself, a boolean tensor (B|1,H|1,T|1,S), or None where everything is allowed.
    """

    mask: Mask | Tensor | None
    query_len: int
    key_len: int
    device: torch.device

    @property
    def is_causal(self) -> bool:
        """True for the pure causal square that fused kernels know."""
        return isinstance(self.mask, Mask) and self.mask.form == "causal" and self.query_len == self.key_len

    @property
    def is_of_keys(self) -> bool:
        """True where all queries see the same keys, or all of them: as padding has it."""
        own = self.mask
        return own is None or (not own.by_query if isinstance(own, Mask) else own.shape[-2] == 1)

    @cached_property
    def allowed(self) -> Tensor | None:
        """The boolean matrix (B|1,H|1,T|1,S); None where everything is allowed."""
        if isinstance(self.mask, Mask):
            return self.mask.dense(self.query_len if self.mask.by_query else 1, self.key_len, self.device)
        return self.mask

    @cached_property
    def bias(self) -> Tensor | None:
        """The additive form of `allowed`."""
        return None if self.allowed is None else additive(self.allowed)

    @cached_property
    def empty(self) -> Tensor | None:
        """The rows (B|1,H|1,T|1,1) that may attend to nothing; None when there is none."""
        if isinstance(self.mask, Mask) and self.mask.form == "causal" and self.query_len <= self.key_len:
            return None
        return None if self.allowed is None else nothing_allowed(self.allowed)

    def strip(self, queries: Tensor | slice, keys: Span | None = None, row: int | None = None) -> Tensor | None:
        """`allowed` for some queries (numbers from 0, or a slice) and keys, in batch row `row` or all of them."""
        mask = self.mask
        if mask is None:
            return None
        if isinstance(mask, Mask):
            places = torch.arange(self.query_len, device=self.device)
            places = places[queries] if mask.by_query else places[:1]
            found = torch.arange(*((0, self.key_len) if keys is None or isinstance(keys, Tensor) else keys))
            listed = (keys if isinstance(keys, Tensor) else found).to(self.device)
            return mask.tile(places + self.key_len - self.query_len, listed, self.key_len, row)
        part = mask if row is None or mask.shape[0] == 1 else mask[row : row + 1]
        part = part if part.shape[-2] == 1 else part[..., queries, :]
        return part if keys is None else take(part, keys, dim=-1)

    def reach(self, first: int, last: int, row: int | None = None) -> Span:
        """Keys outside of which the queries first ... last - 1 (numbered from 0) see nothing."""
        if not isinstance(self.mask, Mask) or self.mask.reach is None:
            return 0, self.key_len
        ahead = self.key_len - self.query_len
        return self.mask.reach(first + ahead, last + ahead, self.key_len, row)

    def clear(self, first: int, last: int, row: int | None = None) -> tuple[int, int]:
        """A range of keys that the queries first ... last - 1 (numbered from 0) all see; empty where none is known."""
        if not isinstance(self.mask, Mask) or self.mask.clear is None:
            return 0, 0
        ahead = self.key_len - self.query_len
        found = self.mask.clear(first + ahead, last + ahead, self.key_len, row)
        return (0, 0) if isinstance(found, Tensor) else found

    def planes(self, row: int | None = None) -> int:
        """How many different matrices of queries and keys the mask is, in batch row `row` or all of them."""
        if self.mask is None:
            return 1
        heads, rows = (self.mask.heads, self.mask.batch) if isinstance(self.mask, Mask) else self.mask.shape[1::-1]
        per_query = self.mask.by_query if isinstance(self.mask, Mask) else self.mask.shape[-2] > 1
        return heads * (rows if row is None else 1) if per_query else 1

    @property
    def narrows(self) -> bool:
        """True if the mask knows a reach, so that fewer queries at once see fewer keys."""
        return isinstance(self.mask, Mask) and self.mask.reach is not None

    @property
    def by_row(self) -> bool:
        """True if the reach differs from one batch row to the next."""
        return isinstance(self.mask, Mask) and self.mask.by_row and self.mask.batch > 1

    def select(self, rows: Tensor) -> "LoweredMask":
        """For those batch rows only, in that order."""
        if self.allowed is None or self.allowed.shape[0] == 1:
            return self
        return LoweredMask(self.allowed.index_select(0, rows), self.query_len, self.key_len, self.device)


def nothing_allowed(allowed: Tensor) -> Tensor | None:
    """The rows (...,1) that may attend to nothing; None when there is none."""
    empty = ~allowed.any(dim=-1, keepdim=True)
    return empty if bool(empty.any()) else None


def take(x: Tensor, keys: Span, dim: int) -> Tensor:
    """Those positions of a dimension: a view for a range, a copy for indices."""
    if isinstance(keys, Tensor):
        return x.index_select(dim, keys.to(x.device))
    return x if keys == (0, x.shape[dim]) else x.narrow(dim, keys[0], keys[1] - keys[0])


def lower(
    mask: "Mask | Tensor | LoweredMask | None", query_len: int, key_len: int, device: torch.device
) -> LoweredMask:
    """Any way of giving a mask, as the kernels eat it. Masks are boolean, never float."""
    if isinstance(mask, LoweredMask):
        return mask
    if isinstance(mask, Mask):
        if mask.form == "full" or (mask.form == "causal" and query_len == 1):
            mask = None
        elif mask.keys is not None and mask.keys != key_len:
            raise ValueError(f"the mask {mask.name} was made for {mask.keys} keys: got {key_len}")
    elif mask is not None:
        mask = boolean(mask)
        while mask.dim() < 4:
            mask = mask.unsqueeze(0)
        if mask.shape[-1] not in (1, key_len):
            raise ValueError(f"a mask over {mask.shape[-1]} keys does not fit: got {key_len} keys")
        mask = mask.expand(*mask.shape[:-1], key_len)  # strips are cut out of its keys
    return LoweredMask(mask, query_len, key_len, device)
