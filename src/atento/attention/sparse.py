"""Sparse attention weights: adaptive spans, top-k and α-entmax, and a report of the links that are kept.

See docs/notes.md#a17, #a19. Blocks that are chosen by content are in `block_router.py`. Patterns that are not learned
are masks, which combine: `window(256, 256) | global_tokens(1)` is Longformer (Beltagy et al. 2020),
`window(64, 64) | global_tokens(2) | blocks(random_blocks, 64)` is BigBird (Zaheer et al. 2020), and
`causal() & (window(63, 0) | dilated(64))` is a pattern of Child et al. 2019.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from atento.attention.entmax import AdaptiveSpan, Entmax, softmax, softmax_of_top_k, top_k
from atento.attention.relative_terms import QueryKeyPositions


class SparseAttention(nn.Module):
    """Computes attention weights from scores by adaptive spans, then top-k, then α-entmax (docs/notes.md#a17).

    It is a `relative_terms.Sparsifier`. Without any of the three it is softmax; it is also softmax if the spans cover
    the text, `top_k` is not below the number of keys, and α = 1.

    Args:
        span: the span of each head; unlimited if not given.
        top_k: how many keys each query keeps; all if not given.
        entmax: the normalisation; softmax if not given.
        span_cost: `cost` is this factor times the mean span.
    """

    def __init__(
        self,
        *,
        span: AdaptiveSpan | None = None,
        top_k: int | None = None,
        entmax: Entmax | None = None,
        span_cost: float = 0.0,
    ) -> None:
        super().__init__()
        if top_k is not None and top_k < 1:
            raise ValueError(f"`top_k` must be at least 1: got {top_k}")
        self.span, self.top_k, self.entmax, self.span_cost = span, top_k, entmax, span_cost

    def weigh(self, scores: Tensor, positions: QueryKeyPositions) -> Tensor:
        """scores (B,H,T,S), -inf for masked keys -> weights (B,H,T,S)."""
        scores = scores if self.span is None else self.span(scores, positions)
        if self.entmax is None:
            return softmax(scores) if self.top_k is None else softmax_of_top_k(scores, self.top_k)
        weights: Tensor = self.entmax(scores if self.top_k is None else top_k(scores, self.top_k))
        return weights

    def cost(self) -> Tensor | None:
        """`span_cost` times the mean span; None if there is no span or no cost."""
        return None if self.span is None or self.span_cost == 0 else self.span_cost * self.span.mean()

    def learned(self) -> dict[str, Tensor]:
        """The α and the spans of each head, (H,) each."""
        values = {} if self.entmax is None else {"alpha": self.entmax.alpha}
        if self.span is not None:
            values["behind"] = self.span.behind
            if self.span.ahead is not None:
                values["ahead"] = self.span.ahead
        return {name: value.detach() for name, value in values.items()}


@dataclass(frozen=True)
class KeptLinks:
    """Which links (query, key) have a weight above 0, by head; printed as a table (docs/notes.md#a17)."""

    share: Tensor  # (H,), the kept share of the allowed links
    distance: Tensor  # (H,), the mean |key - query| of the kept links
    ahead: Tensor  # (H,), the share of the kept links that go to later keys
    buckets: tuple[str, ...]  # names of the ranges of distances
    by_distance: Tensor  # (H, buckets), the share of the kept links in each range
    learned: dict[str, Tensor] = field(default_factory=dict)  # α and spans, (H,) each

    def __str__(self) -> str:
        """A table with one line for each head."""
        lines = [["head", "kept", "mean distance", "look ahead", *self.buckets, *self.learned]]
        for head in range(len(self.share)):
            shares = [self.share[head], self.ahead[head], *self.by_distance[head]]
            kept_share, ahead, *near = [f"{100 * float(share):.1f}%" for share in shares]
            values = [f"{float(value[head]):.3g}" for value in self.learned.values()]
            lines.append([str(head), kept_share, f"{float(self.distance[head]):.1f}", ahead, *near, *values])
        widths = [max(map(len, column)) for column in zip(*lines)]
        return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths)) for line in lines)


def kept_links(
    weights: Tensor,
    positions: QueryKeyPositions | None = None,
    *,
    allowed: Tensor | None = None,
    learned: dict[str, Tensor] | None = None,
) -> KeptLinks:
    """Report which links have a weight above 0.

    Args:
        weights: (B,H,T,S).
        positions: positions of queries and keys; query i is at key position S - T + i if not given.
        allowed: boolean (B|1,H|1,T|1,S), the links that the mask allows; all if not given.
        learned: the result of `SparseAttention.learned`, to be shown too.
    """
    positions = (
        QueryKeyPositions.arange(weights.shape[-2], weights.shape[-1], weights.device)
        if positions is None
        else positions
    )
    distance = positions.distances
    distance = distance if distance.dim() == 2 else distance.unsqueeze(1)  # (T,S) or (B,1,T,S)
    bounds = [0, 1] + [1 << n for n in range(1, max(1, int(distance.abs().max())).bit_length() + 1)]
    names = [str(b) if a + 1 == b else f"{a + 1}-{b}" for a, b in zip([-1, *bounds], bounds)]
    bucket = torch.bucketize(distance.abs(), torch.tensor(bounds, device=weights.device))  # 0, 1, 2, 3-4, 5-8 ...
    has_weight = weights > 0

    def count(links: Tensor) -> Tensor:
        return links.expand(weights.shape).sum(dim=(0, 2, 3), dtype=torch.float64)  # (H,)

    total = count(has_weight)
    by_bucket = torch.stack([count(has_weight & (bucket == number)) for number in range(len(bounds))], dim=-1)  # (H,b)
    used = max(number for number in range(len(bounds)) if number == 0 or bool((by_bucket[:, number] > 0).any())) + 1
    divisor = total.clamp(min=1)
    return KeptLinks(
        total / count(torch.ones_like(has_weight) if allowed is None else allowed).clamp(min=1),
        count(has_weight * distance.abs()) / divisor,  # sum of distances by number of links
        count(has_weight & (distance > 0)) / divisor,
        tuple(names[:used]),
        by_bucket[:, :used] / divisor.unsqueeze(-1),
        {} if learned is None else learned,
    )
