"""Sparse normalisations of scores: α-entmax with its gradients, top-k, and adaptive spans (docs/notes.md#a17)."""

import math

import torch
from torch import Tensor, nn

from atento.attention.algebra import Context, TypedFunction
from atento.attention.masks import Mask, per_head, window
from atento.attention.relative_terms import QueryKeyPositions

_MIN_GAP = 1e-12  # smallest α - 1: equal to softmax to the last digit, and still not 0 to divide by
_UNLIMITED = 1 << 40  # positions, more than any text has
_LONG = 128  # scores of a row from which on those that get no weight are left out
_FEW = 2  # times as many must be left as go on
_MAX_ITERATIONS = 128  # enough to halve a bracket down to the last digit of float64; ten are common


def softmax(scores: Tensor, dim: int = -1) -> Tensor:
    """Softmax; a row in which all scores are -inf gives 0 and has no gradient. Same shape."""
    empty = torch.isneginf(scores).all(dim=dim, keepdim=True)
    if not bool(empty.any()):  # softmax of -inf alone is NaN
        return torch.softmax(scores, dim=dim)  # the common case costs one look
    return torch.softmax(scores.masked_fill(empty, 0.0), dim=dim).masked_fill(empty, 0.0)


def top_k(scores: Tensor, k: int) -> Tensor:
    """Keep the k highest scores of the last dimension and set the others to -inf (docs/notes.md#a17).

    Of equal scores the first are kept. Only kept scores get a gradient. Explicit Sparse Transformer (Zhao et al.
    2019).

    Args:
        scores: (...,S).
        k: how many to keep; with k >= S nothing changes.

    Returns:
        (...,S).

    Raises ValueError: k is below 1.
    """
    if k < 1:
        raise ValueError(f"`k` must be at least 1: got {k}")
    if k >= scores.shape[-1]:
        return scores
    values = scores.detach()
    highest = values.topk(k + 1, dim=-1).values
    threshold = highest[..., k - 1 : k]  # the lowest score that is kept
    is_kept = values >= threshold
    if _tied(highest):
        above, equal = values > threshold, values == threshold
        n_equal = k - above.sum(dim=-1, keepdim=True)  # how many of those equal to the threshold are kept
        is_kept = above | (equal & (equal.cumsum(dim=-1) <= n_equal))  # the first of them, in order
    return scores.masked_fill(~is_kept, float("-inf"))


def softmax_of_top_k(scores: Tensor, k: int) -> Tensor:
    """`softmax(top_k(scores, k))`, computed from the kept scores alone unless scores are equal. (...,S) -> (...,S)."""
    if k >= scores.shape[-1]:
        return softmax(scores)
    highest, places = scores.topk(k + 1, dim=-1)  # (...,k+1)
    if _tied(highest.detach()):
        return softmax(top_k(scores, k))
    return torch.zeros_like(scores).scatter(-1, places[..., :k], softmax(highest[..., :k]))  # the others are exactly 0


def _tied(highest: Tensor) -> bool:
    """Whether of the k + 1 highest scores of a row the last two are equal, so that it is open which one is kept."""
    last, next_one = highest[..., -2], highest[..., -1]
    return bool(((last == next_one) & ~torch.isneginf(last)).any())  # a tie among masked scores decides nothing


def entmax(scores: Tensor, alpha: float | Tensor, dim: int = -1) -> Tensor:
    """α-entmax: p_i = [(α - 1) z_i - τ]₊^(1 / (α - 1)), with τ such that Σ p = 1 (Peters et al. 2019, eq. 10).

    It is softmax at α = 1 and sparsemax at α = 2; with a higher α more weights are exactly 0 (docs/notes.md#a17). A
    score of -inf gets exactly 0; a row in which all are -inf gives 0 and has no gradient.

    Args:
        scores: (...,S,...), with S along `dim`.
        alpha: a number, or a tensor that broadcasts to the scores and has size 1 along `dim`, such as (H,1,1) for
            scores (B,H,T,S). A tensor gets a gradient (Correia et al. 2019, proposition 1).
        dim: the dimension that is normalised.

    Returns:
        Weights of the shape and dtype of the scores.

    Raises ValueError: α is below 1, or a tensor of α varies along `dim`.
    """
    lowest = float(alpha.detach().min()) if isinstance(alpha, Tensor) else alpha
    if not lowest >= 1:
        raise ValueError(f"`alpha` must be at least 1 (softmax): got {lowest}")  # `not >=` refuses NaN too
    if isinstance(alpha, Tensor):
        from_end = dim if dim < 0 else dim - scores.dim()  # α may have fewer dimensions
        if alpha.dim() >= -from_end and alpha.shape[from_end] != 1:
            raise ValueError(f"`alpha` must not vary along `dim`: got {tuple(alpha.shape)}, dim {dim}")
    elif alpha == 1:
        return softmax(scores, dim)
    wide = scores.float() if scores.dtype in (torch.bfloat16, torch.float16) else scores
    gap = (
        alpha - 1.0 if isinstance(alpha, Tensor) else torch.tensor(alpha - 1.0, dtype=wide.dtype, device=scores.device)
    )
    moved = wide.movedim(dim, -1)  # (...,S)
    gaps = gap.to(wide.dtype).expand(wide.narrow(dim, 0, 1).shape).movedim(dim, -1)  # (...,1)
    rows: Tensor = _Entmax.apply(moved.reshape(-1, moved.shape[-1]), gaps.reshape(-1, 1))  # (R,S) in R rows, (R,1)
    return rows.view(moved.shape).movedim(-1, dim).to(scores.dtype)


