"""Exact search by branch and bound: the best output there is, with a certificate, and the score that a beam lost.

A sum of log-probabilities only falls as tokens are added. So the sum of an unfinished hypothesis, divided by the length
that favours it most among those that it may reach, bounds the score of every output that begins with it. Hypotheses are
expanded by that bound, the highest first, until none could beat the best output found (Land & Doig 1960; Stahlberg &
Byrne 2019 for translation).
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
from atento.decoding.contract import AnyStepFunction, Request, Rule, State
from atento.decoding.generate import prepare
from atento.decoding.hypothesis import Hypothesis
from atento.decoding.source import Prepared, Source
from atento.decoding.trace import BOUND, FINISHED, KEPT, Trace

_BATCH = 16  # hypotheses that the network reads in one step
_TOLERANCE = 1e-12  # two ways to add the same numbers differ by less


@dataclass(frozen=True)
class Exact:
    """The result of an exact search for one row."""

    best: Hypothesis | None  # the best output found; None if there is none
    # True: `best` is certainly the best output that ends within the limit (None: there is certainly none). False: the
    # search was given up
    optimal: bool
    bound: float  # no output scores above it (by the changed scores, where rules change them)
    read: int  # how many hypotheses the network read


@torch.inference_mode()
def exact_search(
    network: Source,
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
        network, ids, min_new_tokens, token_mask: as in `generate`.
        max_new_tokens: as in `generate`. Only hypotheses that end within them are outputs.
        eos_id: as in `generate`; () = none: then outputs are of `max_new_tokens` tokens.
        length_penalty: as in `Beam`.
        rules: as in `generate`. The best output is that of the changed scores; no rule may bring one above 0.
        limit: how many hypotheses the network may read for one row before the search is given up.
        known: an output for each row, such as a beam's, which the search begins with; not one that rules forbid.
        trace: records every hypothesis that is expanded.

    Raises ValueError: a score above 0, for which the bound does not hold; and what `generate` refuses.
    """
    options = (max_new_tokens, min_new_tokens, eos_id, token_mask, None, rules, None, None, trace)
    return exact_outputs(prepare(network, ids, None, *options), length_penalty, limit, known)


@torch.inference_mode()
def exact_outputs(
    prepared: Prepared, length_penalty: float, limit: int, known: Sequence[Hypothesis | None] | None
) -> list[Exact]:
    """As `exact_search`, for a request that is prepared."""
    request, results = prepared.request, list[Exact]()
    trace, lowest = request.trace, min(request.max_new_tokens, default=1)
    if lowest < 1 or limit < 1:
        raise ValueError(f"`max_new_tokens` and `limit` must be at least 1: got {lowest} and {limit}")
    if trace is not None:
        trace.begin("exact", len(prepared.ids))
    for row, ids in enumerate(prepared.ids.split(1)):  # one row at a time: a heap of its own
        token_mask = None if prepared.token_mask is None else prepared.token_mask[row : row + 1]
        prefix_ids = None if prepared.prefix_ids is None else prepared.prefix_ids[row : row + 1]
        one = replace(prepared, ids=ids, token_mask=token_mask, prefix_ids=prefix_ids)
        search = _Search(one.step_function, row, request, length_penalty, limit)
        known_output = None if known is None else known[row]
        if known_output is not None and (known_output.finished or not request.eos_ids):
            search.best, search.rank = known_output, known_output.score  # a first bound: the beam's output
        results.append(search.run(one.begin(), one.first))
    if trace is not None:
        trace.end([[] if result.best is None else [result.best] for result in results])
    return results


def search_error(output: Hypothesis, exact: Exact) -> float | None:
    """How much score another search lost: 0 if it found the optimum, None if that is not known.

    It is not known for an output that the limit cut off. A value above 0 is certain even if the exact search was given
    up. Both must have been ranked by the same length penalty.
    """
    if exact.best is None or not output.finished:
        return None
    lost = 0.0 if exact.best.ids == output.ids else exact.best.score - output.score
    return lost if lost > 0 else 0.0 if exact.optimal else None


@dataclass
class _Nodes:
    """Hypotheses that the network read in one step, with the distributions and the state after them."""

    ids: list[list[int]]
    token_scores: list[list[float]]
    totals: list[float]  # of changed scores
    log_probs: Tensor  # (R,V)
    scores: Tensor  # (R,V) after the rules, each row in falling order
    tokens: Tensor  # (R,V) in the same order
    state: State


