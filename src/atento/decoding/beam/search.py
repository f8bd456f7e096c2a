"""Beam search over a step function, all sentences at once; finished ones leave (docs/notes.md#h6, #h7, #h8, #h9)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from atento.decoding.beam.backpointers import Backpointers, Finished
from atento.decoding.beam.candidates import Candidates, DiverseGroups, HighestScores, Proposer, first_live
from atento.decoding.beam.required import RequiredWords
from atento.decoding.beam.trace import record_step
from atento.decoding.choosing import apply_rules, hypothesis, isin, next_log_probs
from atento.decoding.contract import Request, StateT, StepFunction
from atento.decoding.hypothesis import Hypothesis
from atento.decoding.strategies import Beam
from atento.decoding.trace import CUT, KEPT, OVER

# Why a search has ended.
FILLED = "as many outputs as the beam is wide have ended"
HOPELESS = "no unfinished hypothesis could rank among the outputs any more"
LIMIT = "the length limit"
NOTHING = "nothing was left to go on with"


def beam(
    step_function: StepFunction[StateT], state: StateT, first: Tensor, strategy: Beam, request: Request
) -> list[list[Hypothesis]]:
    """The n best hypotheses of each sentence, best first.

    Rules change the log-probabilities before the choice, and the changed ones are not scaled to sum to 1 again. The
    search uses the changed sums throughout: which hypotheses stay in the beam, when the search is over, which output is
    best. The outputs have the model's own log-probabilities. So where a rule makes tokens less likely without
    forbidding them (a repetition penalty, `diversity`), the outputs are in the order that the rule asks for, and their
    `score` need not fall from one to the next. Without rules, and where rules only forbid, it does.

    Finished outputs come before those that the length limit cut off, which only fill up the list: an unfinished
    hypothesis is always more probable than any output that begins with it, so the two scores do not compare.

    Args:
        step_function: what gives the logits of the next token.
        state: its state after the sources or prompts (B rows).
        first: (B,) or (B,P), the tokens that the first step reads.
        strategy: the options of the search.
        request: limits, rules, required words, stop function and trace.
    """
    results: list[list[Hypothesis]] = [[] for _ in request.max_new_tokens]
    for _ in beam_steps(step_function, state, first, strategy, request, results):
        pass
    return results


def beam_steps(
    step_function: StepFunction[StateT],
    state: StateT,
    first: Tensor,
    strategy: Beam,
    request: Request,
    results: list[list[Hypothesis]],
) -> Iterator[BeamSearch]:
    """Search as `beam`, and give the search after each of its steps; the outputs are written to `results`."""
    rows = [row for row, limit in enumerate(request.max_new_tokens) if limit > 0]
    for row, limit in enumerate(request.max_new_tokens):
        if limit < 1:
            results[row] = [hypothesis([], [], False, strategy.length_penalty)]
    if request.trace is not None:
        request.trace.begin("beam", len(results))
    if rows:
        search = BeamSearch(rows, first.device, strategy, request)
        index = torch.tensor(search.rows, device=first.device)
        state, tokens = state.select(index), first[index]
        while search.groups:
            logits, state = step_function.step(tokens, state)
            parents, tokens = search.extend(next_log_probs(logits, search.rows, search.length), results)
            yield search
            if parents is not None and search.groups:
                state = state.select(parents)
    if request.trace is not None:
        request.trace.end(results)


@dataclass
class _Group:
    """One group of a sentence's beam; without `Beam.groups`, the only one."""

    row: int  # of the request
    max_new_tokens: int
    finished: list[Finished] = field(default_factory=list)  # the best first
    stop_reason: str = ""  # why its search has ended; empty: it has not


