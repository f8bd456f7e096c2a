"""Weights out of scores, many of them exactly 0: α-entmax with its gradients, top-k, learned spans.

See docs/notes.md#a17.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from atento.attention.masks import Mask, per_head, window
from atento.attention.relative import Places

_SOFT = 1e-12  # α - 1 below this is softmax to the last digit, and still a number to divide by
_FAR = 1 << 40  # positions: farther than any text is long
_TURNS = 128  # enough to halve a bracket, or a miss, down to float64's last digit; ten are common


def softmax(scores: Tensor, dim: int = -1) -> Tensor:
    """exp(z) / Σ exp(z); a row where all scores are -inf gives 0, and passes no gradient. Same shape."""
    empty = torch.isneginf(scores).all(dim=dim, keepdim=True)
    if not bool(empty.any()):
        return torch.softmax(scores, dim=dim)
    return torch.softmax(scores.masked_fill(empty, 0.0), dim=dim).masked_fill(empty, 0.0)


def top_k(scores: Tensor, k: int) -> Tensor:
    """The k highest scores along the last dimension, all others -inf; of equal ones the first are kept.

    See docs/notes.md#a17.

    scores (...,S) -> (...,S). Gradient flows to the kept ones alone; with k >= S nothing changes. A score of -inf is
    never kept. Source: Explicit Sparse Transformer (Zhao et al. 2019). Raises ValueError: k is below 1.
    """
    if k < 1:
        raise ValueError(f"`k` must be at least 1: got {k}")
    if k >= scores.shape[-1]:
        return scores
    values = scores.detach()
    least = values.topk(k, dim=-1).values[..., -1:]  # the lowest score that is kept
    above, level = values > least, values == least
    room = k - above.sum(dim=-1, keepdim=True)
    kept = above | (level & (level.cumsum(dim=-1) <= room))
    return scores.masked_fill(~kept, float("-inf"))


def entmax(scores: Tensor, alpha: float | Tensor, dim: int = -1) -> Tensor:
    """α-entmax: p_i = [(α - 1) z_i - τ]₊^(1 / (α - 1)), with τ such that Σ p = 1 (Peters et al. 2019, eq. 10).

    See docs/notes.md#a17.

    Softmax at α = 1, sparsemax at α = 2; the higher α, the more weights are exactly 0. scores (...,S,...), with S
    along `dim`; `alpha` a number, or a tensor that broadcasts to the scores with size 1 along `dim` ((H,1,1): one a
    head of (B,H,T,S)), which gets a gradient (Correia et al. 2019, proposition 1). Returns the scores' shape and
    dtype. A score of -inf gets exactly 0; a row of nothing but -inf gives 0, and passes no gradient.

    Raises ValueError: α below 1, or a tensor of α that changes along `dim`.
    """
    least = float(alpha.detach().min()) if isinstance(alpha, Tensor) else alpha
    if not least >= 1:
        raise ValueError(f"`alpha` must be at least 1 (softmax): got {least}")
    if isinstance(alpha, Tensor):
        back = dim if dim < 0 else dim - scores.dim()
        if alpha.dim() >= -back and alpha.shape[back] != 1:
            raise ValueError(f"`alpha` must not change along `dim`: got {tuple(alpha.shape)}, dim {dim}")
    elif alpha == 1:
        return softmax(scores, dim)
    wide = scores.float() if scores.dtype in (torch.bfloat16, torch.float16) else scores
    gap = (
        alpha - 1.0 if isinstance(alpha, Tensor) else torch.tensor(alpha - 1.0, dtype=wide.dtype, device=scores.device)
    )
    out: Tensor = _Entmax.apply(wide, gap.to(wide.dtype), dim)  # type: ignore[no-untyped-call]
    return out.to(scores.dtype)


def _solve(z: Tensor, gap: Tensor, dim: int) -> Tensor:
    """The weights p for scores z whose highest is 0, with γ = α - 1 = `gap`; a last division makes their sum 1.

    With m the highest weight, p_i = m (1 + γ z_i / m^γ)₊^(1/γ): nothing cancels here, neither at γ -> 0, where
    p_i = m exp(z_i), nor where m is small. m lies between 1/S and 1, and log Σ p grows with log m: Newton's step,
    or half the bracket where that step would leave it or the last one has not halved the miss.
    """
    m = torch.ones_like(z.narrow(dim, 0, 1))
    low, high, last = m / z.shape[dim], m, torch.full_like(m, float("inf"))
    share = z  # p / m
    for _ in range(_TURNS):
        steep = (gap * m.pow(-gap)).clamp_(max=torch.finfo(z.dtype).max)  # 0 · inf is no number
        share = (z * steep).clamp_(min=-1)
        slope = share + 1  # (p / m)^γ
        share = share.log1p_().div_(gap).exp_()
        slope = torch.div(share, slope.clamp_(min=torch.finfo(z.dtype).tiny), out=slope).sum(dim=dim, keepdim=True)
        total = share.sum(dim=dim, keepdim=True)
        miss = torch.log(m * total)
        step = miss * total / slope
        moving = step.abs() > 16 * torch.finfo(z.dtype).eps  # a row that has arrived stays; NaN has, too
        if not bool(moving.any()):
            break
        low, high = torch.where(miss < 0, m, low), torch.where(miss > 0, m, high)
        newton = m * torch.exp(-step)
        good = (newton >= low) & (newton <= high) & (miss.abs() <= last / 2)
        m, last = torch.where(moving, torch.where(good, newton, (low * high).sqrt()), m), miss.abs()
    return share / share.sum(dim=dim, keepdim=True)


def _curve(x: Tensor) -> Tensor:
    """(eˣ - 1 - x) / x² for x >= 0, ½ at 0: by its series where the difference would cancel."""
    series = torch.ones_like(x)
    for n in range(14, 2, -1):
        series = 1 + series * x / n
    far = x.clamp(min=0.5)
    return torch.where(x < 0.5, series / 2, (torch.expm1(far) - far) / far.square())


class _Entmax(torch.autograd.Function):
    """Forward by root finding; backward in closed form from the weights alone."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, gap: Tensor, dim: int) -> Tensor:
        gap = gap.clamp(min=_SOFT)
        top = scores.amax(dim=dim, keepdim=True)
        empty = torch.isneginf(top)
        p = _solve((scores - top).masked_fill(empty, 0.0), gap, dim).masked_fill(empty, 0.0)
        ctx.save_for_backward(p, gap)
        ctx.dim = dim
        return p

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        """With s_i = p_i^(2 - α) on the kept ones, else 0, and s̄ = s / Σ s: dz = s (g - Σ s̄ g) (Peters et al. 2019).

        For α: dp_i = p_i l_i - s̄_i Σ p l, with l_i = -(e^x - 1 - x) / γ² and x = -γ log p_i, which is the
        proposition of Correia et al. 2019 written so that it holds at α = 1, where l_i = -(log p_i)² / 2.
        """
        p, gap = ctx.saved_tensors
        dim = ctx.dim
        kept = p > 0
        log_p = torch.where(kept, p, 1.0).log()
        s = torch.exp((1 - gap) * log_p).masked_fill(~kept, 0.0)
        total = s.sum(dim=dim, keepdim=True)
        mean = s / total.masked_fill(total == 0, 1.0)
        dz = s * (grad - (mean * grad).sum(dim=dim, keepdim=True)) if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:
            return dz, None, None
        bent = -p * log_p.square() * _curve(-gap * log_p)  # p_i l_i
        moved = bent - mean * bent.sum(dim=dim, keepdim=True)
        return dz, (grad * moved).sum_to_size(gap.shape), None


