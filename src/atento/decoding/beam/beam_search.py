"""Beam search over a step function, all sentences at once; finished ones leave (docs/notes.md#h6, #h7, #h8, #h9)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from atento.decoding.beam.candidates import Candidates, DiverseGroups, HighestScores, record_step
from atento.decoding.beam.groups import BeamRequest, Finished, Group, Ranked, certain_beginning, outputs_of
from atento.decoding.beam.required import RequiredWords
from atento.decoding.choosing import apply_rules, kept, moved_up, next_log_probs
from atento.decoding.contract import Request, StateT, StepFunction
from atento.decoding.hypothesis import Hypothesis
from atento.decoding.strategies import Beam
from atento.decoding.trace import CUT, KEPT, OVER, Trace


@runtime_checkable
class BeamHost(Protocol):
    """A step function that runs searches itself, with those of other requests beside them."""

    def takes(self, asked: BeamRequest) -> bool:
        """Whether it runs this one."""

    def beam_steps(self, asked: BeamRequest, *, each: bool) -> Iterator[BeamSearch]:
        """As the function `beam_steps`; the search is given after each step only if `each` says so."""


def beam(
    step_function: StepFunction[StateT], begin: Callable[[], StateT], first: Tensor, strategy: Beam, request: Request
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
        begin: makes its state after the sources or prompts (B rows).
        first: (B,) or (B,P), the tokens that the first step reads.
        strategy: the options of the search.
        request: limits, rules, required words, stop function and trace.
    """
    asked = BeamRequest(strategy, request)
    for _ in beam_steps(step_function, begin, first, asked, each=False):
        pass
    return asked.results


def beam_steps(
    step_function: StepFunction[StateT],
    begin: Callable[[], StateT],
    first: Tensor,
    asked: BeamRequest,
    *,
    each: bool = True,
) -> Iterator[BeamSearch]:
    """Search as `beam`, and give the search after each of its steps; the outputs are those of `asked`."""
    if isinstance(step_function, BeamHost) and first.dim() == 1 and step_function.takes(asked):
        yield from step_function.beam_steps(asked, each=each)
        return
    trace = asked.request.trace
    if trace is not None:
        trace.begin("beam", len(asked.results))
    if asked.groups:
        search = BeamSearch(asked.width, _proposer(asked, first.device), first.device, trace)
        search.join(asked.groups)
        index = torch.tensor(search.rows, device=first.device)  # each row w times in place: (B·w,)
        state, tokens = begin().select(index), first[index]  # the state of a row, once for each of its slots
        while search.groups:
            logits, state = step_function.step(tokens, state)
            length = search.groups[0].length  # the same for all: they began together
            parents, chosen = search.extend(next_log_probs(logits, search.rows, length))
            if asked.error is not None:
                raise asked.error
            rows, tokens = search.leave(parents, chosen)
            yield search
            if rows is not None and search.groups:
                state = kept(state, rows)  # None: each continues its own state
    if trace is not None:
        trace.end(asked.results)


def _proposer(asked: BeamRequest, device: torch.device) -> HighestScores:
    strategy, request = asked.strategy, asked.request
    if request.required is not None and any(request.required):
        if strategy.groups > 1:
            raise ValueError("required words and `groups` exclude each other: both divide the beam")
        rows = [group.row for group in asked.groups]
        required = [request.required[row] for row in rows]
        return RequiredWords(required, rows, request, asked.candidates, asked.width, device)
    if strategy.groups > 1:
        return DiverseGroups(asked.candidates, strategy.groups, strategy.diversity, request.eos_ids)
    return HighestScores(asked.candidates)


def _stops(asked: BeamRequest, ids: list[int]) -> bool:
    """Whether the stop function of a request ends an output; its error ends that request alone."""
    assert asked.request.stop is not None
    try:
        return asked.request.stop(ids)
    except Exception as error:
        asked.error = error
        asked.drop()
        return True


@dataclass(frozen=True)
class _Alike:
    """Groups of one request that began together, for what is done for them alone."""

    groups: list[Group]
    rows: list[int]  # of the search
    index: Tensor | None  # the same; None: all that there are

    def of(self, tensor: Tensor) -> Tensor:
        """These rows of a tensor."""
        return tensor if self.index is None else tensor[self.index]


