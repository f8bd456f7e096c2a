"""Beam search over a step function, all sentences at once, finished ones leaving (H6, H7, H8, H9)."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from atento.decoding.greedy import forbid, hypothesis
from atento.decoding.hypothesis import Beam, Hypothesis, Limits, Steps


@dataclass
class _Sentence:
    """One sentence's finished outputs, and how many more its search still wants."""

    row: int
    finished: list[Hypothesis] = field(default_factory=list)


@dataclass
class _Beams:
    """The live beginnings of N sentences, k places each; a place that is not in use scores -inf."""

    scores: Tensor  # (N,k) summed log-probabilities
    tokens: Tensor  # (N,k,t)
    token_scores: Tensor  # (N,k,t)

    def select(self, sentences: Tensor) -> "_Beams":
        return _Beams(self.scores[sentences], self.tokens[sentences], self.token_scores[sentences])


def beam(steps: Steps, state: Any, first: Tensor, strategy: Beam, limits: Limits) -> list[list[Hypothesis]]:
    """first (B,) or (B,P) tokens to start from -> the n best hypotheses of each sentence, best first."""
    results: list[list[Hypothesis]] = [[] for _ in range(first.shape[0])]
    for row, most in enumerate(limits.most):
        if most < 1:
            results[row] = [hypothesis([], [], False, strategy.length_penalty)]
    live = [_Sentence(row) for row, most in enumerate(limits.most) if most > 0]
    if not live:
        return results
    width = strategy.width
    rows = torch.tensor([s.row for s in live], device=first.device).repeat_interleave(width)
    state, tokens = state.select(rows), first[rows]
    empty = torch.empty(len(live), width, 0, device=first.device)
    scores = torch.full((len(live), width), float("-inf"), device=first.device)
    scores[:, 0] = 0.0  # all places hold the same beginning: only one may be extended
    beams = _Beams(scores, empty.long(), empty)
    while live:
        logits, state = steps.step(tokens, state)
        beams, origin = _extend(torch.log_softmax(logits, dim=-1), beams, live, strategy, limits)
        keep = [place for place, sentence in enumerate(live) if not _done(sentence, beams, place, strategy, limits)]
        for place in set(range(len(live))) - set(keep):
            results[live[place].row] = _ranked(live[place], beams, place, strategy)
        kept = torch.tensor(keep, dtype=torch.long, device=origin.device)
        live, beams = [live[place] for place in keep], beams.select(kept)
        if live:
            state, tokens = state.select(origin[kept].flatten()), beams.tokens[:, :, -1].flatten()
    return results


def _extend(
    log_probs: Tensor, beams: _Beams, live: list[_Sentence], strategy: Beam, limits: Limits
) -> tuple[_Beams, Tensor]:
    """kV continuations of each sentence pruned to k; those that end are set aside. Returns the row each came from."""
    count, width = beams.scores.shape
    vocab_size = log_probs.shape[-1]
    allowed = forbid(log_probs, limits.eos_ids) if beams.tokens.shape[-1] < limits.least else log_probs
    total = (beams.scores.unsqueeze(-1) + allowed.view(count, width, vocab_size)).flatten(1)  # (N,k*V)
    # every place may end at once, so this many candidates always leave k that go on
    best, index = total.topk(min(width * (1 + max(1, len(limits.eos_ids))), total.shape[1]), dim=1)
    origin, token = index // vocab_size, index % vocab_size
    ends = torch.zeros_like(token, dtype=torch.bool)
    for eos_id in limits.eos_ids:
        ends |= token == eos_id
    possible = best > float("-inf")
    _finish(log_probs, beams, live, strategy, (origin, token, ends & possible))
    # the k best that go on, in order; a missing one keeps the score -inf
    rank = torch.where(ends | ~possible, torch.full_like(best, float("-inf")), best)
    room = torch.tensor([_places(sentence, strategy) for sentence in live], device=best.device).unsqueeze(1)
    scores, places = rank.topk(min(width, rank.shape[1]), dim=1)
    if scores.shape[1] < width:
        gap = width - scores.shape[1]
        scores = torch.nn.functional.pad(scores, (0, gap), value=float("-inf"))
        places = torch.nn.functional.pad(places, (0, gap))
    scores = scores.masked_fill(torch.arange(width, device=best.device) >= room, float("-inf"))
    origin, token = origin.gather(1, places), token.gather(1, places)
    row = origin + torch.arange(count, device=best.device).unsqueeze(1) * width
    at = log_probs[row.flatten(), token.flatten()].view(count, width)

    def grown(history: Tensor, new: Tensor) -> Tensor:
        past = history.gather(1, origin.unsqueeze(-1).expand(-1, -1, history.shape[-1]))
        return torch.cat([past, new.unsqueeze(-1)], dim=-1)

    return _Beams(scores, grown(beams.tokens, token), grown(beams.token_scores, at)), row


def _places(sentence: _Sentence, strategy: Beam) -> int:
    """How many beginnings the sentence may keep."""
    shrinking = strategy.stopping == "shrinking"
    return max(0, strategy.width - len(sentence.finished)) if shrinking else strategy.width


def _finish(
    log_probs: Tensor, beams: _Beams, live: list[_Sentence], strategy: Beam, candidates: tuple[Tensor, ...]
) -> None:
    """Set aside the candidates that end and stand among the best k."""
    origin, token, ends = candidates
    places = [_places(sentence, strategy) for sentence in live]  # as they were when the k best were chosen
    for place, rank in torch.nonzero(ends[:, : strategy.width]).tolist():
        if rank >= places[place]:
            continue
        source = int(origin[place, rank])
        last = float(log_probs[place * beams.scores.shape[1] + source, int(token[place, rank])])
        scores = [*beams.token_scores[place, source].tolist(), last]
        ids = beams.tokens[place, source].tolist()
        live[place].finished.append(hypothesis(ids, scores, True, strategy.length_penalty))


def _done(sentence: _Sentence, beams: _Beams, place: int, strategy: Beam, limits: Limits) -> bool:
    best = float(beams.scores[place].max())
    if best == float("-inf") or beams.tokens.shape[-1] >= limits.most[sentence.row]:
        return True
    return len(sentence.finished) >= strategy.width


def _ranked(sentence: _Sentence, beams: _Beams, place: int, strategy: Beam) -> list[Hypothesis]:
    """The n best by score; beginnings cut off by the length limit only fill up, marked unfinished."""
    found = sorted(sentence.finished, key=lambda h: -h.score)[: strategy.n_best]
    if len(found) < strategy.n_best:
        cut = [
            hypothesis(
                beams.tokens[place, b].tolist(), beams.token_scores[place, b].tolist(), False, strategy.length_penalty
            )
            for b in range(strategy.width)
            if float(beams.scores[place, b]) > float("-inf")
        ]
        found += sorted(cut, key=lambda h: -h.score)[: strategy.n_best - len(found)]
    return found
