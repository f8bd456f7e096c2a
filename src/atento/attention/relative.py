"""Relative position schemes: what a pair of positions adds to its score, and to the value that is read.

See docs/notes.md#b10.

Nothing here is ever a whole (T,S) square unless a kernel asks for one: schemes know distances, and a kernel asks for
the strip of queries it is at.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor, nn

from atento.attention.key_ranges import Span


@dataclass(frozen=True)
class Places:
    """Where queries and keys stand: (T,) and (S,), or one row a batch row, (B,T) and (B,S).

    `consecutive`: both count up by one, so that there are only T + S - 1 distances to look up. `turned`: what turns
    queries back, told their positions, where rotary positions have turned them.
    """

    queries: Tensor
    keys: Tensor
    consecutive: bool
    turned: tuple[Callable[[Tensor, Tensor], Tensor], ...] = ()

    @staticmethod
    def of(query_len: int, key_len: int, device: torch.device | str = "cpu") -> "Places":
        """Query i at key S - T + i."""
        keys = torch.arange(key_len, device=device)
        return Places(torch.arange(key_len - query_len, key_len, device=device), keys, True)

    def part(self, queries: Tensor | slice, keys: Span | None = None, row: int | None = None) -> "Places":
        """Some queries (numbers from 0) and keys, of one batch row or all."""
        own, other = self.queries, self.keys
        if own.dim() == 2 and own.shape[0] > 1 and row is not None:  # one row of places serves every batch row
            own, other = own[row : row + 1], other[row : row + 1]
        own = own[..., queries]
        if keys is not None:
            other = other[..., keys.to(other.device)] if isinstance(keys, Tensor) else other[..., slice(*keys)]
        ranges = isinstance(queries, slice) and queries.step in (None, 1) and not isinstance(keys, Tensor)
        return Places(own, other, self.consecutive and ranges, self.turned)

    @cached_property
    def distances(self) -> Tensor:
        """Key minus query, (T,S) or (B,T,S): negative behind, positive ahead."""
        return self.keys.unsqueeze(-2) - self.queries.unsqueeze(-1)

    def unturned(self, q: Tensor) -> Tensor:
        """Queries (B,H,T,K) as they were before they were turned."""
        for back in reversed(self.turned):
            q = back(q, self.queries)
        return q

    def spread(self, at: Callable[[Tensor], Tensor]) -> Tensor:
        """A function of the distance, (...) -> (H,...), for every pair: (B or 1, H, T, S).

        Where positions are consecutive each distance is looked up once, and the rest is a matter of strides.
        """
        if not self.consecutive:
            found = at(self.distances)
            return found.unsqueeze(0) if self.distances.dim() == 2 else found.transpose(0, 1)
        t, s = len(self.queries), len(self.keys)
        if t == 0 or s == 0:
            return at(self.distances).unsqueeze(0)
        least = self.keys[0] - self.queries[-1]
        diagonals = at(least + torch.arange(t + s - 1, device=self.keys.device))  # (H,T+S-1)
        return sheared(diagonals, t).unsqueeze(0)


def sheared(diagonals: Tensor, t: int) -> Tensor:
    """(H,t+s-1), a number a distance from the last query and first key on -> (H,t,s), row by row in memory.

    The row is repeated and read on a slant: rows of a width less by one begin one number earlier each.
    """
    if t == 1:
        return diagonals.unsqueeze(-2)
    width = diagonals.shape[-1] - 1
    repeated = diagonals.unsqueeze(-2).expand(-1, t, -1).flatten(-2)
    slanted = repeated[:, t - 1 : t - 1 + t * width].view(-1, t, width)
    return slanted[..., : width + 2 - t]


class Relative(Protocol):
    """What a relative scheme answers; q (B,H,T,K) comes multiplied by `scale` already."""

    adds_values: bool

    def scores(self, q: Tensor, places: Places, scale: float) -> Tensor:
        """Added to the scores: broadcasts to (B,H,T,S)."""
        ...

    def values(self, weights: Tensor, places: Places) -> Tensor:
        """Added to the output: weights (B,H,T,S) -> (B,H,T,Kv); asked only where `adds_values`."""
        ...


class _OfDistance(nn.Module):
    """A number for each head and distance, added to the score."""

    adds_values = False
    scaled = False

    def at(self, distance: Tensor) -> Tensor:
        """distance (...) -> (H,...)."""
        raise NotImplementedError

    def scores(self, q: Tensor, places: Places, scale: float) -> Tensor:
        """(B or 1, H, T, S)."""
        found = places.spread(self.at)
        found = found.to(q.dtype) if found.dtype == torch.float64 else found  # no finer than the scores it is added to
        return found * scale if self.scaled else found

    def values(self, weights: Tensor, places: Places) -> Tensor:
        """Nothing is added to values."""
        raise NotImplementedError


def t5_buckets(distance: Tensor, n_buckets: int, max_distance: int, bidirectional: bool) -> Tensor:
    """The bucket of each distance (key minus query), as T5 counts them (Raffel et al. 2020, 2.1).

    Half the buckets hold one distance each, the others ever more, logarithmically up to `max_distance`; with
    `bidirectional` one half of all is for keys ahead, else keys ahead share the bucket of distance 0.
    """
    first = torch.zeros_like(distance)
    if bidirectional:
        n_buckets //= 2
        first = (distance > 0).to(distance.dtype) * n_buckets
        distance = distance.abs()
    else:
        distance = (-distance).clamp(min=0)
    exact = n_buckets // 2
    grown = torch.log(distance.clamp(min=1).float() / exact) / math.log(max_distance / exact) * (n_buckets - exact)
    far = (exact + grown.to(distance.dtype)).clamp(max=n_buckets - 1)
    return first + torch.where(distance < exact, distance, far)


class T5Bias(_OfDistance):
    """A learned number for each head and bucket of distances, added to the unscaled score (Raffel et al. 2020, 2.1).

    Raises:
        ValueError: fewer than 4 buckets, or a `max_distance` among those that have a bucket of their own.
    """

    def __init__(
        self, n_heads: int, n_buckets: int = 32, max_distance: int = 128, *, bidirectional: bool = True
    ) -> None:
        super().__init__()
        if n_buckets < 4:
            raise ValueError(f"`n_buckets` must be at least 4: got {n_buckets}")
        exact = n_buckets // 4 if bidirectional else n_buckets // 2
        if max_distance <= exact:
            raise ValueError(
                f"`max_distance` must be above {exact}; each distance below that has its own bucket: got {max_distance}"
            )
        self.n_buckets, self.max_distance, self.bidirectional = n_buckets, max_distance, bidirectional
        self.weight = nn.Parameter(torch.empty(n_buckets, n_heads))
        nn.init.normal_(self.weight, std=0.02)

    def at(self, distance: Tensor) -> Tensor:
        """distance (...) -> (H,...)."""
        buckets = t5_buckets(distance, self.n_buckets, self.max_distance, self.bidirectional)
        return self.weight.t()[:, buckets]


def alibi_slopes(n_heads: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """2^(-8i/n) for heads i = 1 ... n where n is a power of two; for others the paper's fill-in from 2n."""
    power = 2 ** math.floor(math.log2(n_heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    between = [2 ** (-4 * (i + 1) / power) for i in range(0, 2 * (n_heads - power), 2)]
    return torch.tensor(slopes + between, dtype=dtype)


class ALiBi(_OfDistance):
    """The score falls off with the distance, by a fixed slope a head (Press et al. 2022); nothing is learned."""

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.slopes: Tensor
        self.reset_buffers()

    def reset_buffers(self) -> None:
        """Make the slopes anew: they are not stored."""
        self.register_buffer("slopes", alibi_slopes(self.n_heads, torch.get_default_dtype()), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "ALiBi":
        """As of any module; slopes of another type are computed anew, not rounded from those before."""
        before = self.slopes.dtype
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.slopes.dtype != before and not self.slopes.is_meta:
            with torch.device("cpu"):
                slopes = alibi_slopes(self.n_heads, self.slopes.dtype)
            self.slopes = slopes.to(self.slopes.device)
        return self

    def at(self, distance: Tensor) -> Tensor:
        """distance (...) -> (H,...)."""
        slopes = self.slopes.to(torch.promote_types(self.slopes.dtype, torch.float32))  # distances outgrow bfloat16
        return -slopes.view(-1, *[1] * distance.dim()) * distance.abs()


class RelativeMatrix(_OfDistance):
    """softmax((QKᵀ + R) / √d_k): a learned number for each head and distance, farther ones than the last alike.

    See docs/notes.md#b4.

    `scaled=False` adds R after the scaling instead, as T5 does.
    """

    def __init__(self, n_heads: int, max_distance: int = 128, *, scaled: bool = True) -> None:
        super().__init__()
        self.max_distance, self.scaled = max_distance, scaled
        self.weight = nn.Parameter(torch.empty(2 * max_distance + 1, n_heads))
        nn.init.normal_(self.weight, std=0.02)

    def at(self, distance: Tensor) -> Tensor:
        """distance (...) -> (H,...)."""
        return self.weight.t()[:, _clipped(distance, self.max_distance)]


def _clipped(distance: Tensor, limit: int) -> Tensor:
    """0 ... 2·limit: the row of each distance in a table centred on distance 0, whatever the length of the text."""
    return distance.clamp(-limit, limit) + limit


class Shaw(nn.Module):
    """e_ij = q_i·(k_j + a_ij)/√K and y_i = Σ α_ij (v_j + b_ij), a and b vectors of the clipped distance.

    See docs/notes.md#b5.

    Shaw et al. 2018, equations 3 to 5; shared by all heads. Memory is that of the scores: no (T,S,K) tensor is made.
    Where rotary positions turn queries too, a_ij meets q_i as it was before: else it would depend on where i stands.
    """

    def __init__(self, d_head: int, max_distance: int = 16, *, values: bool = True) -> None:
        super().__init__()
        self.max_distance, self.adds_values = max_distance, values
        self.keys = nn.Parameter(torch.empty(2 * max_distance + 1, d_head))
        nn.init.normal_(self.keys, std=d_head**-0.5)
        self.value_table = nn.Parameter(torch.empty(2 * max_distance + 1, d_head)) if values else None
        if self.value_table is not None:
            nn.init.normal_(self.value_table, std=d_head**-0.5)

    def scores(self, q: Tensor, places: Places, scale: float) -> Tensor:
        """q_i · a_ij: one product with the table, then each pair picks its distance. (B,H,T,S)."""
        products = places.unturned(q) @ self.keys.to(q.dtype).t()  # (B,H,T,2c+1)
        return products.gather(-1, self._index(places, q.shape))

    def values(self, weights: Tensor, places: Places) -> Tensor:
        """Σ_j α_ij b_ij: weights summed by distance, then one product with the table. (B,H,T,Kv)."""
        assert self.value_table is not None
        by_distance = weights.new_zeros(*weights.shape[:-1], len(self.value_table))
        by_distance = by_distance.scatter_add(-1, self._index(places, weights.shape), weights)
        return by_distance @ self.value_table.to(weights.dtype)

    def _index(self, places: Places, shape: torch.Size) -> Tensor:
        """The row of each pair in the tables, (B,H,T,S) without copies."""
        index = _clipped(places.distances, self.max_distance)
        index = index if index.dim() == 2 else index.unsqueeze(1)  # (B,1,T,S)
        return index.expand(*shape[:-1], index.shape[-1])


class Gated(nn.Module):
    """A relative scheme for some heads only, or with a learned gate a head that begins at 1 (docs/notes.md#b7)."""

    def __init__(self, scheme: nn.Module, n_heads: int, heads: tuple[int, ...] | None, learned: bool) -> None:
        super().__init__()
        self.scheme, self.n_heads, self.heads = scheme, n_heads, heads
        self.gate = nn.Parameter(torch.ones(n_heads)) if learned else None
        self.adds_values: bool = scheme.adds_values  # type: ignore[assignment]

    def _factor(self, like: Tensor) -> Tensor:
        chosen = torch.ones(self.n_heads) if self.heads is None else torch.zeros(self.n_heads)
        if self.heads is not None:
            chosen[list(self.heads)] = 1.0
        chosen = chosen.to(like)
        factor = chosen if self.gate is None else chosen * self.gate.to(like.dtype)
        return factor.view(-1, 1, 1)

    def scores(self, q: Tensor, places: Places, scale: float) -> Tensor:
        """(B or 1, H, T, S)."""
        found: Tensor = self.scheme.scores(q, places, scale)  # type: ignore[operator]
        return found * self._factor(found)

    def values(self, weights: Tensor, places: Places) -> Tensor:
        """(B,H,T,Kv)."""
        found: Tensor = self.scheme.values(weights, places)  # type: ignore[operator]
        return found * self._factor(found)


class Sparsifier(Protocol):
    """What makes weights of scores in place of softmax (`sparse`)."""

    def weigh(self, scores: Tensor, places: Places) -> Tensor:
        """scores (B,H,T,S), -inf where a key may not be seen -> weights; a row that sees nothing gives 0."""
        ...

    def cost(self) -> Tensor | None:
        """What is added to the loss for the links it keeps; None where they are free."""
        ...

    def learned(self) -> dict[str, Tensor]:
        """What each head has learned, by name, (H,) each; for reports."""
        ...


@dataclass(frozen=True)
class Relations:
    """What an attention layer owes to the places of its queries and keys, as kernels ask for it.

    That is the sum of its relative schemes, and, where weights are sparse, what makes them of the scores.
    """

    schemes: tuple[Relative, ...]
    places: Places
    sparsifier: Sparsifier | None = None

    def part(self, queries: Tensor | slice, keys: Span | None = None, row: int | None = None) -> "Relations":
        """For some queries (numbers from 0) and keys, of one batch row or all."""
        return Relations(self.schemes, self.places.part(queries, keys, row), self.sparsifier)

    def scores(self, q: Tensor, scale: float) -> Tensor | None:
        """Added to the scores of q (B,H,T,K), which is scaled already: broadcasts to (B,H,T,S); None: nothing is."""
        total: Tensor | None = None
        for scheme in self.schemes:
            found = scheme.scores(q, self.places, scale)
            total = found if total is None else total + found
        return total

    def diagonals(self, scale: float) -> Tensor | None:
        """What schemes of the distance alone add, (H,T+S-1) from the last query and first key on; None: nothing."""
        total: Tensor | None = None
        places = self.places
        if places.consecutive and len(places.queries) and len(places.keys):
            count = len(places.queries) + len(places.keys) - 1
            distance = places.keys[0] - places.queries[-1] + torch.arange(count, device=places.keys.device)
            for scheme in self.schemes:
                if isinstance(scheme, _OfDistance):
                    found = scheme.at(distance) * (scale if scheme.scaled else 1.0)
                    total = found if total is None else total + found
        return total

    @property
    def beside_diagonals(self) -> "Relations | None":
        """All but what `diagonals` gives."""
        if not (self.places.consecutive and len(self.places.queries) and len(self.places.keys)):
            return self
        rest = tuple(scheme for scheme in self.schemes if not isinstance(scheme, _OfDistance))
        return Relations(rest, self.places, self.sparsifier) if rest or self.sparsifier is not None else None

    @property
    def adds_values(self) -> bool:
        """True if some scheme adds to values too, which fused kernels do not know."""
        return any(scheme.adds_values for scheme in self.schemes)

    def values(self, weights: Tensor) -> Tensor | None:
        """Added to the output, (B,H,T,Kv), from weights (B,H,T,S)."""
        total: Tensor | None = None
        for scheme in self.schemes:
            if scheme.adds_values:
                found = scheme.values(weights, self.places)
                total = found if total is None else total + found
        return total

    def parameters(self) -> list[Tensor]:
        """What the schemes and the sparsifier learn, each once."""
        found: dict[int, Tensor] = {}
        parts: tuple[object, ...] = (*self.schemes, self.sparsifier)
        for part in parts:
            if isinstance(part, nn.Module):
                found |= {id(one): one for one in part.parameters() if one.requires_grad}
        return list(found.values())