class BeamSearch:
    """The live hypotheses of U groups of w slots each, the best first; groups may join and leave between two steps.

    Each group has its own request and its own length. An empty slot has the score -inf. Tokens are stored as
    backpointers, and as ids only if something reads them: rules, a stop function, a trace.

    Args:
        width: w.
        proposer: ranks the continuations.
        trace: records the search; its groups belong to one request, and do not join later.
    """

    def __init__(self, width: int, proposer: HighestScores, device: torch.device, trace: Trace | None = None) -> None:
        self.width, self.proposer, self.device, self.trace = width, proposer, device, trace
        self.groups: list[Group] = []
        self.scores = torch.empty(0, width, device=device)
        self.previous_scores = self.scores  # at the beginning of the last step
        self.written: Tensor | None = None  # (U*w,t) tokens of the hypotheses, each from the first column on
        self.slots = list(range(width))
        self.in_place = True  # whether each slot continued itself in the last step
        self._index_groups()

    def join(self, groups: Sequence[Group]) -> None:
        """Let groups begin, behind the others."""
        scores = torch.full((len(groups), self.width), -torch.inf, device=self.device)
        scores[:, 0] = 0.0  # all slots hold the same empty hypothesis: only one may be extended
        self.scores = torch.cat([self.scores, scores])
        rows = len(groups) * self.width
        if self.written is not None:
            self.written = F.pad(self.written, (0, 0, 0, rows))
        elif any(group.asked.reads_written for group in groups):
            self.written = torch.zeros(len(self.scores) * self.width, 0, dtype=torch.long, device=self.device)
        self.groups = [*self.groups, *groups]
        self._index_groups()

    def select(self, numbers: Sequence[int]) -> None:
        """Only the groups of these numbers, in this order."""
        index = torch.tensor(numbers, dtype=torch.long, device=self.device)
        self.groups = [self.groups[number] for number in numbers]
        self.scores = self.scores[index]
        self.proposer.select(index)
        if self.written is not None:
            self.written = self.written.view(-1, self.width, self.written.shape[1])[index].flatten(0, 1)  # (U'·w, t)
        self._index_groups()

    def _index_groups(self) -> None:
        """Update the attributes that depend on the groups that are there."""
        for number, group in enumerate(self.groups):
            group.number = number
        self.rows = [group.row for group in self.groups for _ in range(self.width)]  # the row of each slot, (U·w,)
        self.slot_rows = torch.arange(len(self.rows), device=self.device).view(len(self.groups), self.width)
        # the steps until a group reaches its limit
        self.steps_left = min((g.max_new_tokens - g.length for g in self.groups if not g.stop_reason), default=0)
        # set the groups whose scores something changes, or whose tokens something reads, by request and length
        self.alike: list[_Alike] = []
        special = [g for g in self.groups if g.asked.reads_written or g.length < g.asked.request.min_new_tokens]
        special.sort(key=lambda group: (id(group.asked), group.length))
        for _, groups in groupby(special, lambda group: (id(group.asked), group.length)):
            together = sorted(groups, key=lambda group: group.number)
            rows = [group.number * self.width + slot for group in together for slot in range(self.width)]
            index = None if len(together) == len(self.groups) else torch.tensor(rows, device=self.device)
            self.alike.append(_Alike(together, rows, index))
        if not any(group.asked.reads_written for group in special):
            self.written = None

    def extend(self, log_probs: Tensor) -> tuple[Tensor, Tensor]:
        """Do one step of the search: rank the candidates, store finished outputs, and choose the live hypotheses.

        The outputs of sentences whose search has ended are stored in their request; their groups are over.

        Args:
            log_probs: (U*w,V) of the next token.

        Returns:
            The slot that each slot continues (U,w), and its token (U,w).
        """
        self.previous_scores, trace = self.scores, self.trace
        if trace is not None:
            trace.step(self.rows, self._ids_of(None), log_probs, self.previous_scores.flatten())
        adjusted = self._after_rules(log_probs)
        for group in self.groups:
            group.length += 1
        self.steps_left -= 1

        # More candidates than slots, in order: those that finish an output leave the beam, and the next ones take their
        # slots. These are a few numbers of each group, for which lists take less time than tensors.
        candidates = self.proposer.propose(adjusted, self.previous_scores, self.groups[0].length)
        index = candidates.parents * log_probs.shape[-1] + candidates.tokens  # (U,c) among the w·V of a group
        model_log_probs = log_probs.view(len(self.groups), -1).gather(1, index)  # (U,c) before the rules
        parts = candidates.scores, candidates.parents, candidates.tokens, model_log_probs
        ranked = [Ranked(*part) for part in zip(*(part.tolist() for part in parts))]  # waits for the device once a step
        ends, slots = self._ends(ranked), [group.slots for group in self.groups]
        taken = list(map(self._taken, self.groups, ranked, ends))
        parents = torch.tensor([one.parents for one in taken], device=self.device)
        tokens = torch.tensor([one.tokens for one in taken], device=self.device)
        self.scores = torch.tensor([one.scores for one in taken], dtype=candidates.scores.dtype, device=self.device)
        self.in_place = all(one.parents == self.slots for one in taken)

        self.proposer.advance(Candidates(self.scores, parents, tokens))
        for group, one in zip(self.groups, taken):
            group.steps.append(one)
        # A search can only end after a step in which an output finished or a slot stayed empty, the limit was reached,
        # or it waits for better outputs.
        has_gap = any(ends) or any(one.scores[-1] == -torch.inf for one in taken)
        if has_gap or self.steps_left <= 0 or any(group.is_waiting for group in self.groups):
            self._end_searches()
        if trace is not None:
            lengths = [(group.length, group.max_new_tokens, group.stop_reason) for group in self.groups]
            fates = [CUT if limit <= length else OVER if reason else KEPT for length, limit, reason in lengths]
            record_step(trace, ranked, ends, taken, slots, fates)
        if self.written is not None:
            sizes = [group.length for group in self.groups for _ in range(self.width)]
            rows = (parents + self.slot_rows[:, :1]).flatten()  # (R,) rows of the hypotheses that are continued
            written = F.pad(self.written[rows], (0, max(0, max(sizes) - self.written.shape[1])))  # (R, longest output)
            last = torch.tensor(sizes, device=self.device).unsqueeze(1) - 1  # (R,1); groups may differ in length
            self.written = written.scatter_(1, last, tokens.reshape(-1, 1))
        return parents, tokens

    def _taken(self, group: Group, ranked: Ranked, ends: set[int]) -> Ranked:
        """The candidates that take the w slots of a group; those that finish an output among the best are stored."""
        width, slots, scores = self.width, group.slots, ranked.scores
        if not ends and slots == width and min(scores[:width]) > -torch.inf:
            return ranked.at(self.slots)
        divisor = group.length**group.asked.strategy.length_penalty  # the length counts EOS
        finished = [
            Finished(
                rank=scores[column] / divisor,
                step=group.length - 1,
                parent=ranked.parents[column],
                token=ranked.tokens[column],
                log_prob=ranked.log_probs[column],
                eos=ranked.tokens[column] in group.asked.request.eos_ids,
            )
            for column in sorted(ends)
            if column < slots and scores[column] > -torch.inf
        ]
        group.add(finished)
        dropped = [column in ends or score == -torch.inf for column, score in enumerate(scores)]
        order = sorted(range(len(scores)), key=dropped.__getitem__)  # the first that are not dropped, then the others
        taken = ranked.at(order[:width])
        filled = min(group.slots, len(scores) - sum(dropped))
        taken.scores[filled:] = [-torch.inf] * len(taken.scores[filled:])  # a shrinking beam closes slots
        return taken

    def leave(self, parents: Tensor, tokens: Tensor) -> tuple[Tensor | None, Tensor]:
        """Drop the groups that are over, after `extend`, whose value is given.

        Returns:
            The row whose state each slot continues (U'*w), None if each continues its own; and its token (U'*w).
        """
        is_over = any(group.is_over for group in self.groups)
        if self.in_place and not is_over:
            return None, tokens.flatten()
        rows = parents + self.slot_rows[:, :1]  # (U,w): numbers of slots in a group -> rows of the state
        if not is_over:
            return rows.flatten(), tokens.flatten()
        each = self.groups[0].asked.strategy.groups  # those of a sentence stay side by side
        sentences = moved_up([not group.is_over for group in self.groups[::each]])
        numbers = [sentence * each + number for sentence in sentences for number in range(each)]
        index = torch.tensor(numbers, dtype=torch.long, device=self.device)
        self.select(numbers)
        return rows[index].flatten(), tokens[index].flatten()

    def certain(self, asked: BeamRequest) -> tuple[list[int], list[float]]:
        """The ids and log-probabilities with which the best output begins, for a request of one row."""
        begun = [group for group in asked.groups if group.length]
        return certain_beginning(begun, lambda group: self.scores[group.number].tolist())

    def _ids_of(self, alike: _Alike | None) -> Tensor:
        """The tokens (R,t) of groups that began together; None: of all."""
        groups = self.groups if alike is None else alike.groups
        if self.written is None:  # nothing reads them
            return torch.empty(len(groups) * self.width, 0, dtype=torch.long, device=self.device)
        written = self.written if alike is None else alike.of(self.written)
        return written[:, : len(groups[0].steps)]

    def _after_rules(self, log_probs: Tensor) -> Tensor:
        """The log-probabilities (U*w,V) after the rules of each request."""
        adjusted = log_probs
        for alike in self.alike:
            request, length = alike.groups[0].asked.request, alike.groups[0].length
            if not request.rules and length >= request.min_new_tokens:
                continue
            rows = [self.rows[row] for row in alike.rows]
            changed = apply_rules(alike.of(log_probs), request, rows, self._ids_of(alike), length)
            if alike.index is None:
                return changed
            adjusted = adjusted.clone() if adjusted is log_probs else adjusted  # the caller's tensor stays as it is
            adjusted[alike.index] = changed
        return adjusted

    def _ends(self, ranked: Sequence[Ranked]) -> list[set[int]]:
        """Which candidates of each group finish an output."""
        ends = [
            {column for column, token in enumerate(one.tokens) if token in group.asked.request.eos_ids}
            for group, one in zip(self.groups, ranked)
        ]
        for alike in self.alike:
            if alike.groups[0].asked.request.stop is None:
                continue
            written = self._ids_of(alike).tolist()
            for place, group in enumerate(alike.groups):
                one = ranked[group.number]
                for column, (score, parent, token) in enumerate(zip(one.scores, one.parents, one.tokens)):
                    if score > -torch.inf and _stops(group.asked, [*written[place * self.width + parent], token]):
                        ends[group.number].add(column)
        return ends

    def _end_searches(self) -> None:
        """End the search for sentences whose groups have all stopped, and store their outputs."""
        for group, score in zip(self.groups, self.scores.amax(dim=1).tolist()):  # the best live sum of each group
            group.stop_reason = group.stop_reason or group.reason_to_stop(score)
        start = 0
        while start < len(self.groups):
            asked, row = self.groups[start].asked, self.groups[start].row
            end = start + asked.strategy.groups
            groups = self.groups[start:end]
            if all(group.stop_reason for group in groups) and not groups[0].is_over:
                asked.results[row] = outputs_of(
                    groups, self.scores[start:end].tolist(), self.previous_scores[start:end].tolist()
                )
                asked.open -= 1
                for group in groups:
                    group.is_over = True
                    group.steps.clear()  # request and groups know one another: memory is not freed at once
                if self.trace is not None:
                    self.trace.stop(row, "; ".join(dict.fromkeys(group.stop_reason for group in groups)))
            start = end
        waits = [bool(group.stop_reason) and not group.is_over for group in self.groups]
        if any(waits):  # a group that has stopped waits for the others of its sentence
            self.scores = self.scores.masked_fill(torch.tensor(waits, device=self.device).unsqueeze(1), -torch.inf)
