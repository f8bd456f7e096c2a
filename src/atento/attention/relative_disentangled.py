"""Disentangled positions: scores of content with relative positions, in both directions (He et al. 2021, DeBERTa)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from atento.attention.dropout import Randomness, dropout
from atento.attention.relative_terms import ProjectedScheme, Projections, QueryKeyPositions


def log_buckets(distance: Tensor, n_buckets: int, max_distance: int) -> Tensor:
    """The DeBERTa bucket of each distance, with the sign of the distance (He et al. 2021; the code of version 2).

    Distances up to half of `n_buckets` have a bucket each. The others grow logarithmically, so that the distance
    `max_distance` - 1 is in the last bucket, `n_buckets` - 1; larger distances are in later ones.

    Args:
        distance: (...), integers.
        n_buckets: number of buckets on each side.
        max_distance: number of distances on each side.

    Returns:
        (...), integers.
    """
    middle = n_buckets // 2
    length = distance.abs().clamp(min=middle)  # shorter ones are chosen below, and log stays finite
    grown = torch.log(length / middle) / torch.log(torch.tensor((max_distance - 1) / middle)) * (middle - 1)
    far = (torch.ceil(grown) + middle).to(distance.dtype) * distance.sign()  # rounded up, as in the code of version 2
    return torch.where(distance.abs() <= middle, distance, far)


class Disentangled(ProjectedScheme):
    """Learned vectors of relative positions with which queries and keys are compared (He et al. 2021, section 3.1).

    The score of query i and key j is (q_i·k_j + q_i·K_r + k_j·Q_r) · scale, where r is the bucket of i - j and K_r and
    Q_r are the vector of r behind the key and query projections of the layer. DeBERTa's scale is 1/√(3K). All layers
    share the vectors, and in DeBERTa v2 and v3 positions and contents share the projections. No (T,S,K) tensor is made.

    Args:
        d_model: width D of the vectors.
        max_distance: number of distances on each side; larger distances share the last vector.
        n_buckets: number of buckets on each side (`log_buckets`); 0 gives each distance its own.
        norm_eps: the ε of a layer norm of the vectors; None: no norm.
        dropout: share of the vectors' elements set to 0 in training, drawn anew in each layer.

    Raises:
        ValueError: `n_buckets` is neither 0 nor from 4 to `max_distance`.
    """

    def __init__(
        self,
        d_model: int,
        max_distance: int = 512,
        n_buckets: int = 256,
        *,
        norm_eps: float | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if n_buckets and not 4 <= n_buckets <= max_distance:
            raise ValueError(f"`n_buckets` must be 0, or from 4 to `max_distance`, {max_distance}: got {n_buckets}")
        self.max_distance, self.n_buckets, self.dropout = max_distance, n_buckets, dropout
        self.weight = nn.Parameter(torch.empty(2 * (n_buckets or max_distance), d_model))  # both directions
        nn.init.normal_(self.weight, std=0.02)
        self.norm = None if norm_eps is None else nn.LayerNorm(d_model, eps=norm_eps)

    def projected(self, project: Projections, random: Randomness | None = None) -> "ProjectedDisentangled":
        """The vectors behind the projections of a layer."""
        vectors = self.weight if self.norm is None else self.norm(self.weight)
        queries, keys = project(dropout(vectors, self.dropout, random) if self.training else vectors, random)
        return ProjectedDisentangled(queries, keys, self.max_distance, self.n_buckets)  # (H,2c,K) each


@dataclass(frozen=True)
class ProjectedDisentangled:
    """`Disentangled` in one call of a layer."""

    queries: Tensor  # the vectors of relative positions as queries, (H,2c,K)
    keys: Tensor  # the vectors of relative positions as keys, (H,2c,K)
    max_distance: int  # as in `Disentangled`
    n_buckets: int  # as in `Disentangled`
    adds_values = False

    def parameters(self) -> tuple[Tensor, Tensor]:
        """The projected vectors; autograd goes on from them to the vectors and the projections."""
        return self.queries, self.keys

    def scores(self, q: Tensor, k: Tensor, positions: QueryKeyPositions, scale: float) -> Tensor:
        """q_i · K_r + k_j · Q_r · scale, (B,H,T,S)."""
        content_to_position, position_to_content = self.parts(q, k, positions, scale).values()
        return content_to_position + position_to_content

    def parts(self, q: Tensor, k: Tensor, positions: QueryKeyPositions, scale: float) -> dict[str, Tensor]:
        """The two terms by name: "content-to-position" and "position-to-content", (B,H,T,S) each."""
        rows = positions.spread(self._row)  # (B or 1,1,T,S)
        of_queries = positions.unrotated(q) @ self.keys.to(q.dtype).transpose(-2, -1)  # (B,H,T,2c)
        of_keys = positions.unrotated(k, keys=True) @ (self.queries.to(k.dtype) * scale).transpose(-2, -1)  # (B,H,S,2c)
        return {
            "content-to-position": of_queries.gather(-1, rows.expand(*q.shape[:-1], -1)),
            "position-to-content": of_keys.gather(-1, rows.transpose(-2, -1).expand(*k.shape[:-1], -1)).transpose(
                -2, -1
            ),
        }

    def values(self, weights: Tensor, positions: QueryKeyPositions) -> Tensor:
        """Never called: nothing is added to the values."""
        raise NotImplementedError

    def _row(self, distance: Tensor) -> Tensor:
        """The row of each distance, key minus query, in the vectors: (...) -> (1,...)."""
        half = self.keys.shape[-2] // 2
        behind = -distance  # i - j, as in the paper
        bucket = log_buckets(behind, self.n_buckets, self.max_distance) if self.n_buckets else behind
        return (bucket + half).clamp(0, 2 * half - 1).unsqueeze(0)  # farther ones share the first or the last vector