class Entmax(nn.Module):
    """α-entmax with an α a head, learned between 1 and `most`: each head finds how sparse to be (Correia et al. 2019).

    α = 1 + (most - 1) · sigmoid(a), a learned from α = `initial`. `learned=False` keeps α = `initial` for all heads.
    """

    def __init__(self, n_heads: int, initial: float = 1.5, *, learned: bool = True, most: float = 2.0) -> None:
        super().__init__()
        if learned and not 1 < initial < most:
            raise ValueError(f"a learned α must begin between 1 and {most}: got {initial}")
        if initial < 1:
            raise ValueError(f"α must be at least 1 (softmax): got {initial}")
        self.n_heads, self.initial, self.most = n_heads, initial, most
        share = (initial - 1) / (most - 1) if learned else 0.5
        start = torch.full((n_heads,), math.log(share / (1 - share)))
        self.logit = nn.Parameter(start) if learned else None

    @property
    def alpha(self) -> Tensor:
        """(H,)."""
        if self.logit is None:
            return torch.full((self.n_heads,), self.initial)
        return 1 + (self.most - 1) * torch.sigmoid(self.logit)

    def forward(self, scores: Tensor) -> Tensor:
        """scores (B,H,T,S) -> weights (B,H,T,S)."""
        return entmax(scores, self.initial if self.logit is None else self.alpha.view(-1, 1, 1))


