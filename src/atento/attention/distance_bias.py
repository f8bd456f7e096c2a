"""What relative schemes give each distance, looked up once a call, spread over strips, and its gradient gathered."""

import torch
from torch import Tensor

from atento.attention.key_ranges import Span
from atento.attention.relative import Relations, sheared


class Diagonals:
    """A number for each head and distance, (H,T+S-1), where positions are consecutive; its gradient adds up beside it.

    `found` has the graph back to what the schemes learn, if `learns`; None where no scheme is of the distance alone.
    """

    def __init__(self, relations: Relations | None, scale: float, lengths: tuple[int, int], *, learns: bool) -> None:
        self.query_len = lengths[0]
        with torch.set_grad_enabled(learns):
            self.found = None if relations is None else relations.diagonals(scale)
        self.values = None if self.found is None else self.found.detach()
        self.gradient = torch.zeros_like(self.values) if learns and self.values is not None else None

    def add(self, scores: Tensor, queries: slice, keys: Span, heads: slice) -> None:
        """Add to the scores (b,h,t,s) of some queries, keys and heads, in place."""
        if self.values is None:
            return
        own, (t, s) = self.values[heads], scores.shape[-2:]
        if isinstance(keys, Tensor):
            scores += own[:, self._places(queries, keys)]
        else:
            lowest = self._lowest(queries, keys)
            scores += sheared(own[:, lowest : lowest + t + s - 1], t)

    def take(self, dscores: Tensor, queries: slice, keys: Span, heads: slice) -> None:
        """Add up the gradient of those scores by distance."""
        if self.gradient is None:
            return
        total, dscores = self.gradient[heads], dscores.sum(dim=0)  # (h,t,s)
        if isinstance(keys, Tensor):
            total.index_add_(-1, self._places(queries, keys).flatten(), dscores.flatten(1))
            return
        h, t, s = dscores.shape
        width, lowest = t + s - 1, self._lowest(queries, keys)
        slanted = dscores.new_zeros(h, t, width)  # each row moved by one, so that a distance is a column
        slanted.as_strided((h, t, s), (t * width, width - 1, 1), t - 1).copy_(dscores)
        total[:, lowest : lowest + width] += slanted.sum(dim=-2)

    def _lowest(self, queries: slice, keys: tuple[int, int]) -> int:
        """Where the distance of the last of those queries to the first of those keys stands."""
        return int(keys[0] - queries.stop + self.query_len)

    def _places(self, queries: slice, keys: Tensor) -> Tensor:
        """Where the distance of each pair stands, (t,s)."""
        at = torch.arange(queries.start, queries.stop, device=keys.device)
        assert self.values is not None
        return (keys - at.unsqueeze(-1) + self.query_len - 1).to(self.values.device)
