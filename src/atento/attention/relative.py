"""Relative position schemes, which add to scores and values: T5, ALiBi, Shaw, a learned matrix (docs/notes.md#b10)."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from atento.attention.relative_terms import DistanceScheme, QueryKeyPositions, RelativeScheme


def t5_buckets(distance: Tensor, n_buckets: int, max_distance: int, bidirectional: bool) -> Tensor:
    """The T5 bucket of each distance, key minus query (Raffel et al. 2020, section 2.1).

    Half of the buckets hold one distance each. The others grow logarithmically up to `max_distance`; larger distances
    share the last bucket. With `bidirectional`, one half of all buckets is for later keys; otherwise later keys share
    the bucket of distance 0.

    Args:
        distance: (...), integers.
        n_buckets: number of buckets.
        max_distance: the distance from which all share one bucket.
        bidirectional: whether later keys have buckets of their own.

    Returns:
        Bucket numbers from 0, (...).
    """
    first = torch.zeros_like(distance)
    if bidirectional:
        n_buckets //= 2  # half for each direction
        first = (distance > 0).to(distance.dtype) * n_buckets
        distance = distance.abs()
    else:
        distance = (-distance).clamp(min=0)  # later keys: 0
    exact = n_buckets // 2  # distances with a bucket each
    grown = torch.log(distance.clamp(min=1).float() / exact) / math.log(max_distance / exact) * (n_buckets - exact)
    logarithmic = (exact + grown.to(distance.dtype)).clamp(max=n_buckets - 1)  # rounded down, as T5 does
    return first + torch.where(distance < exact, distance, logarithmic)  # the other direction's half begins at `first`


class T5Bias(DistanceScheme):
    """Learned bias for each head and bucket of distances (Raffel et al. 2020, section 2.1).

    It is added to the scores as it is; `scale` does not multiply it.

    Raises:
        ValueError: fewer than 4 buckets, or `max_distance` not above the distances that have a bucket of their own.
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
        self.weight = nn.Parameter(nn.init.normal_(torch.empty(n_buckets, n_heads), std=0.02))

    def at(self, distance: Tensor) -> Tensor:
        """Biases of the distances: (...) -> (H,...)."""
        buckets = t5_buckets(distance, self.n_buckets, self.max_distance, self.bidirectional)
        return self.weight.t()[:, buckets]  # (buckets,H) -> (H,buckets) -> (H,...)


