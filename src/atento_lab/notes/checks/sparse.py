"""Check of sparse attention: α-entmax, top-k and adaptive spans (docs/notes.md#a17)."""

import math

import torch
from torch import Tensor

from atento.attention import attention_weights
from atento.attention.entmax import AdaptiveSpan, Entmax
from atento.attention.relative_terms import QueryKeyPositions
from atento.attention.sparse import SparseAttention, kept_links
from atento_lab.notes.checks.attention import EXACT, apart, random
from atento_lab.notes.finding import AtLeast, AtMost, Finding, compare

HEADS, LENGTH, WIDTH = 2, 24, 8
ALMOST = AtMost(1e-6)  # a learned α is initialised in float32
NEEDED = (3, 9)  # tokens (itself and the ones before it) that each head must attend to


def entmax_by_bisection(row: list[float], alpha: float) -> list[float]:
    """Return p_i = [(α - 1) z_i - τ]₊^(1/(α - 1)), with τ by bisection so that they sum to 1; softmax for α = 1."""
    if alpha == 1:
        exponentials = [math.exp(z - max(row)) for z in row]
        return [exponential / sum(exponentials) for exponential in exponentials]
    scaled, power = [(alpha - 1) * z for z in row], 1 / (alpha - 1)
    low, high = max(scaled) - 1, max(scaled)  # the sum is at least 1 at `low`, and 0 at `high`
    for _ in range(100):
        middle = (low + high) / 2
        total = sum(max(0.0, z - middle) ** power for z in scaled)
        low, high = (middle, high) if total > 1 else (low, middle)
    return [max(0.0, z - low) ** power for z in scaled]


def highest_by_sorting(row: list[float], k: int) -> list[float]:
    """Return the softmax of the k highest scores, and 0 for the others."""
    highest = sorted(range(len(row)), key=lambda j: -row[j])[:k]
    total = sum(math.exp(row[j]) for j in highest)
    return [math.exp(z) / total if j in highest else 0.0 for j, z in enumerate(row)]


def span_by_formula(row: list[float], i: int, behind: float, ahead: float, ramp: float) -> list[float]:
    """Return m exp(z) / Σ m exp(z), where m falls from 1 to 0 between the span and the span plus the ramp."""
    spans = [ahead if j > i else behind for j in range(len(row))]
    weights = [max(0.0, min(1.0, (ramp + spans[j] - abs(i - j)) / ramp)) * math.exp(z) for j, z in enumerate(row)]
    return [weight / sum(weights) for weight in weights]


def head_error(weights: Tensor, rows: list[list[float]]) -> float:
    """Return the error of head 0 of weights (1,H,T,S) against rows computed one by one."""
    return apart(weights[0, 0], torch.tensor(rows, dtype=weights.dtype))


def token_positions() -> QueryKeyPositions:
    """Return the positions of the texts of these checks."""
    return QueryKeyPositions.arange(LENGTH, LENGTH)


@torch.no_grad()
def three_ways(scores: Tensor, positions: QueryKeyPositions) -> tuple[dict[str, float], Tensor]:
    """Return the error of each sparse variant against its formula, and the weights at α = 1.5."""
    rows = scores[0, 0].tolist()
    errors, sparse = {}, scores
    for alpha in (1.5, 2.0):
        sparse = SparseAttention(entmax=Entmax(HEADS, alpha, learned=False)).double().weigh(scores, positions)
        errors[f"α = {alpha:g}"] = head_error(sparse, [entmax_by_bisection(row, alpha) for row in rows])
    learned = Entmax(HEADS, 1.7)  # one α per head, initialised at 1.7; the second head's is then set to 1 + σ(-1)
    assert learned.logit is not None
    learned.logit[1] = -1.0
    by_head = SparseAttention(entmax=learned.double()).weigh(scores, positions)
    errors["α = 1.7, learned"] = head_error(by_head, [entmax_by_bisection(row, 1.7) for row in rows])
    second = [entmax_by_bisection(row, 1 + 1 / (1 + math.e)) for row in scores[0, 1].tolist()]
    errors["α = 1.27, learned"] = apart(by_head[0, 1], torch.tensor(second, dtype=torch.float64))
    highest = SparseAttention(top_k=5).weigh(scores, positions)
    errors["5 highest"] = head_error(highest, [highest_by_sorting(row, 5) for row in rows])
    span = AdaptiveSpan(HEADS, 40.0, ramp=4.0, initial=6.0).double()
    near = SparseAttention(span=span).weigh(scores, positions)
    assert span.ahead is not None
    spans = float(span.behind[0]), float(span.ahead[0])
    errors["span of 6"] = head_error(near, [span_by_formula(row, i, *spans, 4.0) for i, row in enumerate(rows)])
    return errors, sparse


