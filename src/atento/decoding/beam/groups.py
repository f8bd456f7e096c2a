"""The groups of a beam: what each was asked, its tokens as backpointers, its finished outputs, why its search ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from torch import inf

from atento.decoding.choosing import hypothesis
from atento.decoding.contract import Request
from atento.decoding.hypothesis import Hypothesis
from atento.decoding.strategies import Beam

# Why a search has ended.
FILLED = "as many outputs as the beam is wide have ended"
HOPELESS = "no unfinished hypothesis could rank among the outputs any more"
LIMIT = "the length limit"
NOTHING = "nothing was left to go on with"


@dataclass(frozen=True)
class Finished:
    """A finished output: its rank in the search, and the live hypothesis that it extends by one token."""

    rank: float  # the sum of changed scores / length ** length_penalty
    step: int  # the step of its group that finished it, from 0
    parent: int  # the slot that it extends
    token: int
    log_prob: float
    eos: bool  # the token is an end-of-sequence, not a part of the output


@dataclass
class Ranked:
    """Candidates of a group at one step, the preferred first, or those in its w slots; -inf marks an empty one."""

    scores: list[float]  # sums of the changed scores
    parents: list[int]  # the slot, 0 to w-1, that each extends
    tokens: list[int]
    log_probs: list[float]  # of the tokens, by the model

    def at(self, columns: Sequence[int]) -> Ranked:
        """Those in these columns."""
        scores, parents, tokens, log_probs = self.scores, self.parents, self.tokens, self.log_probs
        return Ranked(
            [scores[column] for column in columns],
            [parents[column] for column in columns],
            [tokens[column] for column in columns],
            [log_probs[column] for column in columns],
        )


@dataclass(eq=False)
class BeamRequest:
    """What is searched for the rows of one call, and what comes out.

    Attributes:
        open: how many rows have no outputs yet.
    """

    strategy: Beam  # the options of the search
    request: Request  # limits, rules, stop function and trace
    # the outputs of each row; a row that may write nothing has them from the start
    results: list[list[Hypothesis]] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)  # of the other rows, `Beam.groups` side by side
    error: Exception | None = None  # why the search failed

    def __post_init__(self) -> None:
        limits = self.request.max_new_tokens
        self.results = [[] if limit > 0 else [hypothesis([], [], False, 0.0)] for limit in limits]
        rows = [row for row, limit in enumerate(limits) if limit > 0]
        self.groups = [Group(self, row) for row in rows for _ in range(self.strategy.groups)]
        self.open = len(rows)

    @property
    def width(self) -> int:
        """The slots of a group."""
        return self.strategy.width // self.strategy.groups

    @property
    def candidates(self) -> int:
        """How many continuations of a group are ranked at a step.

        Every slot may finish at once, in as many ways as there are end tokens. The candidates must still contain
        `width` others that continue.
        """
        return self.width * (1 + max(1, len(self.request.eos_ids) + (self.request.stop is not None)))

    @property
    def reads_written(self) -> bool:
        """Whether something reads the tokens of its hypotheses at every step."""
        request = self.request
        return bool(request.rules) or request.stop is not None or request.trace is not None

    def drop(self) -> None:
        """End all searches that have not ended, without outputs."""
        self.open = 0
        for group in self.groups:
            group.is_over = True


@dataclass(eq=False)
class Group:
    """One group of a sentence's beam; without `Beam.groups`, the only one."""

    asked: BeamRequest  # what it is searched for
    row: int  # of that request
    number: int = 0  # its place among the groups of the search, while it is there
    length: int = 0  # how many steps it has made
    finished: list[Finished] = field(default_factory=list)  # its outputs, the best first
    stop_reason: str = ""  # why its search has ended; empty: it has not
    is_over: bool = False  # the search for its sentence has ended: that of all groups of it
    # its tokens: what its w slots held after each step; followed back only for outputs that are returned
    steps: list[Ranked] = field(default_factory=list)

    @property
    def max_new_tokens(self) -> int:
        """The most tokens of an output."""
        return self.asked.request.max_new_tokens[self.row]

    @property
    def slots(self) -> int:
        """How many live hypotheses it may hold: a shrinking beam closes a slot for each finished output."""
        width = self.asked.width
        return width if self.asked.strategy.stopping == "fixed" else max(0, width - len(self.finished))

    @property
    def is_waiting(self) -> bool:
        """Whether it has as many outputs as it may return, and only waits for better ones."""
        return self.asked.strategy.until != "filled" and len(self.finished) >= self.asked.width

    def output(self, finished: Finished) -> tuple[list[int], list[float]]:
        """The ids of a finished output without EOS, and its log-probabilities with EOS's."""
        ids, log_probs = self.before(finished.step, finished.parent)
        return ids if finished.eos else [*ids, finished.token], [*log_probs, finished.log_prob]

    def before(self, step: int, slot: int) -> tuple[list[int], list[float]]:
        """The ids and log-probabilities of a slot at the beginning of step number `step`."""
        ids, scores = [], []
        for number in range(step - 1, -1, -1):  # backwards along the parents
            held = self.steps[number]
            ids.append(held.tokens[slot])
            scores.append(held.log_probs[slot])
            slot = held.parents[slot]
        return ids[::-1], scores[::-1]  # from the first token on

    def common(self, slots: Iterable[int], finished: Iterable[Finished]) -> tuple[list[int], list[float]]:
        """The ids and log-probabilities with which the slots of the last step and those finished outputs all begin."""
        extended: dict[int, set[int]] = {}  # by step, the slots before it that finished outputs extend
        for output in finished:
            extended.setdefault(output.step, set()).add(output.parent)
        step, met = len(self.steps), set(slots)
        while step > 0 and (len(met) > 1 or min(extended, default=step) < step):
            parents = self.steps[step - 1].parents
            step -= 1
            met = {parents[slot] for slot in met} | extended.get(step, set())
        return self.before(step, met.pop()) if step > 0 else ([], [])  # one slot is left

    def add(self, outputs: Sequence[Finished]) -> None:
        """Add finished outputs; those that can never be returned are dropped."""
        self.finished = sorted([*self.finished, *outputs], key=lambda output: -output.rank)[: self.asked.width]

    def reason_to_stop(self, best: float) -> str:
        """Why its search has ended; empty if it has not.

        `best` is the score of its best live hypothesis. It bounds the score of all later outputs, because sums only
        fall.
        """
        strategy = self.asked.strategy
        if len(self.finished) >= self.asked.width:
            if strategy.until == "filled":
                return FILLED
            penalty, length = strategy.length_penalty, self.length
            if strategy.until == "sure":  # the length at which it would rank best, of those it may still reach
                length = self.max_new_tokens if penalty > 0 else self.length + 1  # above 0 the longest is best
            if best == -inf or best / length**penalty <= self.finished[-1].rank:
                return HOPELESS
        if best == -inf:
            return NOTHING
        return LIMIT if self.length >= self.max_new_tokens else ""


