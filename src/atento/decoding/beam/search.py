"""Beam search over a step function, all sentences at once, finished ones leaving (docs/notes.md#h6, #h7, #h8, #h9)."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from atento.decoding.beam.candidates import Best, Candidates, InTurns, Proposer, going_on
from atento.decoding.beam.paths import Ended, Paths
from atento.decoding.beam.required import Required
from atento.decoding.beam.trace import tell
from atento.decoding.contract import Request, StateT, StepFunction
from atento.decoding.distribution import next_log_probs
from atento.decoding.greedy import among, hypothesis, ruled
from atento.decoding.hypothesis import Hypothesis
from atento.decoding.strategies import Beam
from atento.decoding.trace import CUT, KEPT, OVER

FILLED = "as many outputs as the beam is wide have ended"
HOPELESS = "no beginning could rank among the outputs any more"
LIMIT = "the length limit"
NOTHING = "nothing was left to go on with"


def beam(
    step_function: StepFunction[StateT], state: StateT, first: Tensor, strategy: Beam, request: Request
) -> list[list[Hypothesis]]:
    """first (B,) or (B,P) tokens to start from -> the n best hypotheses of each sentence, best first.

    Rules change the log-probabilities before the choice, and what they change is not scaled to sum to 1 again. The
    search goes by the changed sums throughout: which beginnings are kept, when it is over, which output is best. What
    is handed out are the model's own log-probabilities. So where a rule makes tokens dearer without forbidding them (a
    repetition penalty, `diversity`), the outputs stand in the order that the rule asks for, and their `score` need not
    fall from one to the next; where rules only forbid, and without rules, it does.

    Outputs that ended stand before those that the length limit cut off, which only fill up: a beginning is always more
    probable than any output that begins with it, so that its score says nothing beside theirs.
    """
    results: list[list[Hypothesis]] = [[] for _ in request.max_new_tokens]
    rows = [row for row, limit in enumerate(request.max_new_tokens) if limit > 0]
    for row, limit in enumerate(request.max_new_tokens):
        if limit < 1:
            results[row] = [hypothesis([], [], False, strategy.length_penalty)]
    if request.trace is not None:
        request.trace.begin("beam", len(results))
    if rows:
        search = _Search(rows, first.device, strategy, request)
        places = torch.tensor(search.rows, device=first.device)
        state, tokens = state.select(places), first[places]
        while search.units:
            logits, state = step_function.step(tokens, state)
            moved, tokens = search.extend(next_log_probs(logits, search.rows, search.length), results)
            if moved is not None and search.units:
                state = state.select(moved)
    if request.trace is not None:
        request.trace.end(results)
    return results


@dataclass
class _Unit:
    """One search, for a sentence or for one group of it: what has ended, the best first, and why it is over."""

    row: int
    max_new_tokens: int
    ended: list[Ended] = field(default_factory=list)
    over: str = ""


class _Search:
    """The live beginnings of N sentences: U = N times groups searches, w places each, the best first.

    A place that is not in use scores -inf. What was written is kept as pointers back (`Paths`), and as ids only where
    somebody reads them: rules, a stop string, a trace.
    """

    def __init__(self, rows: list[int], device: torch.device, strategy: Beam, request: Request) -> None:
        self.strategy, self.request, self.device = strategy, request, device
        self.width = strategy.width // strategy.groups
        self.units = [_Unit(row, request.max_new_tokens[row]) for row in rows for _ in range(strategy.groups)]
        self.paths = Paths(self.width)
        self.proposer = self._proposer(rows)
        self.length = 0
        self.scores = torch.full((len(self.units), self.width), -torch.inf, device=device)
        self.behind = self.scores  # as the step began
        self.scores[:, 0] = 0.0  # all places hold the same beginning: only one may be extended
        read = request.rules or request.stop is not None or request.trace is not None
        self.written = torch.empty(self.scores.numel(), 0, dtype=torch.long, device=device) if read else None
        self.closed: Tensor | None = None  # (U,w) places given to outputs that ended
        self._close()
        self._count()

    def _proposer(self, rows: list[int]) -> Proposer:
        strategy, request = self.strategy, self.request
        # every place may end at once, in as many ways as there are ends, and leave as many that go on
        count = self.width * (1 + max(1, len(request.eos_ids) + (request.stop is not None)))
        if request.required is not None and any(request.required):
            if strategy.groups > 1:
                raise ValueError("required words and `groups` do not go together")
            return Required([request.required[row] for row in rows], rows, request, count, self.width, self.device)
        if strategy.groups > 1:
            return InTurns(count, strategy.groups, strategy.diversity, request.eos_ids)
        return Best(count)

    def _close(self) -> None:
        """Places that a search may no longer keep."""
        left = [_places(unit, self.strategy) for unit in self.units]
        if min(left) < self.width:
            self.closed = (
                torch.arange(self.width, device=self.device) >= torch.tensor(left, device=self.device)[:, None]
            )

    def _count(self) -> None:
        """What depends on which searches are left."""
        self.rows = [unit.row for unit in self.units for _ in range(self.width)]
        self.soonest = min((unit.max_new_tokens for unit in self.units if not unit.over), default=0)
        self.unmoved = torch.arange(len(self.rows), device=self.device).view(len(self.units), self.width)

    def extend(self, log_probs: Tensor, results: list[list[Hypothesis]]) -> tuple[Tensor | None, Tensor]:
        """One step: log_probs (U*w,V) -> the row that each place goes on from, None if its own, and its token (U*w).

        Sentences whose search is over leave, their outputs in `results`.
        """
        request, self.behind = self.request, self.scores
        written = log_probs if self.written is None else self.written  # nobody looks at it then
        if request.trace is not None:
            request.trace.step(self.rows, written, log_probs, self.behind.flatten())
        changed = ruled(log_probs, request, self.rows, written, self.length)
        self.length += 1
        found = self.proposer.propose(changed, self.behind, self.length)
        index = found.parents * log_probs.shape[-1] + found.tokens
        own = log_probs.view(len(self.units), -1).gather(1, index)  # (U,c) the model's own
        ends = self._ends(found)
        gone = ends | (found.scores == -torch.inf)
        news = bool(gone[:, : self.width].any())
        room = [_places(unit, self.strategy) for unit in self.units] if news or request.trace is not None else []
        if news:
            self._set_aside(found, ends, own, room)
            places = going_on(gone, self.width)
            chosen, own = found.at(places), own.gather(1, places)
            chosen.scores = chosen.scores.masked_fill(gone.gather(1, places), -torch.inf)
        else:  # the best k go on as they are
            chosen, own = found.first(self.width), own[:, : self.width]
        if self.closed is not None:
            chosen.scores = chosen.scores.masked_fill(self.closed, -torch.inf)
        self.scores = chosen.scores
        self.proposer.took(chosen)
        moved = chosen.parents + self.unmoved[:, :1]  # (U,w)
        self.paths.grow(chosen.tokens, own, moved)
        kept = self._judge(results) if news or self.length >= self.soonest or self._waiting() else None
        if request.trace is not None:
            fates = [CUT if unit.max_new_tokens <= self.length else OVER if unit.over else KEPT for unit in self.units]
            tell(request.trace, found, ends, chosen, room, fates)
        return self._go_on(moved, chosen.tokens, kept)

    def _ends(self, found: Candidates) -> Tensor:
        """(U,c): which continuations end an output."""
        ends = among(found.tokens, self.request.eos_ids)
        stop = self.request.stop
        if stop is None or self.written is None:
            return ends
        rows = (found.parents + self.unmoved[:, :1]).tolist()
        written, possible = self.written.tolist(), (found.scores > -torch.inf).tolist()
        stopped = [
            [ok and stop([*written[row], token]) for row, token, ok in zip(*one)]
            for one in zip(rows, found.tokens.tolist(), possible)
        ]
        return ends | torch.tensor(stopped, device=self.device)

    def _set_aside(self, found: Candidates, ends: Tensor, own: Tensor, room: list[int]) -> None:
        """The continuations that end and stand among the best k are outputs."""
        places = (ends & (found.scores > -torch.inf))[:, : self.width].nonzero().tolist()
        scores, parents, tokens = (
            part[:, : self.width].tolist() for part in (found.scores, found.parents, found.tokens)
        )
        log_probs, by_length = own[:, : self.width].tolist(), self.length**self.strategy.length_penalty
        for u, place in places:
            if place < room[u]:
                row, token = u * self.width + parents[u][place], tokens[u][place]
                one = Ended(
                    scores[u][place] / by_length,
                    self.length - 1,
                    row,
                    token,
                    log_probs[u][place],
                    token in self.request.eos_ids,
                )
                self.units[u].ended.append(one)
        for u in {u for u, _ in places}:
            self.units[u].ended.sort(key=lambda one: -one.rank)
            del self.units[u].ended[self.width :]  # more are never handed out
        if places:
            self._close()

    def _waiting(self) -> bool:
        """Whether a search has all the outputs it needs and goes on only as long as better ones may come."""
        return self.strategy.until != "filled" and any(len(unit.ended) >= self.width for unit in self.units)

    def _judge(self, results: list[list[Hypothesis]]) -> list[int] | None:
        """Searches that are over get their reason, sentences that are over their outputs; which searches stay."""
        best = self.scores.amax(dim=1).tolist()
        for unit, score in zip(self.units, best):
            unit.over = unit.over or self._why_over(unit, score)
        groups, stay = self.strategy.groups, list[int]()
        for start in range(0, len(self.units), groups):
            units = self.units[start : start + groups]
            if not all(unit.over for unit in units):
                stay += range(start, start + groups)
                continue
            row = units[0].row
            results[row] = self._ranked(units, start)
            if self.request.trace is not None:
                self.request.trace.stop(row, "; ".join(dict.fromkeys(unit.over for unit in units)))
        if groups > 1 and any(unit.over for unit in self.units):  # a group that is over waits for the others
            over = torch.tensor([bool(unit.over) for unit in self.units], device=self.device)
            self.scores = self.scores.masked_fill(over.unsqueeze(1), -torch.inf)
        return stay if len(stay) < len(self.units) else None

    def _why_over(self, unit: _Unit, best: float) -> str:
        """Why the search is over, if it is. The best score of a beginning bounds what may come of it: sums fall."""
        if len(unit.ended) >= self.width:
            if self.strategy.until == "filled":
                return FILLED
            penalty = self.strategy.length_penalty
            length = self.length
            if self.strategy.until == "sure":  # the length, of those it may still reach, at which it would rank best
                length = unit.max_new_tokens if penalty > 0 else self.length + 1
            if best == -torch.inf or best / length**penalty <= unit.ended[-1].rank:
                return HOPELESS
        if best == -torch.inf:
            return NOTHING
        return LIMIT if self.length >= unit.max_new_tokens else ""

    def _ranked(self, units: list[_Unit], start: int) -> list[Hypothesis]:
        """The n best by rank, no output twice; beginnings cut off by the length limit only fill up, unfinished."""
        penalty, n_best = self.strategy.length_penalty, self.strategy.n_best
        exact = not self.request.rules and not self.strategy.diversity  # then rank is score, but for the last digit
        ended = []
        for one in (one for unit in units for one in unit.ended):
            found = hypothesis(*self.paths.ids_of(one), True, penalty)
            ended.append((found.score if exact else one.rank, one.token, found))
        best, here = _best(ended, n_best), slice(start, start + len(units))
        if len(best) < n_best and self.length >= units[0].max_new_tokens:
            best += _best(self._unfinished(self.scores[here], self.paths.written, start), n_best - len(best))
        if not best:  # rules have left nothing to go on with
            best = _best(self._unfinished(self.behind[here], self.paths.behind, start), n_best)
        return best

    def _unfinished(
        self, scores: Tensor, path: Callable[[int, int], tuple[list[int], list[float]]], start: int
    ) -> list[tuple[float, int, Hypothesis]]:
        """The beginnings that score more than -inf, with their rank, as `_best` takes them."""
        found = []
        for place, score in enumerate(scores.flatten().tolist()):
            if score > -torch.inf:
                one = hypothesis(
                    *path(self.length - 1, start * self.width + place), False, self.strategy.length_penalty
                )
                found.append((score / max(1, len(one.ids)) ** self.strategy.length_penalty, -1, one))
        return found

    def _go_on(self, moved: Tensor, tokens: Tensor, kept: list[int] | None) -> tuple[Tensor | None, Tensor]:
        """Only searches that stay are kept."""
        if kept is None:
            rows = None if torch.equal(moved, self.unmoved) else moved.flatten()
            tokens = tokens.flatten()
            if self.written is not None:
                behind = self.written if rows is None else self.written[rows]
                self.written = torch.cat([behind, tokens.unsqueeze(1)], dim=1)
            return rows, tokens
        stay = torch.tensor(kept, dtype=torch.long, device=self.device)
        self.paths.keep(kept)
        self.units = [self.units[u] for u in kept]
        rows, tokens = moved[stay].flatten(), tokens[stay].flatten()
        self.scores = self.scores[stay]
        self.closed = None if self.closed is None else self.closed[stay]
        self.proposer.select(stay)
        if self.written is not None:
            self.written = torch.cat([self.written[rows], tokens.unsqueeze(1)], dim=1)
        self._count()
        return rows, tokens


def _places(unit: _Unit, strategy: Beam) -> int:
    """How many beginnings the search may keep."""
    width = strategy.width // strategy.groups
    return width if strategy.stopping == "fixed" else max(0, width - len(unit.ended))


def _best(ranked: list[tuple[float, int, Hypothesis]], count: int) -> list[Hypothesis]:
    """(rank, the token that ended it, output): by rank, the highest first, each once: groups may find the same one."""
    best: dict[tuple[int, ...], Hypothesis] = {}
    for _, end, one in sorted(ranked, key=lambda entry: -entry[0]):
        best.setdefault((end, *one.ids), one)
    return list(best.values())[:count]