class _Rows:
    """Which of the scores (R,S) are computed with: all, as a matrix; or a few, as a vector (N,), row by row."""

    def __init__(self, shape: torch.Size) -> None:
        self.shape = shape
        self.places: Tensor | None = None  # (N,), in the scores one row behind the other; None: all
        self.rows = torch.empty(0)

    def of(self, x: Tensor) -> Tensor:
        """(R,S) -> the chosen ones."""
        return x if self.places is None else x.reshape(-1)[self.places]  # flat, (N,)

    def back(self, x: Tensor) -> Tensor:
        """The chosen ones -> (R,S), 0 elsewhere."""
        if self.places is None:
            return x
        return x.new_zeros(self.shape.numel()).index_copy_(0, self.places, x).view(self.shape)

    def each(self, x: Tensor) -> Tensor:
        """(R,1) -> the number of its row for each of the chosen ones."""
        return x if self.places is None else x.view(-1)[self.rows]

    def sum(self, x: Tensor) -> Tensor:
        """The chosen ones -> their sum by row, (R,1)."""
        if self.places is None:
            return x.sum(dim=1, keepdim=True)
        return x.new_zeros(self.shape[0]).index_add_(0, self.rows, x).unsqueeze(1)  # (R,1)

    def choose(self, z: Tensor, chosen: Tensor) -> Tensor:
        """Leave out the others, if that is worth it; return what is left of z."""
        if self.places is not None:
            self.places, self.rows, z = self.places[chosen], self.rows[chosen], z[chosen]
        elif self.shape[1] >= _LONG and _FEW * int(torch.count_nonzero(chosen)) < chosen.numel():
            self.places = chosen.view(-1).nonzero().squeeze(1)
            self.rows = self.places.div(self.shape[1], rounding_mode="floor")  # the row of each, (N,)
            z = self.of(z)
        return z


def _exp_remainder(x: Tensor) -> Tensor:
    """(eˣ - 1 - x) / x² for x >= 0, ½ at 0; by its power series for small x, where the difference would cancel."""
    series = torch.ones_like(x)  # Horner's scheme, from the highest term
    for n in range(14, 2, -1):  # up to x^12, enough below ½ for float64
        series = 1 + series * x / n
    large = x.clamp(min=0.5)  # keeps the branch not taken finite, in gradients too
    return torch.where(x < 0.5, series / 2, (torch.expm1(large) - large) / large.square())


