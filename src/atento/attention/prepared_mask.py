"""What a kernel gets besides queries, keys and values: a mask, as a flag, whole or in part, biases and a scale."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from atento.attention.algebra import KeyRange, Mask, additive, indices
from atento.attention.dropout import Randomness
from atento.attention.relative_terms import RelativeTerms


def check_boolean(mask: Tensor) -> Tensor:
    """Returns the mask. Raises TypeError if it is not a boolean tensor (an additive mask, for example)."""
    if callable(mask) and not isinstance(mask, Tensor):
        raise TypeError(f"a mask is a value: call the function, as in mask={getattr(mask, '__name__', 'causal')}()")
    if not isinstance(mask, Tensor):
        raise TypeError(f"a mask is a `Mask` or a boolean tensor, True = may attend: got {type(mask).__name__}")
    if mask.dtype != torch.bool:
        raise TypeError(f"a mask must be boolean, True = may attend: got {mask.dtype}")
    return mask


@dataclass(frozen=True, eq=False)
class PreparedMask:
    """A mask for T queries over S keys, made once for all layers of a stack.

    Dense forms are computed when a kernel first needs them, and cached.
    """

    # the mask, a boolean tensor (B|1,H|1,T|1,S), or None if every query may attend to every key
    mask: Mask | Tensor | None
    query_len: int  # T
    key_len: int  # S
    device: torch.device  # device of the dense forms

    @property
    def is_causal(self) -> bool:
        """True for the causal mask with T = S, which fused kernels know."""
        return isinstance(self.mask, Mask) and self.mask.form == "causal" and self.query_len == self.key_len

    @property
    def is_per_key(self) -> bool:
        """True if all queries see the same keys, as with a padding mask or none."""
        mask = self.mask
        return mask is None or (not mask.per_query if isinstance(mask, Mask) else mask.shape[-2] == 1)

    @cached_property
    def allowed(self) -> Tensor | None:
        """The boolean matrix (B|1,H|1,T|1,S); None if everything is allowed."""
        if isinstance(self.mask, Mask):
            return self.mask.dense(self.query_len if self.mask.per_query else 1, self.key_len, self.device)
        return self.mask

    @cached_property
    def bias(self) -> Tensor | None:
        """The additive form of `allowed`."""
        return None if self.allowed is None else additive(self.allowed)

    @cached_property
    def empty(self) -> Tensor | None:
        """True for the rows (B|1,H|1,T|1,1) that may attend to nothing; None if there is none."""
        if isinstance(self.mask, Mask) and self.mask.form == "causal" and self.query_len <= self.key_len:
            return None
        return None if self.allowed is None else nothing_allowed(self.allowed)

    def for_queries(
        self, queries: Tensor | slice, keys: KeyRange | None = None, row: int | None = None
    ) -> Tensor | None:
        """`allowed` for some queries (indices from 0) and keys, in batch row `row` or in all rows."""
        mask = self.mask
        if mask is None:
            return None
        if isinstance(mask, Mask):
            index = torch.arange(self.query_len, device=self.device)
            index = index[queries] if mask.per_query else index[:1]  # one row stands for all where no query differs
            key_index = indices((0, self.key_len) if keys is None else keys).to(self.device)
            # query i is at key position S - T + i
            return mask.tile(index + self.key_len - self.query_len, key_index, self.key_len, row)
        part = mask if row is None or mask.shape[0] == 1 else mask[row : row + 1]
        part = part if part.shape[-2] == 1 else part[..., queries, :]
        return part if keys is None else take(part, keys, dim=-1)

    def reachable(self, first: int, last: int, row: int | None = None) -> KeyRange:
        """Keys outside of which the queries first ... last - 1 (indices from 0) see nothing."""
        if not isinstance(self.mask, Mask) or self.mask.reachable is None:
            return 0, self.key_len  # any key may be seen
        offset = self.key_len - self.query_len
        return self.mask.reachable(first + offset, last + offset, self.key_len, row)

    def unmasked(self, first: int, last: int, row: int | None = None) -> tuple[int, int]:
        """A range of keys that all of the queries first ... last - 1 (indices from 0) see; empty if none is known."""
        if not isinstance(self.mask, Mask) or self.mask.unmasked is None:
            return 0, 0  # none is known: every key is masked by its rule
        offset = self.key_len - self.query_len
        keys = self.mask.unmasked(first + offset, last + offset, self.key_len, row)
        return (0, 0) if isinstance(keys, Tensor) else keys  # kernels want a range here

    def n_matrices(self, row: int | None = None) -> int:
        """How many different (T,S) matrices the mask holds, in batch row `row` or in all rows."""
        if self.mask is None or self.is_per_key:
            return 1
        heads, rows = (self.mask.heads, self.mask.batch) if isinstance(self.mask, Mask) else self.mask.shape[1::-1]
        return heads * (rows if row is None else 1)  # a row has one of each head

    @property
    def per_row(self) -> bool:
        """True if the reachable keys differ between batch rows."""
        return isinstance(self.mask, Mask) and self.mask.per_row and self.mask.batch > 1

    def select(self, rows: Tensor) -> "PreparedMask":
        """The mask of these batch rows, in this order."""
        if self.allowed is None or self.allowed.shape[0] == 1:  # one for all rows needs no choice
            return self
        return PreparedMask(self.allowed.index_select(0, rows), self.query_len, self.key_len, self.device)


@dataclass(frozen=True)
class AttentionArgs:
    """What a kernel needs besides queries, keys and values; the fields are the arguments of `attend`."""

    mask: PreparedMask
    bias: Tensor | None  # (B|1,H|1,T|1,S), added to the scores after scaling
    value_bias: Tensor | None  # (T,S,Kv) or (B|1,H|1,T,S,Kv), weighted as values are
    relative: RelativeTerms | None
    scale: float
    dropout: float  # of weights, never of scores
    random: Randomness | None

    @property
    def only_biases(self) -> bool:
        """True if the position terms only add to the scores, which every kernel supports."""
        relative = self.relative
        return relative is None or (not relative.adds_values and relative.sparsifier is None)

    def score_bias(self, q: Tensor, k: Tensor) -> Tensor | None:
        """The sum of all terms added to the scores of queries (B,H,T,K) and keys (B,H,S,K): (B|1,H|1,T|1,S).

        None if there is none.
        """
        scores = None if self.relative is None else self.relative.scores(q * self.scale, k, self.scale)
        if self.bias is None or scores is None:
            return self.bias if scores is None else scores
        return self.bias + scores


def joined_masks(masks: Sequence[PreparedMask], rows: Sequence[int]) -> PreparedMask:
    """The masks of one query over the keys of several batches, of so many rows each, as one mask: (R,1,1,S).

    S is the largest number of keys; where a batch has fewer, the keys behind them are hidden.
    """
    key_len, device = max(mask.key_len for mask in masks), masks[0].device
    allowed = torch.zeros(sum(rows), 1, 1, key_len, dtype=torch.bool, device=device)  # (R,1,1,S)
    for part, mask in zip(allowed.split(list(rows)), masks):
        part[..., : mask.key_len] = True if mask.allowed is None else mask.allowed
    return PreparedMask(None if bool(allowed.all()) else allowed, 1, key_len, device)


def nothing_allowed(allowed: Tensor) -> Tensor | None:
    """True for the rows (...,1) that may attend to nothing; None if there is none."""
    empty = ~allowed.any(dim=-1, keepdim=True)
    return empty if bool(empty.any()) else None  # the common case is None: no work for kernels


def take(x: Tensor, keys: KeyRange, dim: int) -> Tensor:
    """The given indices of a dimension: a view for a range, a copy for a tensor of indices."""
    if isinstance(keys, Tensor):
        return x.index_select(dim, keys.to(x.device))
    return x if keys == (0, x.shape[dim]) else x.narrow(dim, keys[0], keys[1] - keys[0])


def prepare_mask(
    mask: "Mask | Tensor | PreparedMask | None", query_len: int, key_len: int, device: torch.device
) -> PreparedMask:
    """Prepare a mask for T queries and S keys.

    Args:
        mask: a Mask, a boolean tensor that broadcasts to (B,H,T,S), a mask that is already prepared, or None.
        query_len: T.
        key_len: S.
        device: device of the dense forms.

    Raises TypeError: the mask is not boolean. ValueError: the mask was made for another number of keys.
    """
    if isinstance(mask, PreparedMask):
        return mask
    if isinstance(mask, Mask):
        # a single query at the last position sees every key under the causal mask
        if mask.form == "full" or (mask.form == "causal" and query_len == 1):
            mask = None
        elif mask.key_len is not None and mask.key_len != key_len:
            raise ValueError(f"the mask {mask.name} was made for {mask.key_len} keys: got {key_len}")
    elif mask is not None:
        mask = check_boolean(mask)
        while mask.dim() < 4:
            mask = mask.unsqueeze(0)  # up to (B|1,H|1,T|1,S)
        if mask.shape[-1] not in (1, key_len):
            raise ValueError(f"a mask over {mask.shape[-1]} keys does not fit: got {key_len} keys")
        mask = mask.expand(*mask.shape[:-1], key_len)  # kernels index its keys
    return PreparedMask(mask, query_len, key_len, device)