def alibi_slopes(n_heads: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """ALiBi slopes (H,): 2^(-8i/n) for heads i = 1 ... n if n is a power of two.

    Otherwise the slopes of the next lower power of two, then every second slope of twice that power, as in the paper.
    """
    power = 2 ** math.floor(math.log2(n_heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]  # 2^(-8/n), squared, cubed ...
    between = [2 ** (-4 * (i + 1) / power) for i in range(0, 2 * (n_heads - power), 2)]  # of 2·power heads, odd ones
    return torch.tensor(slopes + between, dtype=dtype)


class ALiBi(DistanceScheme):
    """Attention with linear biases: -slope · distance, with a fixed slope for each head (Press et al. 2022)."""

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.slopes: Tensor
        self.reset_buffers()

    def reset_buffers(self) -> None:
        """Compute the slopes again; they are not saved with the weights."""
        self.register_buffer("slopes", alibi_slopes(self.n_heads, torch.get_default_dtype()), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "ALiBi":
        """Apply `fn` as any module does; for a new dtype compute the slopes again instead of rounding them."""
        before = self.slopes.dtype
        nn.Module._apply(self, fn, recurse)
        if self.slopes.dtype != before and not self.slopes.is_meta:
            with torch.device("cpu"):
                slopes = alibi_slopes(self.n_heads, self.slopes.dtype)
            self.slopes = slopes.to(self.slopes.device)
        return self

    def at(self, distance: Tensor) -> Tensor:
        """Biases of the distances: (...) -> (H,...)."""
        slopes = self.slopes.to(torch.promote_types(self.slopes.dtype, torch.float32))  # bfloat16 rounds long distances
        return -slopes.view(-1, *[1] * distance.dim()) * distance.abs()  # (H,...)


class RelativeMatrix(DistanceScheme):
    """Learned matrix R of relative positions in softmax((QKᵀ + R) / √d_k) (docs/notes.md#b4).

    R has one value for each head and distance; distances beyond `max_distance` share the value of `max_distance`.
    `scaled=False` adds R after the scaling, as T5 does.
    """

    def __init__(self, n_heads: int, max_distance: int = 128, *, scaled: bool = True) -> None:
        super().__init__()
        self.max_distance, self.scaled = max_distance, scaled
        rows = 2 * max_distance + 1  # -max ... max, and 0
        self.weight = nn.Parameter(nn.init.normal_(torch.empty(rows, n_heads), std=0.02))

    def at(self, distance: Tensor) -> Tensor:
        """Biases of the distances: (...) -> (H,...)."""
        return self.weight.t()[:, _clipped(distance, self.max_distance)]  # (2m+1,H) -> (H,2m+1) -> (H,...)


def _clipped(distance: Tensor, limit: int) -> Tensor:
    """The row of each distance, 0 ... 2·limit, in a table centred on distance 0."""
    return distance.clamp(-limit, limit) + limit


class Shaw(nn.Module):
    """Relative position vectors on keys and values (Shaw et al. 2018, equations 3 to 5; docs/notes.md#b5).

    e_ij = q_i·(k_j + a_ij)/√K and y_i = Σ α_ij (v_j + b_ij), where a and b are learned vectors of the clipped
    distance, shared by all heads. No (T,S,K) tensor is made. If rotary positions rotate the queries too, a_ij is
    multiplied with the query before rotation; otherwise the term would depend on the position of the query.
    """

    def __init__(self, d_head: int, max_distance: int = 16, *, values: bool = True) -> None:
        super().__init__()
        self.max_distance, self.adds_values = max_distance, values
        rows, std = 2 * max_distance + 1, d_head**-0.5  # q·a then begins about as large as a number of q
        self.keys = nn.Parameter(nn.init.normal_(torch.empty(rows, d_head), std=std))
        self.value_table = nn.Parameter(nn.init.normal_(torch.empty(rows, d_head), std=std)) if values else None

    def scores(self, q: Tensor, k: Tensor, positions: QueryKeyPositions, scale: float) -> Tensor:
        """q_i · a_ij, (B,H,T,S): one product with the table, then a gather by distance."""
        products = positions.unrotated(q) @ self.keys.to(q.dtype).t()  # (B,H,T,2c+1)
        return products.gather(-1, self._index(positions, q.shape))  # (B,H,T,S)

    def values(self, weights: Tensor, positions: QueryKeyPositions) -> Tensor:
        """Σ_j α_ij b_ij, (B,H,T,Kv): the weights summed by distance, then one product with the table."""
        assert self.value_table is not None
        by_distance = weights.new_zeros(*weights.shape[:-1], len(self.value_table))  # (B,H,T,2c+1)
        by_distance = by_distance.scatter_add(-1, self._index(positions, weights.shape), weights)
        return by_distance @ self.value_table.to(weights.dtype)  # (B,H,T,2c+1) by (2c+1,Kv)

    def _index(self, positions: QueryKeyPositions, shape: torch.Size) -> Tensor:
        """The row of each pair in the tables, an expanded view of shape (B,H,T,S)."""
        index = _clipped(positions.distances, self.max_distance)
        index = index if index.dim() == 2 else index.unsqueeze(1)  # (B,1,T,S)
        return index.expand(*shape[:-1], index.shape[-1])


class Gated(nn.Module):
    """A relative scheme for some heads only, or with a learned gate for each head (docs/notes.md#b7).

    Gates begin at 1.
    """

    def __init__(self, scheme: RelativeScheme, n_heads: int, heads: tuple[int, ...] | None, learned: bool) -> None:
        super().__init__()
        self.scheme, self.n_heads, self.heads = scheme, n_heads, heads
        self.gate = nn.Parameter(torch.ones(n_heads)) if learned else None
        self.adds_values: bool = scheme.adds_values

    def _factor(self, like: Tensor) -> Tensor:
        enabled = torch.zeros(self.n_heads)
        enabled[slice(None) if self.heads is None else list(self.heads)] = 1.0  # other heads get no term
        enabled = enabled.to(like)
        factor = enabled if self.gate is None else enabled * self.gate.to(like.dtype)
        return factor.view(-1, 1, 1)  # (H,1,1)

    def scores(self, q: Tensor, k: Tensor, positions: QueryKeyPositions, scale: float) -> Tensor:
        """The gated term of the scores, (B or 1, H, T, S)."""
        term: Tensor = self.scheme.scores(q, k, positions, scale)
        return term * self._factor(term)

    def values(self, weights: Tensor, positions: QueryKeyPositions) -> Tensor:
        """The gated term of the output, (B,H,T,Kv)."""
        term: Tensor = self.scheme.values(weights, positions)
        return term * self._factor(term)
