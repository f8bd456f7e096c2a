"""The rows of a batch as the reading pass takes them: real tokens under one another, rows of like length together."""

from dataclasses import dataclass, field
from itertools import groupby

import torch
from torch import Tensor

from atento.attention.lowering import LoweredMask
from atento.attention.multihead import PositionTerms

# The cost of attention in pairs of a query and a key, times the width D of the rows:
CALL = 1_750_000  # of a call by itself
_MOVE = 40  # of moving a token to a place in padded rows, and back


@dataclass
class Rows:
    """Rows of like length, the longest first, which lie under one another in the matrix of tokens.

    Attributes:
        span: their tokens.
        lengths: of each row.
        masks: of each layer.
        terms: of each layer.
        places: where the tokens are in rows padded to the longest, (N,); None: all rows are as long.
        tokens: (B·L,) the token at each place; at padding any token of the row.
    """

    span: slice
    lengths: list[int]
    masks: list[LoweredMask] = field(default_factory=list)
    terms: list[PositionTerms | None] = field(default_factory=list)
    places: Tensor | None = None
    tokens: Tensor | None = None

    def padded(self, x: Tensor) -> Tensor:
        """All tokens (N,D) -> the rows (B,L,D)."""
        tokens = x[self.span] if self.tokens is None else x.index_select(0, self.tokens)
        rows: Tensor = tokens.unflatten(0, (len(self.lengths), self.lengths[0]))
        return rows

    def real(self, x: Tensor) -> Tensor:
        """Rows (B,L,D) -> their tokens (N,D)."""
        return x.flatten(0, 1) if self.places is None else x.flatten(0, 1).index_select(0, self.places)


class Unpadded:
    """The N real tokens of rows (B,L) that are padded on the right, as `PackedStack` takes them: the longest row first.

    Attributes:
        lengths: (B,) of the rows, descending.
        positions: (1,N) of the tokens in their rows.
    """

    def __init__(self, real: Tensor) -> None:
        """`real`: (B,L), True = a real token."""
        self.lengths, self._order = real.sum(dim=1).sort(descending=True, stable=True)  # (B,) each
        self._real = real[self._order]  # (B,L), the longest row first
        self._columns = torch.arange(real.shape[1], device=real.device).expand_as(real)  # (B,L)
        self.positions = self._columns[self._real].unsqueeze(0)  # (1,N)

    def take(self, tensor: Tensor) -> Tensor:
        """(B,L) -> (1,N)."""
        return tensor[self._order][self._real].unsqueeze(0)

    def pad(self, x: Tensor) -> Tensor:
        """(N,D) -> (B,L,D), 0 at padding."""
        padded: Tensor = x.new_zeros(*self._real.shape, x.shape[-1])
        padded[self._order.unsqueeze(1).expand_as(self._real)[self._real], self.positions[0]] = x
        return padded


def groups_of(lengths: list[int], call: float) -> list[list[int]]:
    """The lengths of rows, each at least as long as the next, in groups that attend in one call.

    Rows of equal length attend together. Groups of few tokens are joined, and the shorter rows padded, where that costs
    less than another call, which costs as much as `call` pairs of a query and a key.
    """
    groups: list[list[int]] = []
    cost = 0.0  # of the last group
    for _, equal in groupby(lengths):
        rows = list(equal)
        own = call + len(rows) * rows[0] ** 2  # each query with each key
        if groups:
            longest, tokens = groups[-1][0], sum(groups[-1]) + sum(rows)
            together = call + (len(groups[-1]) + len(rows)) * longest**2 + _MOVE * tokens
            if together < cost + own:
                groups[-1] += rows
                cost = together
                continue
        groups.append(rows)
        cost = own
    return groups