def outputs_of(
    groups: Sequence[Group], scores: Sequence[Sequence[float]], previous_scores: Sequence[Sequence[float]]
) -> list[Hypothesis]:
    """The n best outputs of a sentence by rank, none twice.

    Hypotheses that the length limit cut off only fill up the list.

    Args:
        groups: of the sentence.
        scores: of their slots, after the last step.
        previous_scores: before it.
    """
    asked = groups[0].asked
    penalty, n_best = asked.strategy.length_penalty, asked.strategy.n_best
    exact = not asked.request.rules and not asked.strategy.diversity  # then rank is score, but for the last digit
    ranked = []
    for group in groups:
        for finished in group.finished:
            output = hypothesis(*group.output(finished), True, penalty)
            ranked.append((output.score if exact else finished.rank, finished.token, output))
    outputs, length = _best(ranked, n_best), groups[0].length
    if len(outputs) < n_best and length >= groups[0].max_new_tokens:
        outputs += _best(_unfinished(groups, scores, length), n_best - len(outputs))  # behind the finished ones
    if not outputs:  # the rules left no token
        outputs = _best(_unfinished(groups, previous_scores, length - 1), n_best)
    return outputs


def _unfinished(
    groups: Sequence[Group], scores: Sequence[Sequence[float]], length: int
) -> list[tuple[float, int, Hypothesis]]:
    """The hypotheses in slots of these scores that are not empty, after `length` steps, as `_best` takes them."""
    penalty, ranked = groups[0].asked.strategy.length_penalty, []
    for group, group_scores in zip(groups, scores):
        for slot, score in enumerate(group_scores):
            if score > -inf:
                output = hypothesis(*group.before(length, slot), False, penalty)
                ranked.append((score / max(1, len(output.ids)) ** penalty, -1, output))  # -1: no token finished it
    return ranked


def _best(ranked: list[tuple[float, int, Hypothesis]], count: int) -> list[Hypothesis]:
    """The `count` best of (rank, the token that finished it, output) without duplicates: groups may find the same
    output."""
    best: dict[tuple[int, ...], Hypothesis] = {}
    for _, end, output in sorted(ranked, key=lambda entry: -entry[0]):
        best.setdefault((end, *output.ids), output)  # the first of equals has the best rank
    return list(best.values())[:count]


def certain_beginning(groups: Sequence[Group], scores: Callable[[Group], list[float]]) -> tuple[list[int], list[float]]:
    """The ids and log-probabilities with which the best output of a sentence begins.

    All live hypotheses begin with them, and so do the finished outputs that may still be the best.

    Args:
        groups: of the sentence.
        scores: of the slots of a group.
    """
    live = {
        group: slots
        for group in groups
        if not group.is_over and (slots := [slot for slot, score in enumerate(scores(group)) if score > -inf])
    }
    best = max((output.rank for group in groups for output in group.finished), default=0.0)
    # their scores are summed again for the outputs, so the last digits do not decide here
    lowest = best - 1e-3 * max(1.0, abs(best))  # a thousandth of the score, or 0.001 of small ones
    near = {group: [output for output in group.finished if output.rank >= lowest] for group in groups}
    if len(live) != 1 or any(near[group] and group not in live for group in groups):
        return [], []
    (group,) = live
    return group.common(live[group], near[group])