@torch.no_grad()
def dense_limits(scores: Tensor, positions: QueryKeyPositions, dense: Tensor) -> dict[str, float]:
    """Return the difference of each variant from softmax where it omits nothing."""
    span = AdaptiveSpan(HEADS, 1000.0, initial=500.0).double()
    variants = {
        "α = 1": SparseAttention(entmax=Entmax(HEADS, 1.0, learned=False)),
        "as many as there are": SparseAttention(top_k=LENGTH),
        "longer span than text": SparseAttention(span=span),
    }
    return {name: apart(variant.weigh(scores, positions), dense) for name, variant in variants.items()}


def learned_spans(positions: QueryKeyPositions) -> tuple[SparseAttention, Tensor]:
    """Train two heads that must attend evenly to their 3 and 9 nearest tokens to learn their spans.

    Return their weights too.
    """
    distance = -positions.distances  # how far before the query
    visible = torch.stack([(distance >= 0) & (distance < needed) for needed in NEEDED]).float()
    targets = visible / visible.sum(dim=-1, keepdim=True)  # (H,T,S)
    level = torch.zeros(1, HEADS, LENGTH, LENGTH).masked_fill(distance < 0, float("-inf"))
    attention = SparseAttention(span=AdaptiveSpan(HEADS, 20.0, ramp=1.0, ahead=False))
    for _ in range(90):
        loss = (attention.weigh(level, positions)[0] - targets).square().sum()
        torch.autograd.backward(loss)
        for parameter in attention.parameters():
            assert parameter.grad is not None
            parameter.data -= 0.1 * parameter.grad
            parameter.grad = None
    return attention, attention.weigh(level, positions).detach()


def learns_its_links() -> Finding:
    """A17: links by α-entmax, by rank or by a learned span, each with its dense limit."""
    q, k, positions = random(1, HEADS, LENGTH, WIDTH), random(1, HEADS, LENGTH, WIDTH), token_positions()
    scores = 2 * q @ k.transpose(-2, -1)
    dense = attention_weights(q, k, scale=2.0)
    errors, sparse = three_ways(scores, positions)
    report, counts = kept_links(sparse), [sum(p > 0 for row in head for p in row) for head in sparse[0].tolist()]
    alpha = Entmax(HEADS, 1.5).double()
    torch.autograd.backward(SparseAttention(entmax=alpha).weigh(scores, positions).square().sum())
    assert alpha.logit is not None and alpha.logit.grad is not None
    attention, weights = learned_spans(positions)
    spans = kept_links(weights, learned=attention.learned())
    return compare(
        {
            "away from its formula": errors,
            "dense limit away from softmax": dense_limits(scores, positions, dense),
            "kept links counted": apart(report.share * LENGTH**2, torch.tensor(counts)),
            "least gradient of α": float(alpha.logit.grad.abs().min()),
            "links of the last token, learnt": (weights[0, :, -1] > 0.03).sum(dim=-1),
        },
        {
            "away from its formula": {name: ALMOST if "learned" in name else EXACT for name in errors},
            "dense limit away from softmax": dict.fromkeys(
                ("α = 1", "as many as there are", "longer span than text"), EXACT
            ),
            "kept links counted": EXACT,
            "least gradient of α": AtLeast(1e-6),
            "links of the last token, learnt": list(NEEDED),
        },
        remark=f"at α = 2 {float(report.share.mean()):.0%} of the links have weight; below, two heads that had to "
        f"attend to {NEEDED[0]} and {NEEDED[1]} tokens, with an initial span of 10",
        drawing=str(spans),
    )