class BeamSearch:
    """The live hypotheses of N sentences: U groups (N times `Beam.groups`) of w slots each, the best first.

    An empty slot has the score -inf. Tokens are stored as backpointers (`Backpointers`), and as ids only if
    something reads them: rules, a stop function, a trace.
    """

    def __init__(self, rows: list[int], device: torch.device, strategy: Beam, request: Request) -> None:
        self.strategy, self.request, self.device = strategy, request, device
        self.width = strategy.width // strategy.groups
        self.groups = [_Group(row, request.max_new_tokens[row]) for row in rows for _ in range(strategy.groups)]
        self.backpointers = Backpointers(self.width)
        self.proposer = self._proposer(rows)
        self.length = 0
        self.scores = torch.full((len(self.groups), self.width), -torch.inf, device=device)
        self.previous_scores = self.scores  # at the beginning of the step
        self.scores[:, 0] = 0.0  # all slots hold the same empty hypothesis: only one may be extended
        read = request.rules or request.stop is not None or request.trace is not None
        self.written = torch.empty(self.scores.numel(), 0, dtype=torch.long, device=device) if read else None
        self.closed: Tensor | None = None  # (U,w) slots that a shrinking beam has closed
        self._close_slots()
        self._index_groups()

    def _proposer(self, rows: list[int]) -> Proposer:
        strategy, request = self.strategy, self.request
        # Every slot may finish at once, in as many ways as there are end tokens. The candidates must still contain
        # `width` others that continue.
        count = self.width * (1 + max(1, len(request.eos_ids) + (request.stop is not None)))
        if request.required is not None and any(request.required):
            if strategy.groups > 1:
                raise ValueError("required words and `groups` exclude each other: both divide the beam")
            return RequiredWords([request.required[row] for row in rows], rows, request, count, self.width, self.device)
        if strategy.groups > 1:
            return DiverseGroups(count, strategy.groups, strategy.diversity, request.eos_ids)
        return HighestScores(count)

    def _close_slots(self) -> None:
        """Update `closed`: a shrinking beam closes a slot for each finished output."""
        slots = [_slots(group, self.strategy) for group in self.groups]
        if min(slots) < self.width:
            self.closed = (
                torch.arange(self.width, device=self.device) >= torch.tensor(slots, device=self.device)[:, None]
            )

    def _index_groups(self) -> None:
        """Update the attributes that depend on the remaining groups."""
        self.rows = [group.row for group in self.groups for _ in range(self.width)]
        self.next_limit = min((group.max_new_tokens for group in self.groups if not group.stop_reason), default=0)
        self.slot_rows = torch.arange(len(self.rows), device=self.device).view(len(self.groups), self.width)

    def extend(self, log_probs: Tensor, results: list[list[Hypothesis]]) -> tuple[Tensor | None, Tensor]:
        """Do one step of the search: rank the candidates, store finished outputs, and choose the live hypotheses.

        Args:
            log_probs: (U*w,V) of the next token.
            results: receives the outputs of the sentences whose search has ended; their groups leave.

        Returns:
            The row whose state each slot continues (U'*w), None if each continues its own; and its token (U'*w).
        """
        request, self.previous_scores = self.request, self.scores
        written = log_probs if self.written is None else self.written  # not read in this case
        if request.trace is not None:
            request.trace.step(self.rows, written, log_probs, self.previous_scores.flatten())
        adjusted = apply_rules(log_probs, request, self.rows, written, self.length)
        self.length += 1

        # More candidates than slots, in order: those that finish an output leave the beam, and the next ones take their
        # slots.
        candidates = self.proposer.propose(adjusted, self.previous_scores, self.length)
        index = candidates.parents * log_probs.shape[-1] + candidates.tokens
        model_log_probs = log_probs.view(len(self.groups), -1).gather(1, index)  # (U,c) before the rules
        ends = self._ends(candidates)
        dropped = ends | (candidates.scores == -torch.inf)
        # Only the best `width` may finish an output, and in most steps none does: then storing is skipped.
        # This waits for the device once a step.
        some_dropped = bool(dropped[:, : self.width].any())
        record = some_dropped or request.trace is not None
        slots = [_slots(group, self.strategy) for group in self.groups] if record else []
        if some_dropped:
            self._store_finished(candidates, ends, model_log_probs, slots)
            live = first_live(dropped, self.width)
            chosen, model_log_probs = candidates.select(live), model_log_probs.gather(1, live)
            # if too few candidates are live, dropped ones fill the other slots, which are then empty
            chosen.scores = chosen.scores.masked_fill(dropped.gather(1, live), -torch.inf)
        else:
            chosen, model_log_probs = candidates.first(self.width), model_log_probs[:, : self.width]
        if self.closed is not None:
            chosen.scores = chosen.scores.masked_fill(self.closed, -torch.inf)

        self.scores = chosen.scores
        self.proposer.advance(chosen)
        parents = chosen.parents + self.slot_rows[:, :1]  # (U,w) slots of a group -> rows of the batch
        self.backpointers.append(chosen.tokens, model_log_probs, parents)
        # A search can only end after a step in which an output finished, the limit was reached, or it waits for
        # better outputs. Otherwise the scores need not be copied from the device.
        remaining = None
        if some_dropped or self.length >= self.next_limit or self._is_waiting():
            remaining = self._remaining(results)
        if request.trace is not None:
            fates = [
                CUT if group.max_new_tokens <= self.length else OVER if group.stop_reason else KEPT
                for group in self.groups
            ]
            record_step(request.trace, candidates, ends, chosen, slots, fates)
        return self._select(parents, chosen.tokens, remaining)

    def certain(self) -> tuple[list[int], list[float]]:
        """The ids and log-probabilities with which the best output begins, for a search of one sentence.

        All live hypotheses begin with them, and so do the finished outputs that may still be the best.
        """
        live = [slot for slot, score in enumerate(self.scores.flatten().tolist()) if score > -torch.inf]
        finished = [output for group in self.groups for output in group.finished]
        best = max((output.rank for output in finished), default=0.0)
        # their scores are summed again for the outputs, so the last digits do not decide here
        near = [output for output in finished if output.rank >= best - 1e-3 * max(1.0, abs(best))]
        return self.backpointers.common(live, near) if live else ([], [])

    def _ends(self, candidates: Candidates) -> Tensor:
        """Which candidates finish an output: boolean (U,c)."""
        ends = isin(candidates.tokens, self.request.eos_ids)
        stop = self.request.stop
        if stop is None or self.written is None:
            return ends
        rows = (candidates.parents + self.slot_rows[:, :1]).tolist()
        written, possible = self.written.tolist(), (candidates.scores > -torch.inf).tolist()
        stopped = [
            [ok and stop([*written[row], token]) for row, token, ok in zip(*group)]
            for group in zip(rows, candidates.tokens.tolist(), possible)
        ]
        return ends | torch.tensor(stopped, device=self.device)

    def _store_finished(self, candidates: Candidates, ends: Tensor, model_log_probs: Tensor, slots: list[int]) -> None:
        """Store the candidates that finish an output and are among the best `slots`."""
        finishing = (ends & (candidates.scores > -torch.inf))[:, : self.width].nonzero().tolist()
        scores, parents, tokens = (
            part[:, : self.width].tolist() for part in (candidates.scores, candidates.parents, candidates.tokens)
        )
        log_probs = model_log_probs[:, : self.width].tolist()
        divisor = self.length**self.strategy.length_penalty
        for group, column in finishing:
            if column < slots[group]:
                finished = Finished(
                    rank=scores[group][column] / divisor,
                    step=self.length - 1,
                    parent=group * self.width + parents[group][column],
                    token=tokens[group][column],
                    log_prob=log_probs[group][column],
                    eos=tokens[group][column] in self.request.eos_ids,
                )
                self.groups[group].finished.append(finished)
        for group in {group for group, _ in finishing}:
            self.groups[group].finished.sort(key=lambda finished: -finished.rank)
            del self.groups[group].finished[self.width :]  # more are never returned
        if finishing:
            self._close_slots()

    def _is_waiting(self) -> bool:
        """Whether a group has as many outputs as it may return, and only waits for better ones."""
        return self.strategy.until != "filled" and any(len(group.finished) >= self.width for group in self.groups)

    def _remaining(self, results: list[list[Hypothesis]]) -> list[int] | None:
        """The numbers of the groups that continue, None if all do; adds the outputs of finished sentences to `results`.

        A sentence is finished when all its groups are.
        """
        best = self.scores.amax(dim=1).tolist()
        for group, score in zip(self.groups, best):
            group.stop_reason = group.stop_reason or self._stop_reason(group, score)
        size, remaining = self.strategy.groups, list[int]()
        for start in range(0, len(self.groups), size):
            groups = self.groups[start : start + size]
            if not all(group.stop_reason for group in groups):
                remaining += range(start, start + size)
                continue
            row = groups[0].row
            results[row] = self._outputs(groups, start)
            if self.request.trace is not None:
                self.request.trace.stop(row, "; ".join(dict.fromkeys(group.stop_reason for group in groups)))
        if size > 1 and any(group.stop_reason for group in self.groups):  # a finished group waits for the others
            is_finished = torch.tensor([bool(group.stop_reason) for group in self.groups], device=self.device)
            self.scores = self.scores.masked_fill(is_finished.unsqueeze(1), -torch.inf)
        return remaining if len(remaining) < len(self.groups) else None

    def _stop_reason(self, group: _Group, best: float) -> str:
        """Why the search of a group has ended; empty if it has not.

        `best` is the score of its best live hypothesis. It bounds the score of all later outputs, because sums only
        fall.
        """
        if len(group.finished) >= self.width:
            if self.strategy.until == "filled":
                return FILLED
            penalty = self.strategy.length_penalty
            length = self.length
            if self.strategy.until == "sure":  # the length at which it would rank best, of those it may still reach
                length = group.max_new_tokens if penalty > 0 else self.length + 1
            if best == -torch.inf or best / length**penalty <= group.finished[-1].rank:
                return HOPELESS
        if best == -torch.inf:
            return NOTHING
        return LIMIT if self.length >= group.max_new_tokens else ""

    def _outputs(self, groups: list[_Group], start: int) -> list[Hypothesis]:
        """The n best outputs of a sentence by rank, none twice; `start` is the number of its first group.

        Hypotheses that the length limit cut off only fill up the list.
        """
        penalty, n_best = self.strategy.length_penalty, self.strategy.n_best
        exact = not self.request.rules and not self.strategy.diversity  # then rank is score, but for the last digit
        ranked = []
        for finished in (finished for group in groups for finished in group.finished):
            output = hypothesis(*self.backpointers.output(finished), True, penalty)
            ranked.append((output.score if exact else finished.rank, finished.token, output))
        outputs, group_slice = _best(ranked, n_best), slice(start, start + len(groups))
        if len(outputs) < n_best and self.length >= groups[0].max_new_tokens:
            cut = self._unfinished(self.scores[group_slice], self.backpointers.after, start)
            outputs += _best(cut, n_best - len(outputs))
        if not outputs:  # the rules left no token
            outputs = _best(
                self._unfinished(self.previous_scores[group_slice], self.backpointers.before, start), n_best
            )
        return outputs

    def _unfinished(
        self, scores: Tensor, tokens: Callable[[int, int], tuple[list[int], list[float]]], start: int
    ) -> list[tuple[float, int, Hypothesis]]:
        """The hypotheses in slots of these scores that are not empty, as `_best` takes them.

        `tokens` gives the ids and log-probabilities of a row after or before the last step.
        """
        penalty, ranked = self.strategy.length_penalty, []
        for slot, score in enumerate(scores.flatten().tolist()):
            if score > -torch.inf:
                output = hypothesis(*tokens(self.length - 1, start * self.width + slot), False, penalty)
                ranked.append((score / max(1, len(output.ids)) ** penalty, -1, output))
        return ranked

    def _select(self, parents: Tensor, tokens: Tensor, remaining: list[int] | None) -> tuple[Tensor | None, Tensor]:
        """Drop all groups but the remaining ones. Returns the value of `extend`."""
        if remaining is None:
            rows = None if torch.equal(parents, self.slot_rows) else parents.flatten()
            tokens = tokens.flatten()
            if self.written is not None:
                written = self.written if rows is None else self.written[rows]
                self.written = torch.cat([written, tokens.unsqueeze(1)], dim=1)
            return rows, tokens
        index = torch.tensor(remaining, dtype=torch.long, device=self.device)
        self.backpointers.select(remaining)
        self.groups = [self.groups[number] for number in remaining]
        rows, tokens = parents[index].flatten(), tokens[index].flatten()
        self.scores = self.scores[index]
        self.closed = None if self.closed is None else self.closed[index]
        self.proposer.select(index)
        if self.written is not None:
            self.written = torch.cat([self.written[rows], tokens.unsqueeze(1)], dim=1)
        self._index_groups()
        return rows, tokens


def _slots(group: _Group, strategy: Beam) -> int:
    """How many live hypotheses a group may hold."""
    width = strategy.width // strategy.groups
    return width if strategy.stopping == "fixed" else max(0, width - len(group.finished))


def _best(ranked: list[tuple[float, int, Hypothesis]], count: int) -> list[Hypothesis]:
    """The `count` best of (rank, the token that finished it, output) without duplicates: groups may find the same
    output."""
    best: dict[tuple[int, ...], Hypothesis] = {}
    for _, end, output in sorted(ranked, key=lambda entry: -entry[0]):
        best.setdefault((end, *output.ids), output)
    return list(best.values())[:count]
