"""Filters of a next-token distribution: temperature, top-k, top-p (nucleus), min-p and typical-p; and draws from it.

See docs/notes.md#h3 to #h5.

Every filter takes scores (R,V) in float32 or float64, logits or log-probabilities, with at least one a row that is
not -inf. It returns log-probabilities (R,V), scaled to sum to 1 and -inf for the tokens that it removed. Of equally
probable tokens those with lower ids remain, so the result depends on the scores alone.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from atento.base.errors import AtentoError
from atento.decoding.choosing import uniform
from atento.decoding.strategies import Sample

_FIRST_LOOK = 64  # the number of best tokens in which a nucleus is searched before the full vocabulary is sorted


def temperature(scores: Tensor, value: float) -> Tensor:
    """softmax(logits / T), which is p ** (1 / T) scaled to sum to 1: the notes' two formulas (docs/notes.md#h3).

    T < 1 sharpens, T > 1 flattens; T = 0 puts all probability on the best token, the first of equals.
    """
    if value == 0:
        best = scores.argmax(dim=-1, keepdim=True)  # the first of equals
        return torch.full_like(scores, float("-inf")).scatter(-1, best, 0.0)
    below = scores - scores.amax(dim=-1, keepdim=True)  # at most 0, so that no T, however small, gives +inf
    return torch.log_softmax(torch.where(below == 0, below, below / value), dim=-1)  # 0 stays 0 for any T


def top_k(scores: Tensor, k: int) -> Tensor:
    """The k most probable tokens (Fan et al. 2018; docs/notes.md#h4); k = 0 or k >= V keeps all."""
    if k == 0 or k >= scores.shape[-1]:
        return torch.log_softmax(scores, dim=-1)
    _, ids = best(scores, k)  # (R,k)
    return _only(scores, torch.zeros_like(scores, dtype=torch.bool).scatter(-1, ids, True))


def top_p(scores: Tensor, p: float) -> Tensor:
    """The nucleus: the smallest set of most probable tokens whose mass reaches p, one at least (Holtzman et al. 2020).

    Not "every token of probability p or more", as the notes have it (error 23, docs/notes.md#h5). p = 1 keeps all.
    """
    log_probs = torch.log_softmax(scores, dim=-1)
    if p >= 1:
        return log_probs
    enough = p - _rounding_tolerance(scores)  # a sum that rounding left just below p is enough
    ordered, mass = _best_until(log_probs, enough)  # (R,m)
    count = (mass < enough).sum(dim=-1, keepdim=True).add_(1).clamp_(max=mass.shape[-1])  # (R,1)
    left_out = ~_first(log_probs, ordered.gather(-1, count - 1), count)  # down to the last of the nucleus
    return log_probs.masked_fill_(left_out, float("-inf")).sub_(mass.gather(-1, count - 1).log_())


def min_p(scores: Tensor, p: float) -> Tensor:
    """Every token of at least p times the best one's probability (Nguyen et al. 2024); p = 0 keeps all."""
    log_probs = torch.log_softmax(scores, dim=-1)
    if p == 0:
        return log_probs
    threshold = log_probs.amax(dim=-1, keepdim=True) + math.log(p) - _rounding_tolerance(scores)  # (R,1)
    return _only(log_probs, log_probs >= threshold)


def typical_p(scores: Tensor, p: float) -> Tensor:
    """The smallest set whose mass reaches p, tokens whose -log p is nearest to the entropy first (Meister et al. 2022).

    It may remove the most probable token. p = 1 keeps all.
    """
    log_probs = torch.log_softmax(scores, dim=-1)
    if p >= 1:
        return log_probs
    probs = log_probs.exp()
    entropy = torch.special.entr(probs).sum(dim=-1, keepdim=True)  # in nats, (R,1)
    order = (log_probs + entropy).abs().argsort(dim=-1, stable=True)  # |-log p - H|, the nearest first
    mass = probs.gather(-1, order).cumsum(dim=-1, dtype=torch.float64)
    count = (mass < p - _rounding_tolerance(probs)).sum(dim=-1, keepdim=True) + 1  # (R,1)
    in_set = torch.arange(mass.shape[-1], device=mass.device) < count  # (R,V) in that order
    return _only(log_probs, torch.zeros_like(in_set).scatter(-1, order, in_set))  # back in the order of ids


# in order; the default of `Sample` is "off"
_FILTERS = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "typical_p": typical_p}


