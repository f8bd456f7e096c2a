"""What relative positions add to an attention call: the interfaces and sums that kernels use.

The schemes themselves (`T5Bias`, `Shaw`, ...) are in `relative.py`. A scheme is a function of the distance between a
query and a key. A kernel asks for the queries that it computes, so no (T,S) matrix is made unless a kernel
needs one.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor, nn

from atento.attention.algebra import KeyRange
from atento.attention.dropout import Randomness


@dataclass(frozen=True)
class QueryKeyPositions:
    """Positions of queries and keys: (T,) and (S,), or (B,T) and (B,S) if they differ by batch row."""

    queries: Tensor  # positions of the queries
    keys: Tensor  # positions of the keys
    consecutive: bool  # True if both count up by one, so that there are only T + S - 1 distances
    # functions of (queries, positions) that undo rotary positions, in the order of rotation
    inverse_rotations: tuple[Callable[[Tensor, Tensor], Tensor], ...] = ()

    @staticmethod
    def arange(query_len: int, key_len: int, device: torch.device | str = "cpu") -> "QueryKeyPositions":
        """Keys at 0 ... S - 1 and query i at S - T + i, as in a sequence or in a cached step."""
        keys = torch.arange(key_len, device=device)
        return QueryKeyPositions(torch.arange(key_len - query_len, key_len, device=device), keys, True)  # consecutive

    def for_queries(
        self, queries: Tensor | slice, keys: KeyRange | None = None, row: int | None = None
    ) -> "QueryKeyPositions":
        """The positions of some queries (indices from 0) and keys, in batch row `row` or in all rows."""
        query_positions, key_positions = self.queries, self.keys
        if query_positions.dim() == 2 and query_positions.shape[0] > 1 and row is not None:
            query_positions, key_positions = query_positions[row : row + 1], key_positions[row : row + 1]
        query_positions = query_positions[..., queries]
        if isinstance(keys, Tensor):
            key_positions = key_positions[..., keys.to(key_positions.device)]
        elif keys is not None:
            key_positions = key_positions[..., slice(*keys)]
        # positions stay consecutive only where queries and keys are ranges
        ranges = isinstance(queries, slice) and queries.step in (None, 1) and not isinstance(keys, Tensor)
        return QueryKeyPositions(query_positions, key_positions, self.consecutive and ranges, self.inverse_rotations)

    @cached_property
    def distances(self) -> Tensor:
        """Key position minus query position, (T,S) or (B,T,S): negative for earlier keys, positive for later ones."""
        return self.keys.unsqueeze(-2) - self.queries.unsqueeze(-1)

    def unrotated(self, x: Tensor, *, keys: bool = False) -> Tensor:
        """Queries (B,H,T,K), or keys, as they were before rotary positions rotated them. Same shape."""
        for inverse in reversed(self.inverse_rotations):
            x = inverse(x, self.keys if keys else self.queries)  # the last rotation is undone first
        return x

    def spread(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """A function of the distance, (...) -> (H,...), evaluated for every pair: (B or 1, H, T, S).

        For consecutive positions it is evaluated once for each distance, and the pairs are a strided view.
        """
        if not self.consecutive:
            by_pair = function(self.distances)
            return by_pair.unsqueeze(0) if self.distances.dim() == 2 else by_pair.transpose(0, 1)
        t, s = len(self.queries), len(self.keys)
        if t == 0 or s == 0:
            return function(self.distances).unsqueeze(0)
        lowest = self.keys[0] - self.queries[-1]  # of the last query and the first key
        by_distance = function(lowest + torch.arange(t + s - 1, device=self.keys.device))  # (H,T+S-1)
        return toeplitz(by_distance, t).unsqueeze(0)


def toeplitz(by_distance: Tensor, t: int) -> Tensor:
    """Values by distance (H,t+s-1), from the last query and first key on, as a matrix of pairs (H,t,s).

    The vector is repeated t times and viewed with rows one shorter than the vector. This shifts each row by one, so
    no index tensor is needed.
    """
    if t == 1:
        return by_distance.unsqueeze(-2)
    width = by_distance.shape[-1] - 1
    repeated = by_distance.unsqueeze(-2).expand(-1, t, -1).flatten(-2)  # (H,t·(width+1))
    shifted = repeated[:, t - 1 : t - 1 + t * width].view(-1, t, width)  # row r begins at distance t - 1 - r
    return shifted[..., : width + 2 - t]  # s columns


class RelativeScheme(Protocol):
    """A relative position scheme."""

    adds_values: bool

    def scores(self, q: Tensor, k: Tensor, positions: QueryKeyPositions, scale: float) -> Tensor:
        """The term added to the scores of queries q (B,H,T,K) and keys k (B,H,S,K); broadcasts to (B,H,T,S).

        The queries are already multiplied by `scale`, the keys are not.
        """

    def values(self, weights: Tensor, positions: QueryKeyPositions) -> Tensor:
        """The term added to the output: weights (B,H,T,S) -> (B,H,T,Kv). Called only if `adds_values`."""

    def parameters(self) -> Iterable[Tensor]:
        """The tensors through which gradients reach what the scheme has learned."""


class DistanceScheme(nn.Module):
    """Base of the schemes that add one number for each head and distance to the scores."""

    adds_values = False
    scaled = False

    def at(self, distance: Tensor) -> Tensor:
        """Values of the distances: (...) -> (H,...)."""
        raise NotImplementedError

    def scores(self, q: Tensor, k: Tensor, positions: QueryKeyPositions, scale: float) -> Tensor:
        """The values of all pairs, (B or 1, H, T, S)."""
        by_pair = positions.spread(self.at)
        by_pair = by_pair.to(q.dtype) if by_pair.dtype == torch.float64 else by_pair  # no wider than the scores
        return by_pair * scale if self.scaled else by_pair

    def values(self, weights: Tensor, positions: QueryKeyPositions) -> Tensor:
        """Never called: these schemes add nothing to the values."""
        raise NotImplementedError


Projections = Callable[[Tensor, Randomness | None], tuple[Tensor, Tensor]]
"""The projections of a layer, applied to vectors of positions: (N,D) -> queries and keys, (H,N,K) each."""


class ProjectedScheme(nn.Module):
    """Base of the schemes whose vectors pass the projections of the layer in which they act."""

    def projected(self, project: Projections, random: Randomness | None = None) -> RelativeScheme:
        """The scheme with its vectors projected, for one call of a layer."""
        raise NotImplementedError


class Sparsifier(Protocol):
    """Computes attention weights from scores in place of softmax (see `sparse.SparseAttention`)."""

    def weigh(self, scores: Tensor, positions: QueryKeyPositions) -> Tensor:
        """scores (B,H,T,S), -inf for masked keys -> weights (B,H,T,S); a fully masked row gives 0."""


@dataclass(frozen=True)
class RelativeTerms:
    """The relative position schemes of an attention layer, the positions they apply to, and its sparsifier."""

    schemes: tuple[RelativeScheme, ...]
    positions: QueryKeyPositions
    sparsifier: Sparsifier | None = None

    def for_queries(
        self, queries: Tensor | slice, keys: KeyRange | None = None, row: int | None = None
    ) -> "RelativeTerms":
        """The terms of some queries (indices from 0) and keys, in batch row `row` or in all rows."""
        return RelativeTerms(self.schemes, self.positions.for_queries(queries, keys, row), self.sparsifier)

    def projected(self, project: Projections, random: Randomness | None = None) -> "RelativeTerms":
        """The terms for one call of a layer with these projections; `random` is the randomness of dropout."""
        if not any(isinstance(scheme, ProjectedScheme) for scheme in self.schemes):
            return self
        schemes = tuple(
            scheme.projected(project, random) if isinstance(scheme, ProjectedScheme) else scheme
            for scheme in self.schemes
        )
        return RelativeTerms(schemes, self.positions, self.sparsifier)

    def scores(self, q: Tensor, k: Tensor, scale: float) -> Tensor | None:
        """The sum of what the schemes add to the scores; broadcasts to (B,H,T,S). None if there are no schemes.

        Args:
            q: queries (B,H,T,K), already multiplied by `scale`.
            k: keys (B,H,S,K).
            scale: the factor of the scores.
        """
        return _total(scheme.scores(q, k, self.positions, scale) for scheme in self.schemes)

    def distance_bias(self, scale: float) -> Tensor | None:
        """The sum of the schemes that depend on the distance alone, (H,T+S-1), for consecutive positions.

        The first value is that of the last query and the first key. None if there is no such scheme.
        """
        if not self._has_distances:
            return None
        queries, keys = self.positions.queries, self.positions.keys
        distance = keys[0] - queries[-1] + torch.arange(len(queries) + len(keys) - 1, device=keys.device)
        schemes = (scheme for scheme in self.schemes if isinstance(scheme, DistanceScheme))
        return _total(scheme.at(distance) * (scale if scheme.scaled else 1.0) for scheme in schemes)  # (H,T+S-1) each

    @property
    def without_distance_bias(self) -> "RelativeTerms | None":
        """The terms that `distance_bias` does not cover; None if it covers all of them."""
        if not self._has_distances:
            return self
        remaining = tuple(scheme for scheme in self.schemes if not isinstance(scheme, DistanceScheme))
        return (
            RelativeTerms(remaining, self.positions, self.sparsifier)
            if remaining or self.sparsifier is not None
            else None
        )

    @property
    def _has_distances(self) -> bool:
        positions = self.positions
        return positions.consecutive and len(positions.queries) > 0 and len(positions.keys) > 0

    @property
    def adds_values(self) -> bool:
        """True if a scheme adds to the values too, which fused kernels do not support."""
        return any(scheme.adds_values for scheme in self.schemes)

    def values(self, weights: Tensor) -> Tensor | None:
        """The sum of what the schemes add to the output: weights (B,H,T,S) -> (B,H,T,Kv). None if nothing is added."""
        return _total(scheme.values(weights, self.positions) for scheme in self.schemes if scheme.adds_values)

    def parameters(self) -> list[Tensor]:
        """The tensors of the schemes and the sparsifier that need gradients, each once."""
        parameters: dict[int, Tensor] = {}
        learners = [*self.schemes, *([self.sparsifier] if isinstance(self.sparsifier, nn.Module) else [])]
        for learner in learners:
            parameters |= {id(parameter): parameter for parameter in learner.parameters() if parameter.requires_grad}
        return list(parameters.values())


def _total(terms: Iterator[Tensor]) -> Tensor | None:
    """The sum of the terms; None if there are none."""
    first = next(terms, None)
    return first if first is None else sum(terms, start=first)


class DistanceBias:
    """`RelativeTerms.distance_bias` of a full call, added block by block; its gradient is summed the same way.

    `table` (H,T+S-1) has the graph back to the parameters of the schemes if `learns`; it is None if no scheme depends
    on the distance alone.
    """

    def __init__(self, relative: RelativeTerms | None, scale: float, lengths: tuple[int, int], *, learns: bool) -> None:
        self.query_len = lengths[0]
        with torch.set_grad_enabled(learns):
            self.table = None if relative is None else relative.distance_bias(scale)
        self.values = None if self.table is None else self.table.detach()  # without a graph, for the blocks
        self.gradient = torch.zeros_like(self.values) if learns and self.values is not None else None

    def add_to(self, scores: Tensor, queries: slice, keys: KeyRange, heads: slice) -> None:
        """Add the bias to scores (b,h,t,s) of some queries, keys and heads, in place."""
        if self.values is None:
            return
        values, (t, s) = self.values[heads], scores.shape[-2:]  # (h,T+S-1)
        if isinstance(keys, Tensor):
            scores += values[:, self._index(queries, keys)]  # (h,t,s)
        else:
            lowest = self._lowest(queries, keys)
            scores += toeplitz(values[:, lowest : lowest + t + s - 1], t)  # (h,t,s)

    def accumulate_gradient(self, dscores: Tensor, queries: slice, keys: KeyRange, heads: slice) -> None:
        """Add the gradient of those scores to `gradient`, summed by distance."""
        if self.gradient is None:
            return
        total, dscores = self.gradient[heads], dscores.sum(dim=0)  # (h,t,s)
        if isinstance(keys, Tensor):
            total.index_add_(-1, self._index(queries, keys).flatten(), dscores.flatten(1))  # (h,t·s)
            return
        h, t, s = dscores.shape
        width, lowest = t + s - 1, self._lowest(queries, keys)
        shifted = dscores.new_zeros(h, t, width)  # each row is shifted by one, so that a column is one distance
        shifted.as_strided((h, t, s), (t * width, width - 1, 1), t - 1).copy_(dscores)
        total[:, lowest : lowest + width] += shifted.sum(dim=-2)  # (h,t,t+s-1) -> (h,t+s-1)

    def _lowest(self, queries: slice, keys: tuple[int, int]) -> int:
        """The index in `table` of the distance from the last of these queries to the first of these keys."""
        return int(keys[0] - queries.stop + self.query_len)  # 0: the last query and key 0

    def _index(self, queries: slice, keys: Tensor) -> Tensor:
        """The index in `table` of the distance of each pair, (t,s)."""
        query_index = torch.arange(queries.start, queries.stop, device=keys.device)
        assert self.values is not None
        return (keys - query_index.unsqueeze(-1) + self.query_len - 1).to(self.values.device)