class _Entmax(TypedFunction):
    """Forward by root finding; backward in closed form from the weights alone. Scores (R,S), `gap` (R,1)."""

    @staticmethod
    def forward(ctx: Context[_Rows], scores: Tensor, gap: Tensor) -> Tensor:
        gap = gap.clamp(min=_MIN_GAP)  # γ -> 0 is softmax
        top = scores.amax(dim=1, keepdim=True)  # subtracted below: the highest is 0
        empty = torch.isneginf(top)
        if bool(empty.any()):
            top = top.masked_fill(empty, float("inf"))  # all its scores are too low
        rows = _Rows(scores.shape)
        z = scores - top
        m = torch.ones_like(gap)  # (R,1), the upper end
        low, high, last_error = m / rows.shape[1], m, torch.full_like(m, float("inf"))  # 1 / S <= m <= 1: the bracket
        share, gaps = z, gap  # p / m
        for number in range(_MAX_ITERATIONS):
            if number in (0, 2, 3, 4):  # the bound falls fast, and not at the first step
                chosen = z >= rows.each(high.pow(gap) / -gap)  # -m^γ / γ with the highest m
                z = rows.choose(z, chosen)
                gaps = rows.each(gap)
            factor = (gap * m.pow(-gap)).clamp_(max=torch.finfo(z.dtype).max)  # inf would make NaN of z = 0
            share = (z * rows.each(factor)).clamp_(min=-1)  # γ z / m^γ; below -1 the weight is 0
            slope = share + 1  # (p / m)^γ
            share = share.log1p_().div_(gaps).exp_()  # (1 + γ z / m^γ)^(1/γ) = p / m
            slope = rows.sum(torch.div(share, slope.clamp_(min=torch.finfo(z.dtype).tiny), out=slope))
            total = rows.sum(share)  # Σ p / m
            error = torch.log(m * total)  # log Σ p
            step = error * total / slope  # Newton's in log m
            moving = step.abs() > 16 * torch.finfo(z.dtype).eps  # False for a row that has converged, and for NaN
            if not bool(moving.any()):
                break
            # Σ p / m grows with m: at an m that is too high, its inverse is too low, and the other way round
            above, other = error > 0, 1 / total
            low, high = torch.where(above, low.maximum(other), m), torch.where(above, m, high.minimum(other))
            newton = m * torch.exp(-step)  # the step is in log m
            good = (newton >= low) & (newton <= high) & (error.abs() <= last_error / 2)
            m, last_error = torch.where(moving, torch.where(good, newton, (low * high).sqrt()), m), error.abs()
        p = share / rows.each(rows.sum(share))
        p = p.masked_fill(rows.each(empty), 0.0) if rows.places is None else p
        ctx.call = rows
        ctx.save_for_backward(p, gap)
        return rows.back(p)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Context[_Rows], grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """The gradients of the scores and of α, from the weights p alone.

        With s_i = p_i^(2 - α) where p_i > 0, else 0, and s̄ = s / Σ s: dz = s (g - Σ s̄ g) (Peters et al. 2019).
        For α: dp_i = p_i l_i - s̄_i Σ p l, with l_i = -(eˣ - 1 - x) / γ² and x = -γ log p_i. This is proposition 1 of
        Correia et al. 2019, in a form that holds at α = 1 too, where l_i = -(log p_i)² / 2.
        """
        rows, (p, gap) = ctx.call, ctx.saved_tensors
        grad, gaps = rows.of(grad), rows.each(gap)  # (R,S), or (N,) for a few
        is_positive = p > 0
        log_p = torch.where(is_positive, p, 1.0).log()  # where p = 0, a log that is finite
        s = torch.exp((1 - gaps) * log_p).masked_fill(~is_positive, 0.0)  # p^(2 - α), since 1 - γ = 2 - α
        total = rows.sum(s)
        mean = s / rows.each(total.masked_fill(total == 0, 1.0))  # s̄; a row without weights has sum 0
        dz = rows.back(s * (grad - rows.each(rows.sum(mean * grad)))) if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:
            return dz, None
        pl = -p * log_p.square() * _exp_remainder(-gaps * log_p)  # p_i l_i
        return dz, rows.sum(grad * (pl - mean * rows.each(rows.sum(pl))))


class Entmax(nn.Module):
    """α-entmax with a learned α for each head (Correia et al. 2019).

    α = 1 + (max_alpha - 1) · sigmoid(a), where a is learned.

    Args:
        n_heads: number of heads H.
        initial: the α that training begins with.
        learned: False keeps α = `initial` for all heads.
        max_alpha: upper limit of a learned α.

    Raises:
        ValueError: `initial` is below 1, or not between 1 and `max_alpha` for a learned α.
    """

    def __init__(self, n_heads: int, initial: float = 1.5, *, learned: bool = True, max_alpha: float = 2.0) -> None:
        super().__init__()
        if learned and not 1 < initial < max_alpha:
            raise ValueError(f"a learned α must begin between 1 and {max_alpha}: got {initial}")
        if initial < 1:
            raise ValueError(f"α must be at least 1 (softmax): got {initial}")
        self.n_heads, self.initial, self.max_alpha = n_heads, initial, max_alpha
        share = (initial - 1) / (max_alpha - 1) if learned else 0.5
        start = torch.full((n_heads,), math.log(share / (1 - share)))  # the inverse of the sigmoid
        self.logit = nn.Parameter(start) if learned else None

    @property
    def alpha(self) -> Tensor:
        """The α of each head, (H,)."""
        if self.logit is None:
            return torch.full((self.n_heads,), self.initial)
        return 1 + (self.max_alpha - 1) * torch.sigmoid(self.logit)

    def forward(self, scores: Tensor) -> Tensor:
        """scores (B,H,T,S) -> weights (B,H,T,S)."""
        return entmax(scores, self.initial if self.logit is None else self.alpha.view(-1, 1, 1))


