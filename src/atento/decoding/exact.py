"""Exact search by branch and bound: the best output there is, with a certificate, and whether a beam lost it.

A score only falls as tokens are added (log-probabilities are at most 0), so the sum so far, divided by the length that
favours it most among those still to be reached, bounds whatever may come of a beginning. Beginnings are taken up by
that bound, the highest first, until none could beat the best output found (Land & Doig 1960; Stahlberg & Byrne 2019
for translation).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any

import torch
from torch import Tensor

from atento.decoding.choosing import apply_rules, hypothesis, next_log_probs
from atento.decoding.contract import (
    AnyStepFunction,
    HasStepFunction,
    Request,
    Rule,
    State,
    first_tokens,
    step_function_of,
)
from atento.decoding.hypothesis import Hypothesis
from atento.decoding.trace import BOUND, FINISHED, KEPT, Trace

_TOGETHER = 16  # continuations read by the network in one step
_DIGITS = 1e-12  # two ways to add the same numbers differ by less


@dataclass(frozen=True)
class Exact:
    """What an exact search knows.

    `optimal`: `best` is certainly the best output that ends within the limit; None: certainly there is none. Otherwise
    the search was given up, and no output scores above `bound` (by the changed scores, where rules change them).
    `read`: beginnings that the network read.
    """

    best: Hypothesis | None
    optimal: bool
    bound: float
    read: int


@torch.inference_mode()
def exact_search(
    network: HasStepFunction | AnyStepFunction,
    ids: Tensor,
    *,
    max_new_tokens: int | Sequence[int],
    min_new_tokens: int = 0,
    eos_id: int | tuple[int, ...] | None = None,
    token_mask: Tensor | None = None,
    length_penalty: float = 0.0,
    rules: Sequence[Rule] = (),
    limit: int = 100_000,
    known: Sequence[Hypothesis | None] | None = None,
    trace: Trace | None = None,
) -> list[Exact]:
    """The output of the highest log-probability / length ** length_penalty, EOS counted, for each row of `ids`.

    Args:
        network: a network, or anything with `begin` and `step`.
        ids: (B,S), sources or prompts.
        max_new_tokens: outputs end within so many, EOS counted, one number or one a row; only those that end are
            outputs.
        min_new_tokens: at least so many before EOS.
        eos_id: None = the network's own, () = none: then outputs are of `max_new_tokens` tokens.
        token_mask: boolean (B,S), True = a real token.
        length_penalty: as of `Beam`.
        rules: as of `generate`; ones that forbid leave the best of what is allowed. A rule that changes scores
            changes what is the best, too. None may bring a score above 0.
        limit: beginnings that the network may read for one row before the search is given up.
        known: an output for each row, such as a beam's, that the search need only beat; not one that rules forbid.
        trace: told of every beginning that is read.

    Raises:
        ValueError: a score above 0, which no bound would hold.
    """
    limits = [max_new_tokens] * len(ids) if isinstance(max_new_tokens, int) else list(max_new_tokens)
    if min(limits, default=1) < 1 or limit < 1:
        raise ValueError(f"`max_new_tokens` and `limit` must be at least 1: got {min(limits)} and {limit}")
    if len(limits) != len(ids):
        raise ValueError(f"`max_new_tokens` gives one number a row: got {len(limits)} for {len(ids)} rows")
    if trace is not None:
        trace.begin("exact", ids.shape[0])
    real = [None if token_mask is None else token_mask[row : row + 1] for row in range(len(ids))]
    prompts = [one.tolist() if mask is None else one[mask[0]].tolist() for one, mask in zip(ids, real)]
    step_function, found = step_function_of(network), []
    for row in range(ids.shape[0]):
        state: State = step_function.begin(ids[row : row + 1], real[row])
        first = first_tokens(step_function, ids[row : row + 1], real[row], None)
        ends = (step_function.eos_id,) if eos_id is None else (eos_id,) if isinstance(eos_id, int) else tuple(eos_id)
        request = Request(limits, min_new_tokens, ends, tuple(rules), prompts=prompts, trace=trace)
        search = _Search(step_function, row, request, length_penalty, limit)
        beat = None if known is None else known[row]
        if beat is not None and (beat.finished or not ends):
            search.best, search.rank = beat, beat.score
        found.append(search.run(state, first))
    if trace is not None:
        trace.end([[] if one.best is None else [one.best] for one in found])
    return found


def search_error(found: Hypothesis, exact: Exact) -> float | None:
    """How much score a search lost: 0 where it found the optimum; None where that is not known.

    An output that was cut off is no output: nothing is known of it. Above 0 is certain even without a certificate. The
    same length penalty must have ranked both.
    """
    if exact.best is None or not found.finished:
        return None
    lost = 0.0 if exact.best.ids == found.ids else exact.best.score - found.score
    return lost if lost > 0 else 0.0 if exact.optimal else None


@dataclass
class _Read:
    """Beginnings that the network has read together: what it says of the next token, and the state after them."""

    ids: list[list[int]]
    token_scores: list[list[float]]
    totals: list[float]  # of changed scores
    log_probs: Tensor  # (R,V)
    scores: Tensor  # (R,V) changed by rules, each row falling
    tokens: Tensor  # (R,V) in that order
    state: State


@dataclass
class _Search:
    """The search for one row: what is still open, by its bound, and the best output so far."""

    step_function: AnyStepFunction
    row: int
    request: Request
    penalty: float
    limit: int
    best: Hypothesis | None = None
    rank: float = -inf  # of the best, by changed scores
    read: int = 0
    # (- bound, number, beginnings read together, which of them, how many of its continuations are dealt with)
    open: list[tuple[float, int, _Read, int, int]] = field(default_factory=list)
    numbers: Any = field(default_factory=count)

    def run(self, state: State, first: Tensor) -> Exact:
        """Until nothing that is open could be better than the best output, or the limit is reached."""
        self._take_up(self._step([[]], [[]], [0.0], first, state))
        while self.open and -self.open[0][0] > self._mark():
            if self.read >= self.limit:
                return Exact(self.best, False, -self.open[0][0], self.read)
            self._branch(*heappop(self.open)[2:])
        if self.request.trace is not None:
            self._beaten(self.request.trace)
        return Exact(self.best, True, self.rank, self.read)

    def _beaten(self, trace: Trace) -> None:
        """What was left open: the best continuation of each."""
        for _, _, read, place, start in sorted(self.open, key=lambda entry: entry[:2]):
            total = read.totals[place] + float(read.scores[place, start])
            self._told(trace, read, place)
            trace.candidate(0, int(read.tokens[place, start]), BOUND, total=total)
        trace.stop(self.row, "nothing that was open could be better")

    def _mark(self) -> float:
        """What is to be beaten."""
        return self.rank + _DIGITS * max(1.0, abs(self.rank)) if self.rank > -inf else -inf

    def _bound(self, total: float, length: int, ends: bool) -> float:
        """The most that a beginning of that sum and length may come to, if it ends with it or goes on."""
        limit, eos = self.request.max_new_tokens[self.row], bool(self.request.eos_ids)
        lengths = (length,) if ends else (max(length + 1, self.request.min_new_tokens + 1) if eos else limit, limit)
        if lengths[0] > limit:
            return -inf
        return max(total / float(reached**self.penalty) for reached in lengths)

    def _ends(self, token: int, length: int) -> bool:
        """Whether an output of that length ends with that token: with EOS, or, where there is none, at the limit."""
        return token in self.request.eos_ids or (
            not self.request.eos_ids and length == self.request.max_new_tokens[self.row]
        )

    def _branch(self, read: _Read, place: int, start: int) -> None:
        """The next few continuations of one beginning: those that end are weighed, the others read if they may win."""
        length, trace = len(read.ids[place]) + 1, self.request.trace
        tokens, scores = read.tokens[place].tolist(), read.scores[place].tolist()
        if trace is not None:
            self._told(trace, read, place)
        worth, upto = [], min(start + _TOGETHER, len(tokens))
        for rank in range(start, upto):
            total, token = read.totals[place] + scores[rank], tokens[rank]
            ends = self._ends(token, length)
            if scores[rank] == -inf or self._bound(total, length, ends) <= self._mark():
                fate = BOUND
            elif ends:
                fate = FINISHED
                self._finish(read, place, token, total / length**self.penalty)
            else:
                fate = KEPT
                worth.append((token, total))
            if trace is not None and scores[rank] > -inf:
                trace.candidate(0, token, fate, total=total)
        if upto < len(tokens):
            self._push(read, place, upto)
        if worth:
            new = torch.tensor([token for token, _ in worth], device=read.tokens.device)
            log_probs = read.log_probs[place][new].tolist()
            rows = torch.full((len(worth),), place, dtype=torch.long, device=new.device)
            self._take_up(
                self._step(
                    [[*read.ids[place], token] for token, _ in worth],
                    [[*read.token_scores[place], score] for score in log_probs],
                    [total for _, total in worth],
                    new,
                    read.state.select(rows),
                )
            )

    def _told(self, trace: Trace, read: _Read, place: int) -> None:
        """A beginning is taken up."""
        written = torch.tensor([read.ids[place]], dtype=torch.long)
        one = slice(place, place + 1)
        trace.step([self.row], written, read.log_probs[one], torch.tensor([read.totals[place]], dtype=torch.float64))
        if self.request.rules or len(read.ids[place]) < self.request.min_new_tokens:
            trace.filter("rules", torch.empty_like(read.scores[one]).scatter_(1, read.tokens[one], read.scores[one]))

    def _finish(self, read: _Read, place: int, token: int, rank: float) -> None:
        """An output that is better than the best one so far."""
        ids, token_scores = read.ids[place], [*read.token_scores[place], float(read.log_probs[place, token])]
        eos = token in self.request.eos_ids
        self.best, self.rank = hypothesis(ids if eos else [*ids, token], token_scores, eos, self.penalty), rank

    def _step(
        self, ids: list[list[int]], token_scores: list[list[float]], totals: list[float], tokens: Tensor, state: State
    ) -> _Read:
        """The network reads the last token of each of those beginnings."""
        logits, state = self.step_function.step(tokens, state)
        self.read += len(ids)
        log_probs = next_log_probs(logits, [self.row] * len(ids), len(ids[0])).double()
        written = torch.tensor(ids, dtype=torch.long, device=logits.device).view(len(ids), -1)
        request = replace(self.request, trace=None)  # it is told when a beginning is taken up
        changed = apply_rules(log_probs, request, [self.row] * len(ids), written, written.shape[1])
        if bool((changed > 0).any()):
            raise ValueError("an exact search needs scores of at most 0, and a rule brought one above")
        scores, order = changed.sort(dim=1, descending=True, stable=True)
        return _Read(ids, token_scores, totals, log_probs, scores, order, state)

    def _take_up(self, read: _Read) -> None:
        """All continuations of those beginnings are open."""
        for place in range(len(read.ids)):
            self._push(read, place, 0)

    def _push(self, read: _Read, place: int, start: int) -> None:
        """The continuations from number `start` on: the first of them bounds them all."""
        total = read.totals[place] + float(read.scores[place, start])
        length = len(read.ids[place]) + 1
        # an end among them stands at a shorter length, which may be the better one
        bound = max(self._bound(total, length, True), self._bound(total, length, False))
        if total > -inf and bound > self._mark():
            heappush(self.open, (-bound, next(self.numbers), read, place, start))