def soft_span(distance: Tensor, behind: Tensor, ahead: Tensor | None, ramp: float) -> Tensor:
    """m(d) = clamp((R + z - d) / R, 0, 1): 1 up to span z, 0 from z + R on (Sukhbaatar et al. 2019, eq. 5).

    distance (...), key minus query; `behind` (H,) the spans for keys before the query, `ahead` (H,) for those after
    it (None: no limit there); `ramp` is R. -> (H,...).
    """
    by_head = (-1, *[1] * distance.dim())
    d = distance.to(behind.dtype)
    beyond = -d - behind.view(by_head)
    beyond = torch.where(d > 0, -ramp if ahead is None else d - ahead.view(by_head), beyond)
    return (1 - beyond / ramp).clamp(0, 1)


class AdaptiveSpan(nn.Module):
    """How far each head looks, learned: a span behind and, unless `ahead=False`, one ahead (docs/notes.md#a16, #a17).

    Sukhbaatar et al. 2019, whose a = m(d) exp(z) / Σ m(d) exp(z) is a softmax of z + log m(d). A span lies between 0
    and `longest` positions (longest · sigmoid(a)) and begins at `initial`, half of `longest` unless given; where it is
    no less than the text is long, attention is dense.
    """

    def __init__(
        self, n_heads: int, longest: float, *, ramp: float = 32.0, initial: float | None = None, ahead: bool = True
    ) -> None:
        super().__init__()
        initial = longest / 2 if initial is None else initial
        if not 0 < initial < longest or ramp <= 0:
            raise ValueError(
                f"a span must begin between 0 and `longest`, and `ramp` be above 0: got {initial}, {longest}, {ramp}"
            )
        self.longest, self.ramp = longest, ramp
        start = torch.full((n_heads,), math.log(initial / (longest - initial)))
        self.behind_logit = nn.Parameter(start)
        self.ahead_logit = nn.Parameter(start.clone()) if ahead else None

    @property
    def behind(self) -> Tensor:
        """(H,), positions."""
        return self.longest * torch.sigmoid(self.behind_logit)

    @property
    def ahead(self) -> Tensor | None:
        """(H,), positions; None where the mask alone says."""
        return None if self.ahead_logit is None else self.longest * torch.sigmoid(self.ahead_logit)

    def at(self, distance: Tensor) -> Tensor:
        """log m(d) for distances (...) -> (H,...), -inf beyond the span."""
        m = soft_span(distance, self.behind, self.ahead, self.ramp)
        return m.clamp(min=torch.finfo(m.dtype).tiny).log().masked_fill(m == 0, float("-inf"))

    def forward(self, scores: Tensor, places: Places) -> Tensor:
        """scores (B,H,T,S) -> scores (B,H,T,S) with log m(d) added."""
        return scores + places.spread(self.at)

    def mean(self) -> Tensor:
        """The mean span of the heads, behind and ahead together, in positions: what a loss may count (eq. 6)."""
        return self.behind.mean() if self.ahead is None else (self.behind + self.ahead).mean()

    def to_mask(self) -> Mask:
        """The links that these spans leave, a window a head: joined to a call's mask, kernels skip all others."""
        # m(d) > 0 where d < z + R
        left = [math.ceil(z + self.ramp) - 1 for z in self.behind.tolist()]
        right = [_FAR] * len(left)
        if self.ahead is not None:
            right = [math.ceil(z + self.ramp) - 1 for z in self.ahead.tolist()]
        return per_head([window(*both) for both in zip(left, right)])