def soft_span(distance: Tensor, behind: Tensor, ahead: Tensor | None, ramp: float) -> Tensor:
    """m(d) = clamp((R + z - d) / R, 0, 1): 1 up to span z, 0 from z + R on (Sukhbaatar et al. 2019, eq. 5).

    Args:
        distance: (...), key minus query.
        behind: (H,), the spans for keys before the query.
        ahead: (H,), the spans for keys after the query; None for no limit.
        ramp: R, in positions.

    Returns:
        (H,...).
    """
    by_head = (-1, *[1] * distance.dim())  # (H,1,...): heads before distances
    d = distance.to(behind.dtype)  # in positions
    beyond = -d - behind.view(by_head)  # how far a key lies beyond the span, R not counted
    beyond = torch.where(d > 0, -ramp if ahead is None else d - ahead.view(by_head), beyond)
    return (1 - beyond / ramp).clamp(0, 1)  # -ramp: m(d) = 1, no limit


class AdaptiveSpan(nn.Module):
    """A learned attention span for each head (Sukhbaatar et al. 2019; docs/notes.md#a16, #a17).

    The weights m(d) exp(z) / Σ m(d) exp(z) of the paper are a softmax of z + log m(d). A span is
    max_span · sigmoid(a), where a is learned. If the spans cover the text, attention is dense.

    Args:
        n_heads: number of heads H.
        max_span: upper limit of a span, in positions.
        ramp: R in m(d), in positions.
        initial: the span that training begins with; half of `max_span` if not given.
        ahead: whether keys after the query have a span too; else only the mask limits them.

    Raises:
        ValueError: `initial` is not between 0 and `max_span`, or `ramp` is not above 0.
    """

    def __init__(
        self, n_heads: int, max_span: float, *, ramp: float = 32.0, initial: float | None = None, ahead: bool = True
    ) -> None:
        super().__init__()
        initial = max_span / 2 if initial is None else initial  # half: the slope of the sigmoid is greatest
        if not 0 < initial < max_span or ramp <= 0:
            raise ValueError(
                f"a span must begin between 0 and `max_span`, and `ramp` must be above 0: "
                f"got {initial}, {max_span}, {ramp}"
            )
        self.max_span, self.ramp = max_span, ramp
        start = torch.full((n_heads,), math.log(initial / (max_span - initial)))  # the inverse of the sigmoid
        self.behind_logit = nn.Parameter(start)
        self.ahead_logit = nn.Parameter(start.clone()) if ahead else None

    @property
    def behind(self) -> Tensor:
        """The spans before the query, (H,), in positions."""
        return self.max_span * torch.sigmoid(self.behind_logit)

    @property
    def ahead(self) -> Tensor | None:
        """The spans after the query, (H,), in positions; None if only the mask limits them."""
        return None if self.ahead_logit is None else self.max_span * torch.sigmoid(self.ahead_logit)

    def at(self, distance: Tensor) -> Tensor:
        """log m(d) for distances (...) -> (H,...), -inf beyond the span."""
        m = soft_span(distance, self.behind, self.ahead, self.ramp)
        return m.clamp(min=torch.finfo(m.dtype).tiny).log().masked_fill(m == 0, float("-inf"))

    def forward(self, scores: Tensor, positions: QueryKeyPositions) -> Tensor:
        """scores (B,H,T,S) -> scores (B,H,T,S) with log m(d) added."""
        return scores + positions.spread(self.at)

    def mean(self) -> Tensor:
        """The mean over heads of the span before plus the span after the query, for a loss term (eq. 6)."""
        return self.behind.mean() if self.ahead is None else (self.behind + self.ahead).mean()

    def to_mask(self) -> Mask:
        """The links inside the spans, as a window for each head. Combined with a call's mask, kernels skip the rest."""
        # m(d) > 0 for d < z + R
        left = [math.ceil(z + self.ramp) - 1 for z in self.behind.tolist()]
        right = [_UNLIMITED] * len(left)  # no limit of its own: the mask decides
        if self.ahead is not None:
            right = [math.ceil(z + self.ramp) - 1 for z in self.ahead.tolist()]
        return per_head([window(*both) for both in zip(left, right)])