@dataclass
class _Search:
    """The search for one row: open nodes by their bound, and the best output so far."""

    step_function: AnyStepFunction
    row: int
    request: Request
    penalty: float
    limit: int
    best: Hypothesis | None = None
    rank: float = -inf  # of the best, by changed scores
    read: int = 0
    # (- bound, number, nodes, index of the node, the rank of its first continuation that was not examined)
    open: list[tuple[float, int, _Nodes, int, int]] = field(default_factory=list)
    numbers: Any = field(default_factory=count)

    def run(self, state: State, first: Tensor) -> Exact:
        """Expand nodes until none that is open could beat the best output, or the limit is reached."""
        self._open_all(self._step([[]], [[]], [0.0], first, state))
        while self.open and -self.open[0][0] > self._score_to_beat():
            if self.read >= self.limit:
                return Exact(self.best, False, -self.open[0][0], self.read)
            self._branch(*heappop(self.open)[2:])  # the node with the highest bound
        if self.request.trace is not None:
            # record the nodes that stayed open: the best continuation of each
            for _, _, nodes, index, start in sorted(self.open, key=lambda entry: entry[:2]):
                total = nodes.totals[index] + float(nodes.scores[index, start])
                self._record(self.request.trace, nodes, index)
                self.request.trace.candidate(0, int(nodes.tokens[index, start]), BOUND, total=total)
            self.request.trace.stop(self.row, "nothing that was open could be better")
        return Exact(self.best, True, self.rank, self.read)

    def _score_to_beat(self) -> float:
        return self.rank + _TOLERANCE * max(1.0, abs(self.rank)) if self.rank > -inf else -inf

    def _bound(self, total: float, length: int, ends: bool) -> float:
        """The highest score that outputs beginning with a hypothesis of that sum and length may have.

        `ends`: the hypothesis is itself an output; otherwise it is unfinished.
        """
        limit, eos = self.request.max_new_tokens[self.row], bool(self.request.eos_ids)
        lengths = (length,) if ends else (max(length + 1, self.request.min_new_tokens + 1) if eos else limit, limit)
        bounds = [total / float(reached**self.penalty) for reached in lengths]  # for either sign of the penalty
        return -inf if lengths[0] > limit else max(bounds)

    def _branch(self, nodes: _Nodes, index: int, start: int) -> None:
        """Examine the next continuations of a node: store the best output, expand the hypotheses that may still be
        better."""
        length, trace = len(nodes.ids[index]) + 1, self.request.trace
        tokens, scores = nodes.tokens[index].tolist(), nodes.scores[index].tolist()
        if trace is not None:
            self._record(trace, nodes, index)
        promising, end = [], min(start + _BATCH, len(tokens))  # tokens are sorted: the best are looked at first
        for rank in range(start, end):
            total, token = nodes.totals[index] + scores[rank], tokens[rank]  # sums fall as tokens are added
            eos, limit = self.request.eos_ids, self.request.max_new_tokens[self.row]
            ends = token in eos or (not eos and length == limit)  # without EOS ids, outputs end at the limit
            if scores[rank] == -inf or self._bound(total, length, ends) <= self._score_to_beat():
                fate = BOUND
            elif ends:
                fate = FINISHED
                ids = nodes.ids[index] if eos else [*nodes.ids[index], token]  # EOS is no part of the ids
                token_scores = [*nodes.token_scores[index], float(nodes.log_probs[index, token])]
                self.best = hypothesis(ids, token_scores, bool(eos), self.penalty)
                self.rank = total / length**self.penalty
            else:
                fate = KEPT
                promising.append((token, total))
            if trace is not None and scores[rank] > -inf:
                trace.candidate(0, token, fate, total=total)
        if end < len(tokens):
            self._push(nodes, index, end)  # its later tokens are open as one node
        if promising:
            new = torch.tensor([token for token, _ in promising], device=nodes.tokens.device)
            log_probs = nodes.log_probs[index][new].tolist()  # by the model, before the rules
            rows = torch.full((len(promising),), index, dtype=torch.long, device=new.device)  # all continue one node
            self._open_all(
                self._step(
                    [[*nodes.ids[index], token] for token, _ in promising],
                    [[*nodes.token_scores[index], score] for score in log_probs],
                    [total for _, total in promising],
                    new,
                    nodes.state.select(rows),
                )
            )

    def _record(self, trace: Trace, nodes: _Nodes, index: int) -> None:
        written = torch.tensor([nodes.ids[index]], dtype=torch.long)
        index_slice = slice(index, index + 1)
        trace.step(
            [self.row], written, nodes.log_probs[index_slice], torch.tensor([nodes.totals[index]], dtype=torch.float64)
        )
        if self.request.rules or len(nodes.ids[index]) < self.request.min_new_tokens:
            trace.filter(
                "rules",
                torch.empty_like(nodes.scores[index_slice]).scatter_(
                    1, nodes.tokens[index_slice], nodes.scores[index_slice]
                ),
            )

    def _step(
        self, ids: list[list[int]], token_scores: list[list[float]], totals: list[float], tokens: Tensor, state: State
    ) -> _Nodes:
        """The network reads the last token of each hypothesis."""
        logits, state = self.step_function.step(tokens, state)
        self.read += len(ids)
        log_probs = next_log_probs(logits, [self.row] * len(ids), len(ids[0])).double()  # in float64, for sums
        written = torch.tensor(ids, dtype=torch.long, device=logits.device).view(len(ids), -1)
        request = replace(self.request, trace=None)  # it records a node when it is expanded
        changed = apply_rules(log_probs, request, [self.row] * len(ids), written, written.shape[1])
        if bool((changed > 0).any()):
            raise ValueError("an exact search needs scores of at most 0, and a rule brought one above")
        scores, order = changed.sort(dim=1, descending=True, stable=True)  # (R,V)
        return _Nodes(ids, token_scores, totals, log_probs, scores, order, state)

    def _open_all(self, nodes: _Nodes) -> None:
        for index in range(len(nodes.ids)):
            self._push(nodes, index, 0)

    def _push(self, nodes: _Nodes, index: int, start: int) -> None:
        """Open the continuations of a node from rank `start` on: the first of them bounds them all."""
        total = nodes.totals[index] + float(nodes.scores[index, start])
        length = len(nodes.ids[index]) + 1
        # an output that ends here is shorter than one that continues, and either may have the higher bound
        bound = max(self._bound(total, length, True), self._bound(total, length, False))
        if total > -inf and bound > self._score_to_beat():
            heappush(self.open, (-bound, next(self.numbers), nodes, index, start))