def stages(scores: Tensor, strategy: Sample) -> Iterator[tuple[str, Tensor]]:
    """The distribution before and after each filter of a strategy, in order: ("model", ...), ("top_k 50", ...) ...

    Each filter works on the result of the one before; those that are off are skipped.
    """
    shape = torch.log_softmax(scores, dim=-1)
    yield "model", shape
    for name, filtered in _FILTERS.items():
        value = getattr(strategy, name)
        if value != getattr(Sample, name):
            shape = filtered(shape, value)
            yield f"{name} {value:g}", shape


def shaped(scores: Tensor, strategy: Sample) -> Tensor:
    """The distribution that a strategy draws from: the last of its `stages`, (R,V)."""
    active = [name for name in _FILTERS if getattr(strategy, name) != getattr(Sample, name)]
    for name in active:
        scores = _FILTERS[name](scores, getattr(strategy, name))
    return scores if active else torch.log_softmax(scores, dim=-1)


def best(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The tokens that `top_k` keeps, k < V: their scores (R,k) and ids (R,k), lower ids first.

    Later filters give the same on these alone, and are faster by as much as the vocabulary is larger.
    """
    last = scores.topk(k, dim=-1).values[:, -1:]  # the k-th score: among its equals, lower ids are kept
    ids = _first(scores, last, torch.full_like(last, k, dtype=torch.long)).nonzero()[:, 1].view(-1, k)
    return scores.gather(-1, ids), ids


def draw(scores: Tensor, strategy: Sample, keys: Tensor, position: int | Tensor) -> Tensor:
    """A token a row (R,), drawn from scores (R,V) by the inverse of the cumulative sum.

    Args:
        scores: (R,V), logits or log-probabilities.
        strategy: with the filters.
        keys: (R,) the streams of random numbers.
        position: of the number in each stream; one for all, or (R,).

    Raises AtentoError: the scores are not numbers.
    """
    if strategy.temperature == 0:
        return scores.argmax(dim=-1)
    if not bool(scores.amax(dim=-1).isfinite().all()):  # NaN, +inf, or all -inf
        raise AtentoError("the network gave no distribution to draw from: a score is NaN or infinite")
    if 0 < strategy.top_k < scores.shape[-1]:  # temperature changes no order, so the best may be taken out first
        scores, ids = best(scores, strategy.top_k)
        return ids.gather(1, draw(scores, replace(strategy, top_k=0), keys, position).unsqueeze(1)).squeeze(1)
    cumulative = shaped(scores, strategy).exp_().double().cumsum_(dim=-1)  # in place: fresh memory is what costs here
    # below the total, so that a token of probability 0 is never drawn
    point = uniform(keys, position).unsqueeze(1) * cumulative[:, -1:]  # (R,1)
    return torch.searchsorted(cumulative, point, right=True).squeeze(1)  # the first token whose sum is above the point


def _only(scores: Tensor, allowed: Tensor) -> Tensor:
    """The distribution on those tokens alone."""
    return torch.log_softmax(scores.masked_fill(~allowed, float("-inf")), dim=-1)  # sums to 1 again


def _rounding_tolerance(x: Tensor) -> float:
    """How much rounding may take from a sum: .4 + .3 must still reach .7."""
    return 8 * torch.finfo(x.dtype).eps


def _best_until(log_probs: Tensor, enough: float) -> tuple[Tensor, Tensor]:
    """The best log-probabilities of each row in falling order, until every row has that mass; and their running sum."""
    size = _FIRST_LOOK
    while size < log_probs.shape[-1]:
        ordered = log_probs.topk(size, dim=-1).values  # in falling order
        mass = ordered.exp().cumsum(dim=-1, dtype=torch.float64)  # (R,size)
        if bool((mass[:, -1] >= enough).all()):
            return ordered, mass
        size *= 8
    ordered = log_probs.sort(dim=-1, descending=True).values
    return ordered, ordered.exp().cumsum(dim=-1, dtype=torch.float64)  # (R,V): the whole vocabulary


def _first(values: Tensor, last: Tensor, count: Tensor) -> Tensor:
    """The mask (R,V) of the `count` (R,1) greatest values, of which `last` (R,1) is the smallest; lower ids first."""
    above, level = values > last, values == last
    room = count - above.sum(dim=-1, keepdim=True)  # (R,1) places for equals of the last
    if bool((level.sum(dim=-1, keepdim=True) > room).any()):  # a tie, and not all of it fits
        level &= level.cumsum(dim=-1) <= room  # as many of the tie as fit, lower ids first
    return above | level
